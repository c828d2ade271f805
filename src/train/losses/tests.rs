use std::collections::HashMap;

use candle_core::{Device, Tensor, Var};

use super::*;
use crate::ops::support::testing::{Random, fixture, values};
use crate::structures::{ImageSize, Rle};
use crate::train::mask_targets::ObjectMask;
use crate::train::{AssignParams, Match, Unfound, assign, encode};

const VALUE_TOLERANCE: f32 = 1e-5;
const GRADIENT_TOLERANCE: f32 = 1e-5;

struct Reference(HashMap<String, Tensor>);

impl Reference {
    fn load() -> Self {
        Self(fixture("train_losses.safetensors"))
    }

    fn values(&self, key: &str) -> Vec<f32> {
        values(&self.0[key])
    }

    fn rows(&self, key: &str) -> Vec<[f32; 4]> {
        self.values(key).as_chunks::<4>().0.to_vec()
    }

    fn whole(&self, key: &str) -> Vec<u32> {
        self.0[key].flatten_all().unwrap().to_vec1().unwrap()
    }

    #[track_caller]
    fn check(&self, loss: &Loss, value: &str, gradient: &str) {
        let expected = self.values(value)[0];
        assert!((loss.value - expected).abs() <= VALUE_TOLERANCE * expected, "{loss:?} {expected}");
        let expected = self.values(gradient);
        let largest = expected.iter().fold(0f32, |m, v| m.max(v.abs()));
        assert_eq!(loss.gradient.len(), expected.len());
        for (index, (found, expected)) in loss.gradient.iter().zip(expected).enumerate() {
            let difference = (found - expected).abs();
            assert!(difference <= GRADIENT_TOLERANCE * largest, "{index}: {found} {expected}");
        }
    }
}

#[test]
fn matches_are_the_references() {
    let reference = Reference::load();
    let (boxes, objects) = (reference.rows("match/boxes"), reference.rows("match/objects"));
    for (name, positive_iou, negative_iou, unfound) in
        [("rpn", 0.7, 0.3, Unfound::GivenToBestBoxes), ("roi", 0.5, 0.5, Unfound::Dropped)]
    {
        let params = AssignParams { positive_iou, negative_iou, unfound };
        let found: Vec<u32> = assign(&boxes, &objects, &params)
            .into_iter()
            .map(|found| match found {
                Match::Ignored => 0,
                Match::Background => 1,
                Match::Object(index) => index + 2,
            })
            .collect();
        let expected = reference.whole(&format!("match/{name}"));
        assert_eq!(found, expected, "{name}");
        assert!(expected.contains(&1) && expected.iter().any(|found| *found > 1));
        assert_eq!(expected.contains(&0), name == "rpn");
    }
}

#[test]
fn deltas_are_the_references() {
    let reference = Reference::load();
    let (boxes, objects) = (reference.rows("match/boxes"), reference.rows("match/objects"));
    for (index, expected) in reference.rows("match/encoded").iter().enumerate() {
        let found = encode(objects[index % objects.len()], boxes[index], [10.0, 10.0, 5.0, 5.0]);
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= 1e-5 * expected.abs().max(1.0), "{index}");
        }
    }
}

#[test]
fn losses_of_the_region_proposal_network_are_the_references() {
    let reference = Reference::load();
    let labels: Vec<Objectness> = reference
        .whole("rpn/labels")
        .iter()
        .map(|label| if *label == 1 { Objectness::Object } else { Objectness::Background })
        .collect();
    let loss = objectness_loss(&reference.values("rpn/logits"), &labels).unwrap();
    reference.check(&loss, "rpn/objectness", "rpn/logits.grad");
    let (deltas, targets) = (reference.rows("rpn/deltas"), reference.rows("rpn/targets"));
    let loss = rpn_box_loss(&deltas, &targets, labels.len()).unwrap();
    reference.check(&loss, "rpn/box", "rpn/deltas.grad");
}

