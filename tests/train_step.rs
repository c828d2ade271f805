//! Whole steps on the narrow models against torchvision's: losses and every gradient, with the reference's samples. See
//! `make_training.py`.
#![cfg(feature = "train")]

mod common;

use std::collections::HashMap;

use candle_core::{Device, Tensor};
use candle_detection::checkpoint::{Checkpoint, Loading};
use candle_detection::config::ModelConfig;
use candle_detection::structures::{BoxXyxy, Rle, Target};
use candle_detection::train::{
    Batch, Candidates, Freezing, Gradients, Losses, Network, RandomSampler, SampleParams, Sampler,
    Stage,
};
use candle_detection::{Error, ImageInput, Result};
use common::{fixtures, largest_difference, largest_value, values};

/// Of a loss, relative.
const LOSS_TOLERANCE: f32 = 1e-4;
/// Of a gradient, relative to its largest entry.
const GRADIENT_TOLERANCE: f32 = 1e-3;
/// Or this many times what the reference's own gradient changes when all weights are perturbed by three parts in ten
/// million: with norms that use the statistics of the batch, a ReLU that changes sides moves gradients by percents.
const TIMES_NOISE: f32 = 3.0;

struct Reference {
    name: &'static str,
    tensors: HashMap<String, Tensor>,
}

impl Reference {
    fn load(name: &'static str) -> Self {
        let path = fixtures().join(format!("train_{name}.safetensors"));
        Self { name, tensors: candle_core::safetensors::load(path, &Device::Cpu).unwrap() }
    }

    fn network(&self, stages: usize) -> Network {
        self.network_with(stages, |_| {})
    }

    fn network_with(&self, stages: usize, edit: impl Fn(&mut ModelConfig)) -> Network {
        let file = |extension: &str| fixtures().join(format!("{}.{extension}", self.name));
        let mut config = ModelConfig::load(&file("toml")).unwrap();
        let training = &mut config.training;
        training.rpn.samples_per_image = 48;
        (training.rpn.pre_nms_top_n, training.rpn.post_nms_top_n) =
            if self.name == "tiny_r18" { (40, 50) } else { (12, 20) };
        training.roi.samples_per_image = 32;
        edit(&mut config);
        let checkpoint = Checkpoint::open(&file("safetensors")).unwrap();
        let freezing = Freezing::backbone(&config, stages);
        Network::from_checkpoint(&config, checkpoint, Loading::Strict, freezing, &Device::Cpu)
            .unwrap()
            .0
    }

    fn images(&self) -> Vec<ImageInput> {
        (0..)
            .map_while(|i| self.tensors.get(&format!("image.{i}")))
            .map(|pixels| {
                let (height, width, _) = pixels.dims3().unwrap();
                let bytes: Vec<u8> = pixels.flatten_all().unwrap().to_vec1().unwrap();
                ImageInput::from_rgb8(width, height, bytes).unwrap()
            })
            .collect()
    }

    fn batch(&self, case: &str) -> Batch {
        let images = self.images();
        let targets = (0..images.len()).map(|i| self.target(case, i)).collect();
        Batch { images, targets, min_size: None }
    }

    fn target(&self, case: &str, image: usize) -> Target {
        let tensor = |key: &str| &self.tensors[&format!("{case}/target.{key}.{image}")];
        let boxes = values(tensor("boxes"));
        let boxes = boxes.as_chunks::<4>().0.iter();
        let (n, height, width) = tensor("masks").dims3().unwrap();
        let bitmaps: Vec<u8> = tensor("masks").flatten_all().unwrap().to_vec1().unwrap();
        let planes = bitmaps.chunks_exact(height * width).take(n);
        let bitmap = |plane: &[u8]| {
            image::GrayImage::from_vec(width as u32, height as u32, plane.to_vec()).unwrap()
        };
        Target {
            image_id: image as u64,
            boxes: boxes.map(|&[x1, y1, x2, y2]| BoxXyxy { x1, y1, x2, y2 }).collect(),
            labels: tensor("labels").to_vec1().unwrap(),
            masks: planes.map(|plane| Rle::from_bitmap(&bitmap(plane)).unwrap()).collect(),
        }
    }

    fn losses(&self, case: &str) -> Losses {
        let loss = |name: &str| values(&self.tensors[&format!("{case}/{name}")])[0];
        Losses {
            objectness: loss("loss_objectness"),
            rpn_box_reg: loss("loss_rpn_box_reg"),
            classifier: loss("loss_classifier"),
            box_reg: loss("loss_box_reg"),
            mask: Some(loss("loss_mask")),
        }
    }
}

/// Chooses what the reference chose, after checking that it was offered the same.
struct ReferenceSampler<'a> {
    reference: &'a Reference,
    case: &'a str,
}

