//! Training on CUDA: whole steps against torchvision's and the CPU's, updates of the weights, and what a step copies.

use candle_core::{DType, Device, Tensor, Var};
use candle_detection::train::{
    Average, Gradients, Momentum, Optimizer, Parameter, ParameterGroups, ParameterKind, UpdateRule,
};

use super::common::training::{Reference, check_gradients, compare};
use super::common::{largest_difference, largest_value};
use super::counters::{Counts, alone, count};
use super::support::{Random, assert_close, cuda};

/// Of a gradient on the CPU, relative to its largest entry.
const GRADIENT_TOLERANCE: f32 = 1e-3;

fn on_host(tensor: &Tensor) -> Tensor {
    tensor.to_device(&Device::Cpu).unwrap()
}

/// A step on CUDA has the reference's losses and gradients, and the CPU's.
#[track_caller]
fn compare_step(reference: &Reference, case: &str) {
    let (_, losses, gradients) = compare(reference, case, &cuda());
    let (_, expected_losses, expected) = compare(reference, case, &Device::Cpu);
    for ((name, found), (_, expected)) in losses.named().zip(expected_losses.named()) {
        assert!((found - expected).abs() <= 1e-4 * expected, "{case} {name}: {found} {expected}");
    }
    assert_eq!(gradients.names(), expected.names());
    for name in gradients.names() {
        let found = on_host(&gradients.get(name).unwrap().unwrap());
        let expected = expected.get(name).unwrap().unwrap();
        let difference = largest_difference(&found, &expected);
        let largest = largest_value(&expected);
        assert!(
            difference <= GRADIENT_TOLERANCE * largest,
            "{case} {name}: {difference} of {largest}"
        );
    }
    let (found, expected) = (gradients.norm().unwrap(), expected.norm().unwrap());
    assert!((found - expected).abs() <= 1e-4 * expected, "{case}: norm {found} {expected}");
}

#[test]
fn a_step_has_the_losses_and_gradients_of_the_reference() {
    let _alone = alone();
    let reference = Reference::load("tiny_r18");
    for case in ["objects", "one_empty", "all_empty"] {
        compare_step(&reference, case);
    }
}

/// With norms that use the statistics of the batch: gradients within the reference's own noise, statistics too.
#[test]
fn batch_norms_train_as_the_references() {
    let _alone = alone();
    let reference = Reference::load("tiny_r50_v2");
    let (network, _, gradients) = compare(&reference, "objects", &cuda());
    check_gradients(&reference, "objects", &gradients);
    let mut statistics = 0;
    for (key, expected) in &reference.tensors {
        let Some(name) = key.strip_prefix("objects/after.") else { continue };
        let found = network.parameters().get(name).unwrap();
        let difference = largest_difference(&on_host(found.var.as_tensor()), expected);
        assert!(difference <= 1e-4 * largest_value(expected).max(0.1), "{name}: {difference}");
        statistics += 1;
    }
    assert!(statistics > 100, "{statistics}");
}

/// Bit for bit: no sum depends on the order in which threads run.
#[test]
fn steps_repeat() {
    let _alone = alone();
    let reference = Reference::load("tiny_r18");
    let run = || compare(&reference, "objects", &cuda());
    let ((_, losses, gradients), (_, again, same)) = (run(), run());
    assert_eq!(losses, again);
    for name in gradients.names() {
        let (a, b) = (gradients.get(name).unwrap().unwrap(), same.get(name).unwrap().unwrap());
        assert_eq!(largest_difference(&on_host(&a), &on_host(&b)), 0.0, "{name}");
    }
}