#[test]
fn losses_of_the_heads_are_the_references() {
    let reference = Reference::load();
    let labels = reference.whole("roi/labels");
    let loss = classifier_loss(&reference.values("roi/logits"), 6, &labels).unwrap();
    reference.check(&loss, "roi/classifier", "roi/logits.grad");
    let deltas = reference.values("roi/deltas");
    let loss = box_loss(&deltas, 6, &labels, &reference.rows("roi/targets")).unwrap();
    reference.check(&loss, "roi/box", "roi/deltas.grad");
}

/// Bitmaps as they come, row by row.
fn outlines(reference: &Reference) -> Vec<Rle> {
    let (n, height, width) = reference.0["mask/bitmaps"].dims3().unwrap();
    let bytes: Vec<u8> = reference.0["mask/bitmaps"].flatten_all().unwrap().to_vec1().unwrap();
    let planes = bytes.chunks_exact(height * width);
    let image = |plane: &[u8]| {
        image::GrayImage::from_vec(width as u32, height as u32, plane.to_vec()).unwrap()
    };
    let masks: Vec<Rle> = planes.map(|plane| Rle::from_bitmap(&image(plane)).unwrap()).collect();
    assert_eq!(masks.len(), n);
    masks
}

#[test]
fn mask_targets_are_the_references() {
    let reference = Reference::load();
    let masks = outlines(&reference);
    for case in ["larger", "smaller", "same", "double"] {
        let size = reference.whole(&format!("mask/{case}/size"));
        let resized = ImageSize { height: size[0] as usize, width: size[1] as usize };
        let expected = reference.values(&format!("mask/{case}/targets"));
        let rois = reference.rows(&format!("mask/{case}/rois"));
        for (index, (roi, expected)) in rois.iter().zip(expected.chunks_exact(784)).enumerate() {
            let mask = ObjectMask::new(&masks[index % masks.len()], resized).unwrap();
            for (found, expected) in mask.pool(*roi, 28).iter().zip(expected) {
                assert!((found - expected).abs() < 1e-5, "{case} {index}: {found} {expected}");
            }
        }
    }
}

#[test]
fn the_loss_of_masks_is_the_references() {
    let reference = Reference::load();
    let targets = reference.values("mask/larger/targets");
    let targets: Vec<_> = targets.chunks_exact(784).map(<[f32]>::to_vec).collect();
    let logits = reference.values("mask/logits");
    let loss = mask_loss(&logits, 784, &targets).unwrap();
    reference.check(&loss, "mask/loss", "mask/logits.grad");
}

/// What torchvision gives for images without objects, and 0 where it gives NaN.
#[test]
fn nothing_costs_nothing() {
    let nothing = |loss: Result<Loss>, predictions: usize| {
        assert_eq!(loss.unwrap(), Loss { value: 0.0, gradient: vec![0.0; predictions] });
    };
    nothing(objectness_loss(&[], &[]), 0);
    nothing(rpn_box_loss(&[], &[], 256), 0);
    nothing(rpn_box_loss(&[], &[], 0), 0);
    nothing(classifier_loss(&[], 5, &[]), 0);
    nothing(box_loss(&[1.0; 16], 2, &[0, 0], &[[3.0; 4]; 2]), 16);
    nothing(box_loss(&[], 2, &[], &[]), 0);
    nothing(mask_loss(&[], 4, &[]), 0);
    let background = classifier_loss(&[1.0, 2.0], 2, &[0]).unwrap();
    assert!(background.value > 0.0 && background.value.is_finite());
    let background = objectness_loss(&[3.0], &[Objectness::Background]).unwrap();
    assert!(background.value > 0.0 && background.value.is_finite());
}

#[test]
fn large_logits_stay_finite_and_nan_shows() {
    let labels = [Objectness::Object, Objectness::Background];
    let loss = objectness_loss(&[-1e4, 1e4], &labels).unwrap();
    assert_eq!(loss, Loss { value: 1e4, gradient: vec![-0.5, 0.5] });
    let loss = classifier_loss(&[1e4, -1e4], 2, &[1]).unwrap();
    assert_eq!(loss, Loss { value: 2e4, gradient: vec![1.0, -1.0] });
    assert!(objectness_loss(&[f32::NAN], &labels[..1]).unwrap().value.is_nan());
    assert!(objectness_loss(&[f32::NAN], &labels[1..]).unwrap().value.is_nan());
    assert!(classifier_loss(&[f32::NAN, 0.0], 2, &[1]).unwrap().value.is_nan());
    assert!(rpn_box_loss(&[[f32::NAN; 4]], &[[0.0; 4]], 1).unwrap().value.is_nan());
    assert!(mask_loss(&[f32::NAN], 1, &[vec![1.0]]).unwrap().value.is_nan());
}