impl Sampler for ReferenceSampler<'_> {
    fn sample(
        &mut self,
        stage: Stage,
        image: usize,
        candidates: Candidates,
        params: &SampleParams,
    ) -> Result<Candidates> {
        let stage = match stage {
            Stage::Rpn => "rpn",
            Stage::Roi => "roi",
        };
        let chosen = |kind: &str| -> Vec<u32> {
            let key = format!("{}/{stage}.{kind}.{image}", self.case);
            self.reference.tensors[&key].to_vec1().unwrap()
        };
        let chosen = Candidates { positives: chosen("positives"), negatives: chosen("negatives") };
        let counts = (chosen.positives.len(), chosen.negatives.len());
        assert_eq!(params.counts(&candidates), counts, "{stage} {image}");
        Ok(chosen)
    }
}

fn compare(reference: &Reference, case: &str) -> (Network, Losses, Gradients) {
    let network = reference.network(5);
    let mut sampler = ReferenceSampler { reference, case };
    let evaluated = network.evaluate(&reference.batch(case), &mut sampler).unwrap();
    let losses = evaluated.losses;
    for ((name, found), (_, expected)) in losses.named().zip(reference.losses(case).named()) {
        let difference = (found - expected).abs();
        assert!(difference <= LOSS_TOLERANCE * expected, "{case} {name}: {found} {expected}");
    }
    let gradients = evaluated.gradients(&network.parameters().trainable()).unwrap();
    (network, losses, gradients)
}

