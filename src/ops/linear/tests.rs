use candle_core::{DType, Device, Tensor, Var};

use super::*;
use crate::ops::support::testing::{
    Random, SMALL_STEP, assert_close_relative, assert_gradients, exact, values,
};

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
        for activation in Activation::ALL {
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
                let prepared = PreparedLinear::for_isa(isa, 1, &weight, &bias).unwrap();
                let found = linear(&input, &prepared, activation).unwrap();
                assert_close_relative(&found, &expected, TOLERANCE);
            }
        }
    }
}

/// Weights whose columns run over channels first, on features whose channels are last.
#[test]
fn weights_over_pooled_features_are_read_in_another_order() {
    for (cells, channels, outputs) in [(1, 7, 5), (9, 1, 3), (6, 5, 33), (49, 12, 40)] {
        let mut random = Random::new(5);
        let weight = random.tensor(&[outputs, channels * cells]);
        let bias = random.tensor(&[outputs]);
        let input = random.tensor(&[15, cells * channels]);
        let reordered = weight.reshape((outputs, channels, cells)).unwrap().transpose(1, 2);
        let reordered = reordered.unwrap().reshape((outputs, cells * channels)).unwrap();
        for dtype in [DType::F32, DType::BF16] {
            let [input, weight, reordered] =
                [&input, &weight, &reordered].map(|tensor| tensor.to_dtype(dtype).unwrap());
            for isa in Isa::available() {
                let [found, expected] =
                    [(cells, &weight), (1, &reordered)].map(|(cells, weight)| {
                        let prepared = PreparedLinear::for_isa(isa, cells, weight, &bias).unwrap();
                        linear(&input, &prepared, Activation::None).unwrap()
                    });
                assert_eq!(
                    found.to_dtype(DType::F32).unwrap().to_vec2::<f32>().unwrap(),
                    expected.to_dtype(DType::F32).unwrap().to_vec2::<f32>().unwrap(),
                );
            }
        }
    }
    let (weight, bias) =
        (Random::new(5).tensor(&[2, 10]), Tensor::zeros(2, DType::F32, &Device::Cpu).unwrap());
    for cells in [0, 3] {
        assert!(PreparedLinear::over_pooled(&weight, cells, &bias).is_err(), "{cells} cells");
    }
}

/// Sums are in f32 whatever goes in, so only the numbers that go in and out are rounded.
#[test]
fn bf16_agrees_with_f32_on_the_same_numbers() {
    for [rows, inputs, outputs] in [[1, 1, 1], [29, 257, 33], [130, 2101, 70], [14, 64, 32]] {
        let mut random = Random::new(47);
        let input = random.tensor(&[rows, inputs]).to_dtype(DType::BF16).unwrap();
        let weight = random.tensor(&[outputs, inputs]).to_dtype(DType::BF16).unwrap();
        let bias = random.tensor(&[outputs]);
        let wide = PreparedLinear::new(&weight.to_dtype(DType::F32).unwrap(), &bias).unwrap();
        let expected =
            linear(&input.to_dtype(DType::F32).unwrap(), &wide, Activation::Relu).unwrap();
        for isa in Isa::available() {
            let prepared = PreparedLinear::for_isa(isa, 1, &weight, &bias).unwrap();
            let found = linear(&input, &prepared, Activation::Relu).unwrap();
            assert_eq!(found.dtype(), DType::BF16);
            assert_close_relative(&found, &expected, 1.0 / 256.0);
            let prepared = prepared.with_output(DType::F32);
            let found = linear(&input, &prepared, Activation::Relu).unwrap();
            assert_eq!(found.dtype(), DType::F32);
            assert_close_relative(&found, &expected, TOLERANCE);
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

#[test]
fn gradients_are_those_of_the_definition() {
    for [rows, inputs, outputs] in [[1, 1, 1], [5, 7, 3], [1, 40, 33], [17, 6, 70]] {
        let mut random = Random::new(61);
        let tensors = [
            random.tensor(&[rows, inputs]),
            random.tensor(&[outputs, inputs]),
            random.tensor(&[outputs]),
        ];
        for activation in Activation::ALL {
            assert_gradients(
                &tensors,
                SMALL_STEP,
                |t| {
                    let weights = TrainableLinear::new(&t[1], &t[2]).unwrap();
                    linear_trainable(&t[0], &weights, activation).unwrap()
                },
                |t| reference::linear_exact(&t[0], &t[1], &t[2], inputs, activation),
            );
            let (weight, bias) = (&tensors[1], &tensors[2]);
            let prepared = PreparedLinear::new(weight, bias).unwrap();
            let (weight, bias) = (exact(&values(weight)), exact(&values(bias)));
            assert_gradients(
                &tensors[..1],
                SMALL_STEP,
                |t| linear(&t[0], &prepared, activation).unwrap(),
                |t| reference::linear_exact(&t[0], &weight, &bias, inputs, activation),
            );
        }
    }
}

#[test]
fn no_rows_give_gradients_of_zeros() {
    let weight = Var::ones((3, 2), DType::F32, &Device::Cpu).unwrap();
    let bias = Var::zeros(3, DType::F32, &Device::Cpu).unwrap();
    let input = Tensor::zeros((0, 2), DType::F32, &Device::Cpu).unwrap();
    let weights = TrainableLinear::new(&weight, &bias).unwrap();
    let output = linear_trainable(&input, &weights, Activation::Relu).unwrap();
    let gradients = output.sum_all().unwrap().backward().unwrap();
    assert_eq!(values(gradients.get(weight.as_tensor()).unwrap()), [0.0; 6]);
    assert_eq!(values(gradients.get(bias.as_tensor()).unwrap()), [0.0; 3]);
}
