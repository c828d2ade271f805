//! Outputs and gradients of torch, in torch's order of axes.

use std::collections::HashMap;

use candle_core::Var;

use super::*;
use crate::ops::support::testing::fixture;

struct Fixture(HashMap<String, Tensor>);

impl Fixture {
    fn get(&self, case: &str, name: &str) -> Tensor {
        self.0[&format!("{case}/{name}")].clone()
    }

    /// `[N, C, H, W]` as `[N, H, W, C]`.
    fn channels_last(&self, case: &str, name: &str) -> Tensor {
        self.get(case, name).permute((0, 2, 3, 1)).unwrap().contiguous().unwrap()
    }
}

#[test]
fn convolutions_in_parts_are_those_of_torch() {
    let file = Fixture(fixture("convs.safetensors"));
    let relu = Activation::Relu;
    for (name, stride, padding, groups, dilation, activation) in [
        ("depthwise_3", 1, 1, 20, 1, Activation::HardSwish),
        ("depthwise_3_stride", 2, 1, 18, 1, Activation::Relu6),
        ("depthwise_5", 1, 2, 9, 1, relu),
        ("depthwise_5_stride", 2, 2, 6, 1, Activation::HardSwish),
        ("grouped", 1, 1, 8, 1, relu),
        ("grouped_stride", 2, 1, 3, 1, Activation::None),
        ("dilated", 1, 6, 1, 6, relu),
        ("dilated_stride", 2, 2, 1, 2, Activation::HardSigmoid),
        ("all", 2, 3, 4, 2, Activation::HardSwish),
    ] {
        let case = format!("conv/{name}");
        let params = Conv2dParams::new(stride, padding).with_groups(groups).with_dilation(dilation);
        let variable = |tensor: Tensor| Var::from_tensor(&tensor).unwrap();
        let input = variable(file.channels_last(&case, "input"));
        let weight = variable(file.get(&case, "weight"));
        let bias = variable(file.get(&case, "bias"));
        let expected = file.channels_last(&case, "output");
        let prepared = PreparedConv2d::new(&weight, &bias, params).unwrap();
        let found = conv2d(&input.detach(), &prepared, None, activation).unwrap();
        assert_close_relative(&found, &expected, TOLERANCE);
        let weights = TrainableConv2d::new(&weight, None, &bias, params).unwrap();
        let output = conv2d_trainable(&input, &weights, None, activation).unwrap();
        assert_close_relative(&output, &expected, TOLERANCE);
        let sum = (output * file.channels_last(&case, "weights")).unwrap().sum_all().unwrap();
        let gradients = sum.backward().unwrap();
        for (variable, expected) in [
            (&input, file.channels_last(&case, "input.grad")),
            (&weight, file.get(&case, "weight.grad")),
            (&bias, file.get(&case, "bias.grad")),
        ] {
            assert_close_relative(gradients.get(variable).unwrap(), &expected, TOLERANCE);
        }
    }
}

/// Numbers on all corners among them, through a filter of one.
#[test]
fn activations_are_those_of_torch() {
    let file = Fixture(fixture("convs.safetensors"));
    let weight = Tensor::ones((1, 1, 1, 1), DType::F32, &Device::Cpu).unwrap();
    let bias = Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap();
    let weights = TrainableConv2d::new(&weight, None, &bias, Conv2dParams::new(1, 0)).unwrap();
    let prepared = PreparedConv2d::new(&weight, &bias, Conv2dParams::new(1, 0)).unwrap();
    let names = ["none", "relu", "relu6", "hard_sigmoid", "hard_swish"];
    for (name, activation) in names.into_iter().zip(Activation::ALL) {
        let case = format!("activation/{name}");
        let map = |name: &str| file.get(&case, name).reshape((1, 1, (), 1)).unwrap();
        let input = Var::from_tensor(&map("input")).unwrap();
        for output in [
            conv2d(&input.detach(), &prepared, None, activation).unwrap(),
            conv2d(&input, &prepared, None, activation).unwrap(),
            conv2d_trainable(&input, &weights, None, activation).unwrap(),
        ] {
            assert_close_relative(&output, &map("output"), 1e-6);
            if output.track_op() {
                let sum = (output * map("weights")).unwrap().sum_all().unwrap();
                let gradients = sum.backward().unwrap();
                assert_close_relative(gradients.get(&input).unwrap(), &map("input.grad"), 1e-6);
            }
        }
    }
}