#[track_caller]
fn check_gradients(reference: &Reference, case: &str, gradients: &Gradients) {
    let prefix = format!("{case}/grad.");
    let mut faults = Vec::new();
    let expected: Vec<(&str, &Tensor)> = reference
        .tensors
        .iter()
        .filter_map(|(key, tensor)| Some((key.strip_prefix(&prefix)?, tensor)))
        .collect();
    assert_eq!(expected.len(), gradients.names().len());
    for (name, expected) in expected {
        let found = gradients.get(name).unwrap().unwrap_or_else(|| panic!("no gradient of {name}"));
        let difference = largest_difference(&found, expected);
        let largest = largest_value(expected);
        assert!(largest > 0.0, "{name} has a gradient of zeros");
        let noise = values(&reference.tensors[&format!("{case}/noise.{name}")])[0];
        let tolerance = GRADIENT_TOLERANCE.max(TIMES_NOISE * noise);
        if difference > tolerance * largest {
            faults.push(format!("{name}: {difference} of {largest}"));
        }
    }
    assert!(faults.is_empty(), "{case}: {} gradients differ:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn losses_and_gradients_are_the_references() {
    let reference = Reference::load("tiny_r18");
    let (_, _, gradients) = compare(&reference, "objects");
    check_gradients(&reference, "objects", &gradients);
}

#[test]
fn an_image_without_objects_counts_as_background() {
    let reference = Reference::load("tiny_r18");
    let (_, _, gradients) = compare(&reference, "one_empty");
    check_gradients(&reference, "one_empty", &gradients);
}

#[test]
fn a_batch_without_objects_costs_no_boxes_and_no_masks() {
    let reference = Reference::load("tiny_r18");
    let (_, losses, gradients) = compare(&reference, "all_empty");
    assert_eq!([losses.rpn_box_reg, losses.box_reg, losses.mask.unwrap()], [0.0; 3]);
    assert!(losses.objectness > 0.0 && losses.classifier > 0.0);
    for name in ["roi_heads.mask_predictor.mask_fcn_logits.weight", "rpn.head.bbox_pred.weight"] {
        assert_eq!(largest_value(&gradients.get(name).unwrap().unwrap()), 0.0, "{name}");
    }
    let name = "roi_heads.box_predictor.cls_score.weight";
    assert!(largest_value(&gradients.get(name).unwrap().unwrap()) > 0.0);
}

/// The objects themselves are among the proposals, so the heads always have something to learn from.
#[test]
fn a_network_that_proposes_nothing_learns_from_the_objects() {
    let reference = Reference::load("tiny_r18");
    let network = reference.network_with(5, |config| config.rpn.min_box_side = 1e4);
    let mut sampler = RandomSampler::new(1, 0);
    let evaluated = network.evaluate(&reference.batch("one_empty"), &mut sampler).unwrap();
    let losses = evaluated.losses;
    assert!(losses.classifier > 0.0 && losses.box_reg > 0.0 && losses.mask.unwrap() > 0.0);
    let gradients = evaluated.gradients(&network.parameters().trainable()).unwrap();
    assert!(gradients.norm().unwrap().is_finite());
    // Neither proposals nor objects: the heads see nothing.
    let evaluated = network.evaluate(&reference.batch("all_empty"), &mut sampler).unwrap();
    let losses = evaluated.losses;
    assert_eq!([losses.classifier, losses.box_reg, losses.mask.unwrap()], [0.0; 3]);
    let gradients = evaluated.gradients(&network.parameters().trainable()).unwrap();
    assert!(losses.objectness > 0.0 && gradients.norm().unwrap() > 0.0);
}

/// A validation loss changes nothing and repeats.
#[test]
fn evaluating_leaves_the_weights_alone() {
    let reference = Reference::load("tiny_r18");
    let network = reference.network(5);
    let before: Vec<Vec<f32>> =
        network.parameters().all().iter().map(|p| values(p.var.as_tensor())).collect();
    let losses = || {
        let batch = reference.batch("objects");
        network.evaluate(&batch, &mut RandomSampler::new(2, 0)).unwrap().losses
    };
    assert_eq!(losses(), losses());
    let after = network.parameters().all();
    assert!(after.iter().zip(before).all(|(p, before)| values(p.var.as_tensor()) == before));
}

/// Batch norms use the statistics of the batch, and move the running ones.
#[test]
fn batch_norms_train_as_the_references() {
    let reference = Reference::load("tiny_r50_v2");
    let (network, _, gradients) = compare(&reference, "objects");
    check_gradients(&reference, "objects", &gradients);
    let mut statistics = 0;
    for (key, expected) in &reference.tensors {
        let Some(name) = key.strip_prefix("objects/after.") else { continue };
        let found = network.parameters().get(name).unwrap();
        let difference = largest_difference(found.var.as_tensor(), expected);
        assert!(difference <= 1e-4 * largest_value(expected).max(0.1), "{name}: {difference}");
        statistics += 1;
    }
    assert!(statistics > 100, "{statistics}");
}

/// Frozen parameters get no gradient, and the others the same as before.
#[test]
fn freezing_changes_no_other_gradient() {
    let reference = Reference::load("tiny_r18");
    let gradients = |stages| {
        let network = reference.network(stages);
        let mut sampler = ReferenceSampler { reference: &reference, case: "objects" };
        let evaluated = network.evaluate(&reference.batch("objects"), &mut sampler).unwrap();
        evaluated.gradients(&network.parameters().trainable()).unwrap()
    };
    let (all, some) = (gradients(5), gradients(3));
    assert!(some.names().iter().all(|name| !name.starts_with("backbone.body.conv1")));
    assert!(some.names().len() < all.names().len());
    for name in some.names() {
        let (a, b) = (all.get(name).unwrap().unwrap(), some.get(name).unwrap().unwrap());
        assert!(largest_difference(&a, &b) <= 1e-5 * largest_value(&a), "{name}");
    }
}

#[test]
fn steps_repeat_bit_for_bit() {
    let reference = Reference::load("tiny_r18");
    let run = |step| {
        let network = reference.network(3);
        let mut sampler = RandomSampler::new(9, step);
        let evaluated = network.evaluate(&reference.batch("objects"), &mut sampler).unwrap();
        let losses = evaluated.losses;
        (losses, evaluated.gradients(&network.parameters().trainable()).unwrap())
    };
    let ((losses, gradients), (again, same)) = (run(4), run(4));
    assert_eq!(losses, again);
    for name in gradients.names() {
        let (a, b) = (gradients.get(name).unwrap().unwrap(), same.get(name).unwrap().unwrap());
        assert_eq!(largest_difference(&a, &b), 0.0, "{name}");
    }
    assert_ne!(losses, run(5).0);
}

fn message(result: Result<impl Sized>) -> String {
    result.err().unwrap().to_string()
}

#[test]
fn what_cannot_be_learned_from_is_refused_before_any_step() {
    let reference = Reference::load("tiny_r18");
    let network = reference.network(3);
    let mut sampler = RandomSampler::new(0, 0);
    let batch = reference.batch("objects");
    let mut broken = batch.clone();
    broken.targets[1].boxes[0] = BoxXyxy { x1: 10.0, y1: 10.0, x2: 10.0, y2: 20.0 };
    let text = message(network.evaluate(&broken, &mut sampler));
    assert!(text.contains("image 1") && text.contains("boxes[0]"), "{text}");
    let mut broken = batch.clone();
    broken.targets[0].labels[2] = 5;
    let text = message(network.evaluate(&broken, &mut sampler));
    assert!(text.contains("labels[2]") && text.contains("5 classes"), "{text}");
    let mut broken = batch.clone();
    broken.targets[0].masks.clear();
    assert!(message(network.evaluate(&broken, &mut sampler)).contains("masks"));
    let mut broken = batch;
    broken.targets.pop();
    let text = message(network.evaluate(&broken, &mut sampler));
    assert!(text.contains("2 images and 1 targets"), "{text}");
    let text = message(network.evaluate(&Batch::default(), &mut sampler));
    assert!(text.contains("at least one image"), "{text}");
}

#[test]
fn a_diverged_network_is_reported_with_its_images() {
    let reference = Reference::load("tiny_r18");
    let network = reference.network(3);
    let bias = network.parameters().get("roi_heads.box_predictor.cls_score.bias").unwrap();
    let infinite = Tensor::new(&[f32::INFINITY; 5], &Device::Cpu).unwrap();
    bias.var.set(&infinite).unwrap();
    let mut batch = reference.batch("objects");
    batch.targets[0].image_id = 4711;
    let error = network.evaluate(&batch, &mut RandomSampler::new(0, 0)).err().unwrap();
    let text = error.to_string();
    assert!(matches!(error, Error::NonFinite { .. }));
    assert!(text.contains("4711") && text.contains("loss_classifier NaN"), "{text}");
}
