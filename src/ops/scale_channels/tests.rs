use candle_core::{DType, Device, Tensor};

use super::*;
use crate::ops::support::testing::{
    Random, SMALL_STEP, assert_close, assert_gradients, exact, rounded, values,
};

/// By the definition.
fn scaled(input: &[f64], scale: &[f64], [batch, height, width, channels]: [usize; 4]) -> Vec<f64> {
    let mut out = Vec::new();
    for image in 0..batch {
        for _ in 0..height * width {
            for channel in 0..channels {
                out.push(input[out.len()] * scale[image * channels + channel]);
            }
        }
    }
    out
}

#[test]
fn agrees_with_the_definition() {
    let mut random = Random::new(7);
    for dims in [[2, 3, 5, 7], [1, 1, 1, 4], [3, 41, 17, 33], [0, 4, 4, 3], [2, 0, 3, 4]] {
        let (input, scale) = (random.tensor(&dims), random.tensor(&[dims[0], 1, 1, dims[3]]));
        let expected = rounded(&scaled(&exact(&values(&input)), &exact(&values(&scale)), dims));
        let expected = Tensor::from_vec(expected, &dims, &Device::Cpu).unwrap();
        assert_close(&scale_channels(&input, &scale).unwrap(), &expected, 0.0);
        let [input, scale] = [input, scale].map(|t| t.to_dtype(DType::BF16).unwrap());
        let [wide, wide_scale] = [&input, &scale].map(|t| t.to_dtype(DType::F32).unwrap());
        let wide = scale_channels(&wide, &wide_scale).unwrap().to_dtype(DType::BF16).unwrap();
        assert_eq!(values(&scale_channels(&input, &scale).unwrap()), values(&wide));
    }
}

#[test]
fn gradients_are_those_of_the_definition() {
    let mut random = Random::new(9);
    for dims in [[2, 3, 5, 4], [1, 1, 1, 3], [1, 20, 13, 2]] {
        assert_gradients(
            &[random.tensor(&dims), random.tensor(&[dims[0], 1, 1, dims[3]])],
            SMALL_STEP,
            |t| scale_channels(&t[0], &t[1]).unwrap(),
            |t| scaled(&t[0], &t[1], dims),
        );
    }
}

#[test]
fn misfits_are_named() {
    let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap();
    let message =
        |input: &Tensor, scale: &Tensor| scale_channels(input, scale).unwrap_err().to_string();
    let features = zeros(&[2, 3, 4, 5]);
    assert!(message(&features, &zeros(&[2, 1, 1, 4])).contains("[N, 1, 1, C]"));
    assert!(message(&features, &zeros(&[1, 1, 1, 5])).contains("[N, 1, 1, C]"));
    assert!(message(&zeros(&[2, 3, 4]), &zeros(&[2, 1, 1, 4])).contains("[N, H, W, C]"));
    let halves = zeros(&[2, 1, 1, 5]).to_dtype(DType::BF16).unwrap();
    assert!(message(&features, &halves).contains("BF16"));
}
