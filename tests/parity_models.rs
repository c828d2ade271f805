//! Every model file: parameter names, shapes and counts are torchvision's.

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Shape, Tensor};
use candle_detection::{DetectionNetwork, Detector, config};
use candle_nn::VarBuilder;
use candle_nn::var_builder::SimpleBackend;
use serde::Deserialize;

/// One model of `parameters.json`.
#[derive(Deserialize)]
struct Parameters {
    parameters: u64,
    tensors: BTreeMap<String, Vec<usize>>,
}

/// Gives zeros and notes what was asked for.
struct Recorder(Arc<Mutex<BTreeMap<String, Vec<usize>>>>);

impl SimpleBackend for Recorder {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _hint: candle_nn::Init,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        let earlier = self.0.lock().unwrap().insert(name.to_owned(), shape.dims().to_vec());
        assert!(earlier.is_none(), "{name} is loaded twice");
        Tensor::zeros(shape, dtype, device)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> candle_core::Result<Tensor> {
        panic!("{name} is loaded without a shape")
    }

    fn contains_tensor(&self, _name: &str) -> bool {
        true
    }
}

#[test]
fn parameters_are_those_of_torchvision() {
    let file = common::fixtures().join("parameters.json");
    let reference: BTreeMap<String, Parameters> =
        serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let mut compared = 0;
    for name in config::names() {
        let config = config::get(name).unwrap();
        if config.weights.is_empty() {
            continue; // a model of this crate's own
        }
        let record = Arc::new(Mutex::new(BTreeMap::new()));
        let backend: Box<dyn SimpleBackend> = Box::new(Recorder(record.clone()));
        let weights = VarBuilder::new_with_args(backend, DType::F32, &Device::Cpu);
        DetectionNetwork::load(&weights, &config).unwrap();
        let expected = &reference[name];
        assert_eq!(*record.lock().unwrap(), expected.tensors, "{name}");
        assert_eq!(config.weights[0].parameters, expected.parameters, "{name}");
        compared += 1;
    }
    assert_eq!(compared, reference.len());
}

/// The same weights as safetensors, as a zip checkpoint, and as a legacy one with the names of 2019.
#[test]
fn every_weight_format_gives_the_same_detections() {
    let images = common::Fixture::load("tiny_r18").images();
    let runs = ["tiny_r18.safetensors", "tiny_r18.pth", "tiny_r18.legacy.pth"].map(|weights| {
        let file = |name: &str| common::fixtures().join(name);
        let detector = Detector::from_files(&file("tiny_r18.toml"), &file(weights)).unwrap();
        let found = detector.detect_batch(&images).unwrap();
        let instances = found.iter().flat_map(|detections| &detections.instances);
        let bits = instances.map(|i| {
            let corners = [i.bbox.x1, i.bbox.y1, i.bbox.x2, i.bbox.y2].map(f32::to_bits);
            let mask: Vec<u32> =
                i.mask.as_ref().unwrap().probabilities().iter().map(|p| p.to_bits()).collect();
            (i.label, i.score.to_bits(), corners, mask)
        });
        bits.collect::<Vec<_>>()
    });
    assert!(runs[0].len() > 10);
    assert!(runs.iter().all(|run| *run == runs[0]));
}
