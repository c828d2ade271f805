use candle_core::{DType, Device, Tensor};

use super::*;
use crate::ops::support::testing::{
    Random, assert_close, assert_gradients, exact, fixture, rounded, values,
};

const DIMS: [[usize; 4]; 5] =
    [[1, 1, 1, 3], [2, 3, 5, 7], [1, 1, 4, 2], [1, 6, 1, 5], [2, 4, 3, 1]];

#[test]
fn agrees_with_the_definition() {
    let mut random = Random::new(31);
    for dims in DIMS.into_iter().chain([[0, 3, 4, 2], [2, 0, 4, 2], [1, 3, 4, 0]]) {
        let input = random.tensor(&dims);
        let expected = rounded(&reference::run(&exact(&values(&input)), dims));
        let [batch, height, width, channels] = dims;
        let shape = (batch, 2 * height, 2 * width, channels);
        let expected = Tensor::from_vec(expected, shape, &Device::Cpu).unwrap();
        assert_close(&upsample_bilinear(&input).unwrap(), &expected, 1e-6);
    }
}

#[test]
fn agrees_with_torch() {
    let file = fixture("keypoints.safetensors");
    let found = upsample_bilinear(&file["upsample/input"]).unwrap();
    assert_close(&found, &file["upsample/output"], 1e-6);
}

#[test]
fn gradients_are_those_of_the_definition() {
    let mut random = Random::new(37);
    for dims in DIMS {
        assert_gradients(
            &[random.tensor(&dims)],
            1.0,
            |t| upsample_bilinear(&t[0]).unwrap(),
            |t| reference::run(&t[0], dims),
        );
    }
}

#[test]
fn misfits_are_named() {
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, &Device::Cpu).unwrap();
    let message = |input: &Tensor| upsample_bilinear(input).unwrap_err().to_string();
    assert!(message(&zeros(&[2, 3, 4], DType::F32)).contains("[N, H, W, C]"));
    assert!(message(&zeros(&[1, 2, 3, 4], DType::BF16)).contains("input"));
}
