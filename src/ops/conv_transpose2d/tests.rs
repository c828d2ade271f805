use candle_core::{Device, Tensor};

use super::*;
use crate::ops::support::testing::{PRODUCT_TOLERANCE, Random, assert_close_relative, values};

#[test]
fn agrees_with_the_definition() {
    for (dims, outputs) in [
        ([0, 14, 14, 8], 6),
        ([1, 1, 1, 3], 1),
        ([2, 5, 7, 12], 91),
        ([3, 14, 13, 64], 32),
        ([1, 4, 9, 33], 40),
    ] {
        for activation in [Activation::None, Activation::Relu] {
            let mut random = Random::new(13);
            let input = random.tensor(&dims);
            let weight = random.tensor(&[dims[3], outputs, 2, 2]);
            let bias = random.tensor(&[outputs]);
            let expected = reference::conv_transpose2d(
                &values(&input),
                dims,
                &values(&weight),
                &values(&bias),
                activation,
            );
            let out_dims = [dims[0], 2 * dims[1], 2 * dims[2], outputs];
            let expected = Tensor::from_vec(expected, &out_dims, &Device::Cpu).unwrap();
            for isa in Isa::available() {
                let prepared = PreparedConvTranspose2d::for_isa(isa, &weight, &bias).unwrap();
                let found = conv_transpose2d(&input, &prepared, activation).unwrap();
                assert_close_relative(&found, &expected, PRODUCT_TOLERANCE);
            }
        }
    }
}

#[test]
fn misfits_are_named() {
    let mut random = Random::new(5);
    let (weight, bias) = (random.tensor(&[4, 6, 2, 2]), random.tensor(&[6]));
    let prepared = PreparedConvTranspose2d::new(&weight, &bias).unwrap();
    let message = |input: &Tensor| {
        conv_transpose2d(input, &prepared, Activation::None).unwrap_err().to_string()
    };
    assert!(message(&random.tensor(&[1, 2, 2, 6])).contains("[N, H, W, 4]"));
    assert!(message(&random.tensor(&[2, 4])).contains("[N, H, W, 4]"));
    assert!(PreparedConvTranspose2d::new(&weight, &random.tensor(&[4])).is_err());
    assert!(PreparedConvTranspose2d::new(&random.tensor(&[4, 6, 3, 3]), &bias).is_err());
}
