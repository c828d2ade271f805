//! Every parameter's gradient against torchvision's autograd, on the narrow models: see `make_gradients.py`.
#![cfg(feature = "train")]

mod common;

use std::collections::HashMap;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor};
use candle_detection::backbone::{self, Backbone};
use candle_detection::checkpoint::{Checkpoint, CheckpointSource, Loading};
use candle_detection::config::ModelConfig;
use candle_detection::ops::FilledRows;
use candle_detection::roi_heads::{MaskHead, RoiHeads};
use candle_detection::rpn::RegionProposalNetwork;
use candle_detection::structures::{BatchGeometry, ImageGeometry, ImageSize, Proposals};
use candle_detection::train::{Freezing, Parameters};
use common::{channels_last, fixtures, largest_difference, largest_value, values};

/// Difference relative to the largest entry of a gradient.
const RELATIVE: f32 = 1e-3;

struct Network {
    backbone: Box<dyn Backbone>,
    rpn: RegionProposalNetwork,
    roi_heads: RoiHeads,
    mask_head: MaskHead,
}

struct Case {
    parameters: Parameters,
    network: Network,
    tensors: HashMap<String, Tensor>,
}

impl Case {
    fn load(name: &str, freeze: impl Fn(&ModelConfig) -> Freezing) -> Self {
        let file = |name: String| fixtures().join(name);
        let config = ModelConfig::load(&file(format!("{name}.toml"))).unwrap();
        let checkpoint = Checkpoint::open(&file(format!("{name}.safetensors"))).unwrap();
        let source = CheckpointSource::new(checkpoint, Loading::Strict);
        let parameters = Parameters::new(freeze(&config));
        let weights = parameters.var_builder(source.var_builder(&Device::Cpu));
        let heads = weights.pp("roi_heads");
        let levels = config.levels();
        let rcnn = config.architecture.as_rcnn().unwrap();
        let (anchors, mask) = (&rcnn.anchors, rcnn.mask_head.as_ref().unwrap());
        let (channels, classes) = (levels[0].channels, config.num_classes);
        let network = Network {
            backbone: backbone::build(&weights.pp("backbone"), &config.body, &config.neck).unwrap(),
            rpn: RegionProposalNetwork::load(&weights.pp("rpn"), channels, anchors, &rcnn.rpn)
                .unwrap(),
            roi_heads: RoiHeads::load(&heads, &levels, classes, &rcnn.box_head).unwrap(),
            mask_head: MaskHead::load(&heads, &levels, classes, mask).unwrap(),
        };
        source.finish(name).unwrap();
        let path = file(format!("gradients_{name}.safetensors"));
        let tensors = candle_core::safetensors::load(path, &Device::Cpu).unwrap();
        Self { parameters, network, tensors }
    }

    fn geometry(&self) -> BatchGeometry {
        let (_, _, height, width) = self.tensors["pixels"].dims4().unwrap();
        let sizes: Vec<Vec<u32>> = self.tensors["image_sizes"].to_vec2().unwrap();
        let images = sizes.iter().map(|size| {
            let resized = ImageSize { height: size[0] as usize, width: size[1] as usize };
            ImageGeometry { original: resized, resized }
        });
        BatchGeometry { padded: ImageSize { height, width }, images: images.collect() }
    }

