//! Narrow models of `make_dense_models.py`: their stages, detections and steps of training against torchvision's.

use std::collections::HashMap;

use candle_core::{Device, Tensor};
use candle_detection::checkpoint::{Checkpoint, Loading};
use candle_detection::config::ModelConfig;
use candle_detection::structures::{BoxXyxy, FeatureMaps, ImageBatch, Target};
use candle_detection::train::{Batch, Freezing, Gradients, Losses, Network, RandomSampler};
use candle_detection::{Detector, ImageInput, transform};

use super::{
    Fixture, channels_last, fixtures, largest_difference, largest_value, tolerance, values,
};

/// Features and logits: difference relative to the largest value.
const RELATIVE: f32 = 1e-4;
/// Of a loss, relative.
const LOSS_TOLERANCE: f32 = 1e-4;
/// Of a gradient, relative to its largest entry.
const GRADIENT_TOLERANCE: f32 = 1e-3;
/// Or this many times what the reference's own gradient changes when all weights are perturbed by three parts in ten
/// million.
const TIMES_NOISE: f32 = 3.0;

/// A model's inference.
pub struct Stages {
    pub fixture: Fixture,
    pub detector: Detector,
    pub batch: ImageBatch,
    pub features: FeatureMaps,
}

impl Stages {
    /// Runs the backbone, whose levels must be the reference's.
    pub fn of(name: &str) -> Self {
        let fixture = Fixture::load(name);
        let detector = fixture.detector();
        let config = &detector.config().image;
        let images = fixture.images();
        let batch =
            transform::to_batch(&images, config, detector.device(), detector.dtype()).unwrap();
        let sizes: Vec<u32> =
            fixture.tensor("resized_sizes").flatten_all().unwrap().to_vec1().unwrap();
        let found = batch.geometry.resized_sizes();
        let found: Vec<u32> = found.iter().flat_map(|(h, w)| [*h as u32, *w as u32]).collect();
        assert_eq!(found, sizes, "resized sizes");
        let features = detector.network().backbone.forward(&batch.pixels).unwrap();
        for (level, found) in features.levels.iter().enumerate() {
            let key = format!("features.{level}");
            let relative = tolerance(name, &key, RELATIVE);
            assert_within(found, &channels_last(&fixture.tensor(&key)), &key, relative);
        }
        assert!(!fixture.has(&format!("features.{}", features.levels.len())));
        Self { fixture, detector, batch, features }
    }

    /// Compares what the head predicts of the first image on every level.
    pub fn compare_head(&self, key: &str, levels: &[Tensor]) {
        for (level, found) in levels.iter().enumerate() {
            let key = format!("head.{key}.{level}");
            let expected = self.fixture.tensor(&key);
            let found = found.narrow(0, 0, 1).unwrap().reshape(expected.shape()).unwrap();
            assert_near(&found, &expected, &key);
        }
    }

    pub fn compare_anchors(&self, found: &Tensor) {
        assert_eq!(values(found), values(&self.fixture.tensor("anchors")), "anchors");
    }

    pub fn compare_detections(&self) {
        let found = self.detector.detect_batch(&self.fixture.images()).unwrap();
        for (image, detections) in found.iter().enumerate() {
            let get = |what: &str| self.fixture.tensor(&format!("{what}.{image}"));
            let labels: Vec<u32> = get("resized_image.labels").to_vec1().unwrap();
            let found: Vec<u32> = detections.instances.iter().map(|i| i.label).collect();
            assert_eq!(found, labels, "labels of image {image}");
            let tensors = detections.to_tensors(&Device::Cpu).unwrap();
            let difference = largest_difference(&tensors.scores, &get("resized_image.scores"));
            assert!(difference < 1e-3, "scores of image {image} differ by {difference}");
            let difference = largest_difference(&tensors.boxes, &get("final.boxes"));
            assert!(difference < 0.05, "boxes of image {image} differ by {difference} px");
        }
    }
}

#[track_caller]
pub fn assert_near(found: &Tensor, expected: &Tensor, stage: &str) {
    assert_within(found, expected, stage, RELATIVE);
}

#[track_caller]
fn assert_within(found: &Tensor, expected: &Tensor, stage: &str, relative: f32) {
    assert_eq!(found.dims(), expected.dims(), "{stage}");
    let (difference, largest) = (largest_difference(found, expected), largest_value(expected));
    let limit = relative * largest;
    assert!(difference <= limit, "{stage} differs by {difference}, its largest value is {largest}");
}

/// A model's training.
pub struct Steps {
    name: &'static str,
    tensors: HashMap<String, Tensor>,
}

