use candle_core::{Device, Tensor};

use super::*;
use crate::ops::support::testing::{Random, assert_close_relative, values};

/// Tolerance relative to the largest output: sums of up to 2100 terms.
const TOLERANCE: f32 = 2e-5;

#[test]
fn agrees_with_the_definition() {
    for [rows, inputs, outputs] in [
        [0, 5, 3],
        [1, 1, 1],
        [1, 300, 91],
        [3, 17, 364],
        [15, 64, 32],
        [29, 257, 33],
        [130, 2100, 70],
        [401, 31, 5],
    ] {
        for activation in [Activation::None, Activation::Relu] {
            let mut random = Random::new(11);
            let input = random.tensor(&[rows, inputs]);
            let weight = random.tensor(&[outputs, inputs]);
            let bias = random.tensor(&[outputs]);
            let expected = reference::linear(
                &values(&input),
                &values(&weight),
                &values(&bias),
                inputs,
                activation,
            );
            let expected = Tensor::from_vec(expected, (rows, outputs), &Device::Cpu).unwrap();
            for isa in Isa::available() {
                let prepared = PreparedLinear::for_isa(isa, &weight, &bias).unwrap();
                let found = linear(&input, &prepared, activation).unwrap();
                assert_close_relative(&found, &expected, TOLERANCE);
            }
        }
    }
}

#[test]
fn misfits_are_named() {
    let mut random = Random::new(5);
    let (weight, bias) = (random.tensor(&[6, 4]), random.tensor(&[6]));
    let prepared = PreparedLinear::new(&weight, &bias).unwrap();
    let message =
        |input: &Tensor| linear(input, &prepared, Activation::None).unwrap_err().to_string();
    assert!(message(&random.tensor(&[2, 5])).contains("[R, 4]"));
    assert!(message(&random.tensor(&[4])).contains("[R, 4]"));
    assert!(message(&random.tensor(&[2, 4]).to_dtype(DType::F64).unwrap()).contains("F64"));
    assert!(PreparedLinear::new(&weight, &random.tensor(&[4])).is_err());
    assert!(PreparedLinear::new(&bias, &bias).is_err());
}
