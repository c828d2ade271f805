use candle_core::{Device, Var};

use super::block::SqueezeExcitation;
use super::*;
use crate::ops::support::testing::{assert_close_relative, fixture};

fn config() -> MobileNetV3Config {
    MobileNetV3Config {
        width_mult: 1.0,
        reduced_tail: false,
        norm: Norm::FrozenBatchNorm,
        norm_eps: 1e-5,
        norm_momentum: 0.1,
    }
}

#[test]
fn stages_are_those_of_torchvision() {
    let of = |config: &MobileNetV3Config| {
        let stages = config.stages().into_iter().map(|s| (s.channels, s.stride));
        stages.collect::<Vec<_>>()
    };
    let full = [(16, 2), (24, 4), (40, 8), (80, 16), (160, 32), (960, 32)];
    assert_eq!(of(&config()), full);
    let reduced = MobileNetV3Config { reduced_tail: true, ..config() };
    assert_eq!(of(&reduced)[4..], [(80, 32), (480, 32)]);
    assert_eq!(reduced.blocks()[FIRST_OF_TAIL].expanded, 672);
    assert_eq!(reduced.blocks()[FIRST_OF_TAIL + 1].expanded, 480);
    assert_eq!(config().stage_indices(), [0, 2, 4, 7, 13, 16]);
    assert_eq!(config().blocks()[10].squeeze, Some(120));
}

/// As `torchvision.models._utils._make_divisible`.
#[test]
fn channels_are_rounded_as_torchvision_rounds_them() {
    let found = [1.0, 8.0, 9.6, 10.8, 11.9, 12.0, 18.0, 67.2, 100.8].map(divisible);
    assert_eq!(found, [8, 8, 16, 16, 16, 16, 24, 64, 104]);
}

/// Parts that are frozen, from the last to the first.
#[test]
fn parts_begin_with_blocks_that_halve_the_size() {
    let parts = config().parts();
    let firsts = parts.iter().map(|part| part[0].as_str());
    assert_eq!(firsts.collect::<Vec<_>>(), ["16.", "13.", "7.", "4.", "2.", "0."]);
    assert_eq!(parts[1], ["13.", "14.", "15."]);
    assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), 17);
}

#[test]
fn faults_are_named() {
    let message = |config: MobileNetV3Config| {
        config.validate(&Checks::new("mine.toml").section("body")).unwrap_err().to_string()
    };
    assert!(message(MobileNetV3Config { width_mult: 0.0, ..config() }).contains("width_mult"));
    assert!(message(MobileNetV3Config { norm: Norm::None, ..config() }).contains("body.norm"));
    let message = message(MobileNetV3Config { norm_momentum: 1.5, ..config() });
    assert!(message.contains("norm_momentum"));
}

/// Against torchvision's `SqueezeExcitation`, output and gradients.
#[test]
fn channels_are_weighed_as_torchvision_weighs_them() {
    let tensors = fixture("convs.safetensors");
    let get = |name: &str| tensors[&format!("squeeze/{name}")].clone();
    let map = |name: &str| get(name).permute((0, 2, 3, 1)).unwrap().contiguous().unwrap();
    let names = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"];
    let variables = names.map(|name| (name, Var::from_tensor(&get(name)).unwrap()));
    let by_name = variables.iter().map(|(name, var)| ((*name).to_owned(), var.as_tensor()));
    let by_name = by_name.map(|(name, tensor)| (name, tensor.clone())).collect();
    let weights = VarBuilder::from_tensors(by_name, candle_core::DType::F32, &Device::Cpu);
    let layer = SqueezeExcitation::load(&weights, 12, 8, Initial::BeforeRelu).unwrap();
    let input = Var::from_tensor(&map("input")).unwrap();
    let output = layer.forward(&input).unwrap();
    assert_close_relative(&output, &map("output"), 1e-5);
    let sum = (output * map("weights")).unwrap().sum_all().unwrap();
    let gradients = sum.backward().unwrap();
    assert_close_relative(gradients.get(&input).unwrap(), &map("input.grad"), 1e-5);
    for (name, variable) in &variables {
        let found = gradients.get(variable).unwrap();
        assert_close_relative(found, &get(&format!("{name}.grad")), 1e-5);
    }
}
