use candle_core::{DType, Device, Tensor};

use super::*;
use crate::ops::support::testing::{
    PRODUCT_TOLERANCE, Random, SMALL_STEP, assert_close_relative, assert_gradients, exact, rounded,
    values,
};

const EPS: f64 = 1e-3;

#[test]
fn agrees_with_the_definition() {
    let mut random = Random::new(101);
    for dims in [vec![2, 1], vec![2, 3, 5, 7], vec![1, 41, 37, 19], vec![200, 64]] {
        let channels = *dims.last().unwrap();
        let input = random.tensor(&dims).affine(3.0, 5.0).unwrap();
        let (weight, bias) = (random.tensor(&[channels]), random.tensor(&[channels]));
        let residual = random.tensor(&dims);
        let [x, w, b, r] = [&input, &weight, &bias, &residual].map(|t| exact(&values(t)));
        let (out, mean, variance) = reference::batch_norm(&x, &w, &b, &r, EPS);
        for activation in [Activation::None, Activation::Relu] {
            let found =
                batch_norm(&input, &weight, &bias, Some(&residual), activation, EPS).unwrap();
            let out =
                out.iter().map(|v| if activation == Activation::Relu { v.max(0.0) } else { *v });
            let expected = rounded(&out.collect::<Vec<_>>());
            let expected = Tensor::from_vec(expected, dims.clone(), &Device::Cpu).unwrap();
            assert_close_relative(&found.output, &expected, PRODUCT_TOLERANCE);
            for (found, expected) in [(&found.mean, &mean), (&found.variance, &variance)] {
                let expected = Tensor::from_vec(rounded(expected), channels, &Device::Cpu).unwrap();
                assert_close_relative(found, &expected, PRODUCT_TOLERANCE);
            }
        }
    }
}

#[test]
fn gradients_are_those_of_the_definition() {
    let mut random = Random::new(103);
    for dims in [vec![2, 1], vec![2, 3, 2, 4], vec![70, 3]] {
        let channels = *dims.last().unwrap();
        let inputs = [
            random.tensor(&dims),
            random.tensor(&[channels]),
            random.tensor(&[channels]),
            random.tensor(&dims),
        ];
        for activation in [Activation::None, Activation::Relu] {
            assert_gradients(
                &inputs,
                SMALL_STEP,
                |t| {
                    let norm = batch_norm(&t[0], &t[1], &t[2], Some(&t[3]), activation, EPS);
                    norm.unwrap().output
                },
                |t| {
                    let (out, ..) = reference::batch_norm(&t[0], &t[1], &t[2], &t[3], EPS);
                    let relu = activation == Activation::Relu;
                    out.into_iter().map(|v| if relu { v.max(0.0) } else { v }).collect()
                },
            );
        }
    }
}

#[test]
fn a_single_value_has_no_variance() {
    let mut random = Random::new(107);
    let (weight, bias) = (random.tensor(&[3]), random.tensor(&[3]));
    let norm = |dims: &[usize]| {
        let input = Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap();
        batch_norm(&input, &weight, &bias, None, Activation::None, EPS)
    };
    let message = norm(&[1, 1, 1, 3]).unwrap_err().to_string();
    assert!(message.contains("at least 2 per channel"), "{message}");
    assert_eq!(norm(&[0, 7, 7, 3]).unwrap().output.dims(), [0, 7, 7, 3]);
    assert!(norm(&[2, 4]).is_err());
}