#[test]
fn lengths_and_labels_are_checked() {
    let messages = [
        (objectness_loss(&[1.0], &[]), "logits"),
        (rpn_box_loss(&[[1.0; 4]], &[], 1), "deltas"),
        (classifier_loss(&[1.0], 2, &[0]), "class_logits"),
        (classifier_loss(&[1.0, 1.0], 2, &[2]), "classes below 2"),
        (box_loss(&[1.0; 8], 2, &[1], &[]), "targets"),
        (box_loss(&[1.0; 4], 2, &[1], &[[1.0; 4]]), "box_regression"),
        (mask_loss(&[1.0; 4], 4, &[vec![1.0; 3]]), "mask targets"),
    ];
    for (result, part) in messages {
        let message = result.unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
    let loss = objectness_loss(&[1.0], &[Objectness::Object]).unwrap();
    let prediction = Tensor::zeros(2, candle_core::DType::F32, &Device::Cpu).unwrap();
    assert!(loss.attach(&prediction).unwrap_err().to_string().contains("predictions"));
}

/// The graph multiplies by what follows the loss, and adds up over what uses a prediction.
#[test]
fn gradients_enter_the_graph() {
    let logits = Var::new(&[0.3f32, -2.0, 0.7], &Device::Cpu).unwrap();
    let labels = [Objectness::Object, Objectness::Background, Objectness::Background];
    let loss = objectness_loss(&values(&logits), &labels).unwrap();
    let expected: Vec<f32> = loss.gradient.iter().map(|slope| 3.0 * slope + 1.0).collect();
    let value = loss.value;
    let attached = loss.attach(&logits).unwrap();
    assert_eq!(attached.to_scalar::<f32>().unwrap(), value);
    let total = ((attached * 3.0).unwrap() + logits.sum_all().unwrap()).unwrap();
    let found = values(total.backward().unwrap().get(&logits).unwrap());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
}

/// Each gradient is the slope of its value.
#[test]
fn gradients_are_slopes() {
    let mut random = Random::new(4);
    let mut numbers = |n: usize| -> Vec<f32> { (0..n).map(|_| random.range(-3.0, 3.0)).collect() };
    let labels = [2, 0, 0, 1];
    let targets = numbers(16).as_chunks::<4>().0.to_vec();
    let shares = [vec![0.2, 0.9, 1.0], vec![0.0, 0.5, 0.1]];
    let objects = [Objectness::Object, Objectness::Background, Objectness::Object];
    type Function<'a> = Box<dyn Fn(&[f32]) -> Result<Loss> + 'a>;
    let functions: [(usize, Function<'_>); 5] = [
        (3, Box::new(|x| objectness_loss(x, &objects))),
        (16, Box::new(|x| rpn_box_loss(x.as_chunks().0, &targets, 9))),
        (12, Box::new(|x| classifier_loss(x, 3, &labels))),
        (48, Box::new(|x| box_loss(x, 3, &labels, &targets))),
        (6, Box::new(|x| mask_loss(x, 3, &shares))),
    ];
    for (which, (n, function)) in functions.iter().enumerate() {
        let at = numbers(*n);
        let loss = function(&at).unwrap();
        for index in 0..*n {
            let moved = |by: f32| {
                let mut moved = at.clone();
                moved[index] += by;
                f64::from(function(&moved).unwrap().value)
            };
            let slope = (moved(1e-2) - moved(-1e-2)) / 2e-2;
            let difference = (slope - f64::from(loss.gradient[index])).abs();
            assert!(difference < 2e-4, "loss {which}, {index}: {slope} {}", loss.gradient[index]);
        }
    }
}
