//! Whole steps on the narrow models against torchvision's: losses and every gradient, with the reference's samples. See
//! `make_training.py`.
#![cfg(feature = "train")]

mod common;

use candle_core::{Device, Tensor};
use candle_detection::structures::BoxXyxy;
use candle_detection::train::{Batch, Gradients, Losses, Network, RandomSampler};
use candle_detection::{Error, Result};
use common::training::{Reference, ReferenceSampler, check_gradients};
use common::{largest_difference, largest_value, values};

fn of<const N: usize>(losses: &Losses, names: [&str; N]) -> [f32; N] {
    names.map(|name| losses.get(name).unwrap())
}

fn compare(reference: &Reference, case: &str) -> (Network, Losses, Gradients) {
    common::training::compare(reference, case, &Device::Cpu)
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
    assert_eq!(of(&losses, ["loss_rpn_box_reg", "loss_box_reg", "loss_mask"]), [0.0; 3]);
    let others = of(&losses, ["loss_objectness", "loss_classifier"]);
    assert!(others.iter().all(|loss| *loss > 0.0));
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
    let network = reference.network_with(&Device::Cpu, 5, |config| {
        config.architecture.as_rcnn_mut().unwrap().rpn.min_box_side = 1e4;
    });
    let mut sampler = RandomSampler::new(1, 0);
    let evaluated = network.evaluate(&reference.batch("one_empty"), &mut sampler).unwrap();
    let losses = evaluated.losses().unwrap();
    let of_heads = of(&losses, ["loss_classifier", "loss_box_reg", "loss_mask"]);
    assert!(of_heads.iter().all(|loss| *loss > 0.0));
    let gradients = evaluated.gradients(&network.parameters().trainable()).unwrap();
    assert!(gradients.norm().unwrap().is_finite());
    // Neither proposals nor objects: the heads see nothing.
    let evaluated = network.evaluate(&reference.batch("all_empty"), &mut sampler).unwrap();
    let losses = evaluated.losses().unwrap();
    assert_eq!(of(&losses, ["loss_classifier", "loss_box_reg", "loss_mask"]), [0.0; 3]);
    let gradients = evaluated.gradients(&network.parameters().trainable()).unwrap();
    let [objectness] = of(&losses, ["loss_objectness"]);
    assert!(objectness > 0.0 && gradients.norm().unwrap() > 0.0);
}

/// A validation loss changes nothing and repeats.
#[test]
fn evaluating_leaves_the_weights_alone() {
    let reference = Reference::load("tiny_r18");
    let network = reference.network(&Device::Cpu, 5);
    let before: Vec<Vec<f32>> =
        network.parameters().all().iter().map(|p| values(p.var.as_tensor())).collect();
    let losses = || {
        let batch = reference.batch("objects");
        network.evaluate(&batch, &mut RandomSampler::new(2, 0)).unwrap().losses().unwrap()
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
        let network = reference.network(&Device::Cpu, stages);
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

/// Whoever sends gradients away during the pass must not get a part of one.
#[test]
fn every_gradient_is_handed_over_once_and_complete() {
    for (name, case) in
        [("tiny_r18", "objects"), ("tiny_r18", "one_empty"), ("tiny_r50_v2", "objects")]
    {
        let reference = Reference::load(name);
        let network = reference.network(&Device::Cpu, 5);
        let parameters = network.parameters().trainable();
        let evaluate = || {
            let mut sampler = ReferenceSampler { reference: &reference, case };
            network.evaluate(&reference.batch(case), &mut sampler).unwrap()
        };
        let whole = evaluate().gradients(&parameters).unwrap();
        let (sender, received) = std::sync::mpsc::channel();
        let receive = move |place, gradient| {
            sender.send((place, gradient)).unwrap();
            Ok(())
        };
        evaluate().backward(&parameters, receive).unwrap();
        let mut received: Vec<(usize, Tensor)> = received.into_iter().collect();
        let last = &parameters[received.last().unwrap().0].name;
        assert!(last.starts_with("backbone.body."), "{last}");
        received.sort_by_key(|(place, _)| *place);
        assert_eq!(received.len(), parameters.len(), "{name}");
        for ((place, gradient), parameter) in received.iter().zip(&parameters) {
            assert_eq!(parameters[*place].name, parameter.name);
            let expected = whole.get(&parameter.name).unwrap().unwrap();
            assert_eq!(gradient.dims(), parameter.var.dims());
            assert_eq!(values(gradient), values(&expected), "{}", parameter.name);
        }
    }
}

#[test]
fn steps_repeat_bit_for_bit() {
    let reference = Reference::load("tiny_r18");
    let run = |step| {
        let network = reference.network(&Device::Cpu, 3);
        let mut sampler = RandomSampler::new(9, step);
        let evaluated = network.evaluate(&reference.batch("objects"), &mut sampler).unwrap();
        let losses = evaluated.losses().unwrap();
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
    let network = reference.network(&Device::Cpu, 3);
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
    broken.targets[0].labels[2] = 0;
    let text = message(network.evaluate(&broken, &mut sampler));
    assert!(text.contains("labels[2]") && text.contains("is 0"), "{text}");
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
    let network = reference.network(&Device::Cpu, 3);
    let bias = network.parameters().get("roi_heads.box_predictor.cls_score.bias").unwrap();
    let infinite = Tensor::new(&[f32::INFINITY; 5], &Device::Cpu).unwrap();
    bias.var.set(&infinite).unwrap();
    let mut batch = reference.batch("objects");
    batch.targets[0].image_id = 4711;
    let evaluated = network.evaluate(&batch, &mut RandomSampler::new(0, 0)).unwrap();
    let error = evaluated.losses().unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::NonFinite { .. }));
    assert!(text.contains("4711") && text.contains("loss_classifier NaN"), "{text}");
}
