use candle_core::{DType, Device, Tensor, Var};

use super::*;
use crate::ops::support::testing::{
    Random, assert_close, assert_gradients, exact, fixture, rounded, values,
};

fn params(kernel: usize, stride: usize, padding: usize) -> MaxPool2dParams {
    MaxPool2dParams { kernel, stride, padding, rounding: Rounding::Down }
}

fn rounded_up(kernel: usize, stride: usize, padding: usize) -> MaxPool2dParams {
    MaxPool2dParams { rounding: Rounding::Up, ..params(kernel, stride, padding) }
}

#[track_caller]
fn check(input: &Tensor, params: &MaxPool2dParams) {
    let found = max_pool2d(input, params).unwrap();
    let dims = input.dims().try_into().unwrap();
    let expected = reference::max_pool2d(&values(input), dims, params);
    let expected = Tensor::from_vec(expected, found.dims(), &Device::Cpu).unwrap();
    assert_close(&found, &expected, 0.0);
}

#[test]
fn agrees_with_the_definition() {
    let mut random = Random::new(17);
    for dims in [[0, 4, 5, 3], [1, 1, 1, 1], [2, 9, 12, 5], [1, 23, 16, 64], [3, 7, 30, 19]] {
        let input = random.tensor(&dims);
        for params in [params(3, 2, 1), params(1, 2, 0), params(2, 1, 1), params(3, 1, 1)] {
            check(&input, &params);
        }
        for params in [rounded_up(3, 2, 1), rounded_up(2, 2, 0), rounded_up(1, 3, 0)] {
            check(&input, &params);
        }
    }
}

#[test]
fn rounding_up_adds_a_window_that_starts_inside() {
    let random = Random::new(21);
    let sides = |side: usize, params: MaxPool2dParams| {
        let pooled = max_pool2d(&random.clone().tensor(&[1, side, side + 1, 2]), &params).unwrap();
        (pooled.dim(1).unwrap(), pooled.dim(2).unwrap())
    };
    // VGG16's third pool on 300 pixels.
    assert_eq!(sides(75, rounded_up(2, 2, 0)), (38, 38));
    assert_eq!(sides(75, params(2, 2, 0)), (37, 38));
    // A fourth window of seven rows would start behind them.
    assert_eq!(sides(7, rounded_up(2, 4, 1)), (2, 3));
    // Larger than the input.
    assert_eq!(sides(1, rounded_up(2, 2, 0)), (1, 1));
    let tensors = fixture("norms.safetensors");
    for (case, params) in [("vgg", rounded_up(2, 2, 0)), ("padded", rounded_up(3, 2, 1))] {
        let get = |what: &str| &tensors[&format!("max_pool2d/{case}/{what}")];
        let input = Var::from_tensor(get("input")).unwrap();
        let output = max_pool2d(&input, &params).unwrap();
        assert_close(&output, get("output"), 0.0);
        let loss = (output * get("weights")).unwrap().sum_all().unwrap();
        let gradients = loss.backward().unwrap();
        assert_close(gradients.get(&input).unwrap(), get("of_input"), 1e-6);
    }
}

#[test]
fn padding_never_wins_and_nan_always_does() {
    let mut random = Random::new(19);
    let negative = (random.tensor(&[1, 6, 7, 3]) - 2.0).unwrap();
    check(&negative, &params(3, 2, 1));
    let mut raw = values(&negative);
    raw[3 * 9 + 1] = f32::NAN;
    raw[3 * 20 + 2] = f32::NEG_INFINITY;
    raw[0] = f32::INFINITY;
    let damaged = Tensor::from_vec(raw, (1, 6, 7, 3), &Device::Cpu).unwrap();
    check(&damaged, &params(3, 2, 1));
    let pooled = max_pool2d(&damaged, &params(3, 1, 1)).unwrap();
    assert_eq!(values(&pooled).iter().filter(|v| v.is_nan()).count(), 9);
}

#[test]
fn bf16_is_pooled_exactly() {
    let mut random = Random::new(59);
    let input = random.tensor(&[2, 9, 12, 37]).to_dtype(DType::BF16).unwrap();
    let found = max_pool2d(&input, &params(3, 2, 1)).unwrap();
    let expected = max_pool2d(&input.to_dtype(DType::F32).unwrap(), &params(3, 2, 1)).unwrap();
    assert_eq!(found.dtype(), DType::BF16);
    assert_eq!(values(&found), values(&expected));
}

#[test]
fn misfits_are_named() {
    let mut random = Random::new(5);
    let input = random.tensor(&[1, 2, 6, 4]);
    let message = |params| max_pool2d(&input, &params).unwrap_err().to_string();
    assert!(message(params(3, 1, 0)).contains("3×3"));
    assert!(message(params(3, 0, 1)).contains("stride ≥ 1"));
    assert!(message(params(2, 1, 2)).contains("padding ≤"));
    assert!(max_pool2d(&random.tensor(&[2, 6, 4]), &params(1, 2, 0)).is_err());
}

/// Distinct whole numbers, so that a step of a quarter changes no winner.
#[test]
fn gradients_are_those_of_the_definition() {
    for dims in [[1, 1, 1, 1], [2, 5, 4, 3], [1, 7, 6, 2], [1, 2, 9, 4]] {
        let n = dims.iter().product::<usize>();
        let mut random = Random::new(73);
        let mut numbers: Vec<f32> = (0..n).map(|i| i as f32 - 20.0).collect();
        (1..n).for_each(|i| numbers.swap(i, random.below(i + 1)));
        let input = Tensor::from_vec(numbers, &dims, &Device::Cpu).unwrap();
        let down = [params(3, 2, 1), params(1, 2, 0), params(3, 1, 1), params(2, 2, 1)];
        for params in down.into_iter().chain([rounded_up(2, 2, 0), rounded_up(3, 2, 1)]) {
            assert_gradients(
                std::slice::from_ref(&input),
                0.25,
                |t| max_pool2d(&t[0], &params).unwrap(),
                |t| exact(&reference::max_pool2d(&rounded(&t[0]), dims, &params)),
            );
        }
    }
}

/// The reference's rule: the first of equal values, the last of NaNs.
#[test]
fn ties_go_to_the_first() {
    let winner = |numbers: [f32; 4]| {
        let input = Var::from_slice(&numbers, (1, 2, 2, 1), &Device::Cpu).unwrap();
        let pooled = max_pool2d(&input, &params(2, 2, 0)).unwrap();
        let gradients = pooled.sum_all().unwrap().backward().unwrap();
        values(gradients.get(input.as_tensor()).unwrap())
    };
    assert_eq!(winner([5.0, 7.0, 7.0, 7.0]), [0.0, 1.0, 0.0, 0.0]);
    assert_eq!(winner([f32::NAN, 1.0, f32::NAN, 2.0]), [0.0, 0.0, 1.0, 0.0]);
    assert_eq!(winner([f32::NEG_INFINITY; 4]), [1.0, 0.0, 0.0, 0.0]);
}