    /// The number of which the gradients are taken.
    fn value(&self) -> Tensor {
        let Network { backbone, rpn, roi_heads, mask_head } = &self.network;
        let geometry = self.geometry();
        let features = backbone.forward(&channels_last(&self.tensors["pixels"])).unwrap();
        let predicted = rpn.predict(&features).unwrap();
        let boxes = self.tensors["boxes"].clone();
        let (n, k, _) = boxes.dims3().unwrap();
        let counts = Tensor::full(k as u32, n, &Device::Cpu).unwrap();
        let scores = Tensor::zeros((n, k), DType::F32, &Device::Cpu).unwrap();
        let labels = &self.tensors["labels"];
        let proposals = Proposals { boxes: boxes.clone(), scores, counts: counts.clone() };
        let pooled =
            roi_heads.pool(&features, &proposals.boxes, &proposals.counts, &geometry).unwrap();
        let (class_logits, box_regression) = roi_heads.predict(&pooled, FilledRows::All).unwrap();
        let masks = mask_head.logits(&features, &boxes, labels, &counts, &geometry).unwrap();

        let levels = features.levels.iter().zip(0..);
        let objectness = predicted.objectness.iter().zip(10..);
        let deltas = predicted.deltas.iter().zip(20..);
        let heads = [(&class_logits, 30), (&box_regression, 31), (&masks, 40)];
        levels
            .chain(objectness)
            .chain(deltas)
            .chain(heads)
            .map(|(output, seed)| weighted(output, seed))
            .reduce(|sum, term| (sum + term).unwrap())
            .unwrap()
    }

    #[track_caller]
    fn compare(&self, gradients: &GradStore) {
        let mut faults = Vec::new();
        for parameter in self.parameters.all() {
            let expected = self.tensors.get(&format!("gradient.{}", parameter.name));
            let found = gradients.get(parameter.var.as_tensor());
            match (found, expected, parameter.trainable) {
                (Some(found), Some(expected), true) => {
                    assert_eq!(found.dims(), expected.dims(), "{}", parameter.name);
                    let difference = largest_difference(found, expected) / largest_value(expected);
                    if difference.is_nan() || difference > RELATIVE {
                        faults.push(format!("{}: {difference:.1e}", parameter.name));
                    }
                }
                (None, _, false) => {}
                (found, expected, trainable) => faults.push(format!(
                    "{}: gradient {}, of the reference {}, trainable {trainable}",
                    parameter.name,
                    found.is_some(),
                    expected.is_some()
                )),
            }
        }
        assert!(faults.is_empty(), "{} gradients differ:\n{}", faults.len(), faults.join("\n"));
    }
}

/// Numbers in -1..1 from the index in memory order, as `weight_of` of the script makes them.
fn weight_of(n: usize, seed: u64) -> Vec<f32> {
    (0..n as u64)
        .map(|index| {
            let mixed = (index * 2_654_435_761 + seed * 40_503 + 1) % (1 << 32);
            let mixed = (mixed ^ (mixed >> 15)) * 2_246_822_519 % (1 << 32);
            ((mixed >> 8) as f64 / f64::from(1 << 23) - 1.0) as f32
        })
        .collect()
}

fn weighted(output: &Tensor, seed: u64) -> Tensor {
    let n = output.elem_count();
    let weights = Tensor::from_vec(weight_of(n, seed), output.shape(), &Device::Cpu).unwrap();
    ((output * weights).unwrap().sum_all().unwrap() / (n as f64).sqrt()).unwrap()
}

#[test]
fn layout_of_the_v1_models() {
    for stages in [3, 5] {
        let case = Case::load("tiny_r18", |config| Freezing::backbone(config, stages));
        let value = case.value();
        let (found, expected) = (values(&value)[0], values(&case.tensors["value"])[0]);
        assert!((found - expected).abs() < 1e-3, "{found}, {expected}");
        case.compare(&value.backward().unwrap());
    }
}

/// Norms use the statistics of the batch, and move the running ones.
#[test]
fn layout_of_the_v2_models() {
    let case = Case::load("tiny_r50_v2", |config| Freezing::backbone(config, 5));
    let value = case.value();
    let (found, expected) = (values(&value)[0], values(&case.tensors["value"])[0]);
    assert!((found - expected).abs() < 1e-3, "{found}, {expected}");
    let mut statistics = 0;
    for (key, expected) in &case.tensors {
        let Some(name) = key.strip_prefix("statistic.") else { continue };
        let found = case.parameters.get(name).unwrap().var;
        let difference = largest_difference(&found, expected);
        assert!(difference <= 1e-4 * largest_value(expected), "{name} differs by {difference}");
        statistics += 1;
    }
    assert!(statistics > 100, "{statistics}");
    case.compare(&value.backward().unwrap());
}
