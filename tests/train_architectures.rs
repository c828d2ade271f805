//! A step of training of every architecture against torchvision's, on the narrow models of the fixtures: losses, every
//! gradient, and what norms have learned of the batch. One row each.
#![cfg(feature = "train")]

mod common;

use candle_core::{Device, Tensor};
use candle_detection::train::{Gradients, Network};
use common::training::{GRADIENT_TOLERANCE, Reference, TIMES_NOISE, compare_step};
use common::{fixtures, largest_difference, largest_value, values};

/// Sums of numbers that cancel out leave rounding errors: of a gradient's entries, relative to the largest of all
/// parameters' gradients. Softmax over places takes away any bias, and a norm of one channel that of the convolution
/// before it.
const ROUNDING: f32 = 1e-6;
/// Of running statistics, relative to the largest.
const STATISTICS: f32 = 1e-4;

macro_rules! models {
    ($($name:ident)*) => {
        /// The models that have a test.
        const MODELS: &[&str] = &[$(stringify!($name)),*];

        $(#[test]
        fn $name() {
            compare(stringify!($name));
        })*
    };
}

models! {
    tiny_r18
    tiny_r50_v2
    tiny_retinanet
    tiny_retinanet_v2
    tiny_fcos
    tiny_ssd
    tiny_ssdlite
    tiny_keypointrcnn
    tiny_mobilenet
}

#[test]
fn every_narrow_model_has_a_row() {
    for entry in std::fs::read_dir(fixtures()).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        let name = file.strip_prefix("train_").and_then(|rest| rest.strip_suffix(".safetensors"));
        if let Some(name) = name
            && name.starts_with("tiny_")
        {
            assert!(MODELS.contains(&name), "{name}");
        }
    }
}

fn compare(name: &'static str) {
    let reference = Reference::load(name);
    for case in ["objects", "one_empty", "all_empty"] {
        if !reference.has_case(case) {
            continue;
        }
        let network = reference.network(&Device::Cpu, usize::MAX);
        let (losses, gradients) = compare_step(&network, &reference, case);
        assert_eq!(losses.named().count(), reference.loss_count(case), "{name} {case}: losses");
        compare_gradients(&reference, case, &gradients);
        compare_statistics(&reference, case, &network);
    }
}

/// All gradients that the fixture holds: in the first case those of all parameters.
fn compare_gradients(reference: &Reference, case: &str, gradients: &Gradients) {
    let expected = reference.under(&format!("{case}/grad."));
    if case == "objects" {
        let mut names: Vec<&str> = expected.iter().map(|(name, _)| *name).collect();
        let mut found: Vec<&str> = gradients.names().iter().map(String::as_str).collect();
        names.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, names, "trained parameters");
    }
    let all = expected.iter().map(|(_, gradient)| largest_value(gradient));
    let rounding = ROUNDING * all.fold(0.0, f32::max);
    let mut faults = Vec::new();
    for (name, expected) in expected {
        let found = gradients.get(name).unwrap();
        let found = found.unwrap_or_else(|| Tensor::zeros_like(expected).unwrap());
        let difference = largest_difference(&found, expected);
        let largest = largest_value(expected);
        let noise = values(&reference.tensors[&format!("{case}/noise.{name}")])[0];
        let tolerance = GRADIENT_TOLERANCE.max(TIMES_NOISE * noise) * largest + rounding;
        if difference > tolerance {
            faults.push(format!("{name}: {difference} of {largest}, noise {noise}"));
        }
    }
    let (name, count) = (reference.name, faults.len());
    assert!(faults.is_empty(), "{name} {case}: {count} gradients differ:\n{}", faults.join("\n"));
}

/// The running statistics of norms that learn.
fn compare_statistics(reference: &Reference, case: &str, network: &Network) {
    for (name, expected) in reference.under(&format!("{case}/after.")) {
        let found = network.parameters().get(name).unwrap();
        let difference = largest_difference(found.var.as_tensor(), expected);
        let tolerance = STATISTICS * largest_value(expected).max(0.1);
        assert!(difference <= tolerance, "{case}: {name} differs by {difference}");
    }
}
