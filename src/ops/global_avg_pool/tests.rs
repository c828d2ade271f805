use candle_core::{DType, Device, Tensor};

use super::*;
use crate::ops::support::testing::{
    Random, assert_close, assert_close_relative, assert_gradients, exact, rounded, values,
};

/// By the definition, in f64.
fn means(input: &[f64], [batch, height, width, channels]: [usize; 4]) -> Vec<f64> {
    let pixels = height * width;
    let mean = |image: usize, channel: usize| {
        let values = input[image * pixels * channels + channel..].iter().step_by(channels);
        values.take(pixels).sum::<f64>() / pixels as f64
    };
    (0..batch).flat_map(|image| (0..channels).map(move |channel| mean(image, channel))).collect()
}

#[test]
fn agrees_with_the_definition() {
    let mut random = Random::new(3);
    for dims in [[2, 3, 5, 7], [1, 1, 1, 4], [3, 41, 17, 33], [1, 20, 20, 64], [0, 4, 4, 3]] {
        let input = random.tensor(&dims);
        let expected = rounded(&means(&exact(&values(&input)), dims));
        let expected = Tensor::from_vec(expected, (dims[0], 1, 1, dims[3]), &Device::Cpu).unwrap();
        assert_close(&global_avg_pool(&input).unwrap(), &expected, 1e-6);
        let halves = input.to_dtype(DType::BF16).unwrap();
        let wide = global_avg_pool(&halves.to_dtype(DType::F32).unwrap()).unwrap();
        let found = global_avg_pool(&halves).unwrap();
        assert_eq!(values(&found), values(&wide.to_dtype(DType::BF16).unwrap()));
    }
}

#[test]
fn a_constant_is_its_own_mean() {
    let input = Tensor::full(0.7f32, (2, 31, 57, 5), &Device::Cpu).unwrap();
    let expected = Tensor::full(0.7f32, (2, 1, 1, 5), &Device::Cpu).unwrap();
    assert_close_relative(&global_avg_pool(&input).unwrap(), &expected, 1e-6);
}

#[test]
fn gradients_are_those_of_the_definition() {
    let mut random = Random::new(5);
    for dims in [[2, 3, 5, 4], [1, 1, 1, 3], [1, 20, 13, 2]] {
        assert_gradients(
            &[random.tensor(&dims)],
            1.0,
            |t| global_avg_pool(&t[0]).unwrap(),
            |t| means(&t[0], dims),
        );
    }
}

#[test]
fn misfits_are_named() {
    let message = |dims: &[usize], dtype| {
        let input = Tensor::zeros(dims, dtype, &Device::Cpu).unwrap();
        global_avg_pool(&input).unwrap_err().to_string()
    };
    assert!(message(&[2, 3, 4], DType::F32).contains("[N, H, W, C]"));
    assert!(message(&[2, 0, 4, 3], DType::F32).contains("at least one pixel"));
    assert!(message(&[2, 3, 4, 3], DType::F64).contains("F64"));
}