impl Steps {
    pub fn of(name: &'static str) -> Self {
        let path = fixtures().join(format!("train_{name}.safetensors"));
        Self { name, tensors: candle_core::safetensors::load(path, &Device::Cpu).unwrap() }
    }

    pub fn network(&self, device: &Device) -> Network {
        let file = |extension: &str| fixtures().join(format!("{}.{extension}", self.name));
        let config = ModelConfig::load(&file("toml")).unwrap();
        let checkpoint = Checkpoint::open(&file("safetensors")).unwrap();
        let freezing = Freezing::backbone(&config, config.backbone_parts().len());
        Network::from_checkpoint(&config, checkpoint, Loading::Strict, freezing, device).unwrap().0
    }

    pub fn batch(&self, case: &str) -> Batch {
        let images: Vec<ImageInput> = (0..)
            .map_while(|i| self.tensors.get(&format!("image.{i}")))
            .map(|pixels| {
                let (height, width, _) = pixels.dims3().unwrap();
                let bytes: Vec<u8> = pixels.flatten_all().unwrap().to_vec1().unwrap();
                ImageInput::from_rgb8(width, height, bytes).unwrap()
            })
            .collect();
        let targets = (0..images.len()).map(|i| self.target(case, i)).collect();
        Batch { images, targets, min_size: None }
    }

    fn target(&self, case: &str, image: usize) -> Target {
        let tensor = |key: &str| &self.tensors[&format!("{case}/target.{key}.{image}")];
        let boxes = values(tensor("boxes"));
        let boxes = boxes.as_chunks::<4>().0.iter();
        Target {
            image_id: image as u64,
            boxes: boxes.map(|&[x1, y1, x2, y2]| BoxXyxy { x1, y1, x2, y2 }).collect(),
            labels: tensor("labels").to_vec1().unwrap(),
            masks: Vec::new(),
            keypoints: Vec::new(),
        }
    }

    /// A step, whose losses, and all gradients that the fixture holds, must be the reference's.
    pub fn compare(&self, case: &str, device: &Device) -> (Network, Losses, Gradients) {
        let network = self.network(device);
        let mut sampler = RandomSampler::new(1, 0);
        let evaluated = network.evaluate(&self.batch(case), &mut sampler).unwrap();
        let losses = evaluated.losses().unwrap();
        for (name, found) in losses.named() {
            let expected = values(&self.tensors[&format!("{case}/loss.{name}")])[0];
            let difference = (found - expected).abs();
            assert!(difference <= LOSS_TOLERANCE * expected, "{case} {name}: {found} {expected}");
        }
        let gradients = evaluated.gradients(&network.parameters().trainable()).unwrap();
        self.compare_gradients(case, &gradients);
        self.compare_statistics(case, &network);
        (network, losses, gradients)
    }

    #[track_caller]
    fn compare_gradients(&self, case: &str, gradients: &Gradients) {
        let prefix = format!("{case}/grad.");
        let mut faults = Vec::new();
        let mut compared = 0;
        for (key, expected) in &self.tensors {
            let Some(name) = key.strip_prefix(&prefix) else { continue };
            let found =
                gradients.get(name).unwrap().unwrap_or_else(|| panic!("no gradient of {name}"));
            let found = found.to_device(&Device::Cpu).unwrap();
            let difference = largest_difference(&found, expected);
            let largest = largest_value(expected);
            let noise = values(&self.tensors[&format!("{case}/noise.{name}")])[0];
            let tolerance = GRADIENT_TOLERANCE.max(TIMES_NOISE * noise);
            if difference > tolerance * largest {
                faults.push(format!("{name}: {difference} of {largest}"));
            }
            compared += 1;
        }
        if case == "objects" {
            assert_eq!(compared, gradients.names().len(), "gradients in the fixture");
        }
        assert!(compared > 0 || case != "objects");
        let faults = (faults.len(), faults.join("\n"));
        assert!(faults.0 == 0, "{case}: {} gradients differ:\n{}", faults.0, faults.1);
    }

    /// The running statistics of norms after the step, where the fixture has them.
    fn compare_statistics(&self, case: &str, network: &Network) {
        let prefix = format!("{case}/after.");
        for (key, expected) in &self.tensors {
            let Some(name) = key.strip_prefix(&prefix) else { continue };
            let found = network.parameters().get(name).unwrap().var;
            let found = found.to_device(&Device::Cpu).unwrap();
            let difference = largest_difference(&found, expected);
            assert!(difference <= 1e-4 * largest_value(expected), "{name} differs by {difference}");
        }
    }
}
