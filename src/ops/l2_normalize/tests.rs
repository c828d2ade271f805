use candle_core::{DType, Device, Tensor, Var};

use super::*;
use crate::ops::support::testing::{
    PRODUCT_TOLERANCE, Random, SMALL_STEP, assert_close, assert_close_relative, assert_gradients,
    exact, fixture, rounded, values,
};

#[test]
fn agrees_with_the_definition() {
    let mut random = Random::new(191);
    for dims in [vec![2, 3, 5, 8], vec![1, 41, 7, 19], vec![0, 4], vec![70, 512], vec![3]] {
        let (input, weight) = (random.tensor(&dims), random.tensor(&dims[dims.len() - 1..]));
        let expected = reference::l2_normalize(&exact(&values(&input)), &exact(&values(&weight)));
        let expected = Tensor::from_vec(rounded(&expected), dims, &Device::Cpu).unwrap();
        let found = l2_normalize(&input, &weight).unwrap();
        assert_close_relative(&found, &expected, PRODUCT_TOLERANCE);
    }
}

#[test]
fn gradients_are_those_of_the_definition() {
    let mut random = Random::new(193);
    for dims in [vec![2, 3, 2, 5], vec![1, 1], vec![130, 3], vec![2, 40]] {
        let inputs = [random.tensor(&dims), random.tensor(&dims[dims.len() - 1..])];
        assert_gradients(
            &inputs,
            SMALL_STEP,
            |t| l2_normalize(&t[0], &t[1]).unwrap(),
            |t| reference::l2_normalize(&t[0], &t[1]),
        );
    }
}

/// A cell of zeros among them, and one that is hardly longer.
#[test]
fn outputs_and_gradients_are_those_of_torch() {
    let tensors = fixture("norms.safetensors");
    let get = |what: &str| &tensors[&format!("l2_normalize/{what}")];
    let variables = ["input", "weight"].map(|name| Var::from_tensor(get(name)).unwrap());
    let output = l2_normalize(&variables[0], &variables[1]).unwrap();
    assert_close_relative(&output, get("output"), PRODUCT_TOLERANCE);
    let loss = (output * get("weights")).unwrap().sum_all().unwrap();
    let gradients = loss.backward().unwrap();
    let found = gradients.get(&variables[1]).unwrap();
    assert_close_relative(found, get("of_weight"), PRODUCT_TOLERANCE);
    // The gradients of short cells are huge, so each cell has its own scale.
    let found = gradients.get(&variables[0]).unwrap().reshape((24, 20)).unwrap();
    let expected = get("of_input").reshape((24, 20)).unwrap();
    for cell in 0..24 {
        let [found, expected] = [&found, &expected].map(|tensor| tensor.get(cell).unwrap());
        assert_close_relative(&found, &expected, PRODUCT_TOLERANCE);
    }
}

#[test]
fn bf16_is_rounded_once() {
    let mut random = Random::new(197);
    let input = random.tensor(&[2, 9, 12, 37]).to_dtype(DType::BF16).unwrap();
    let weight = random.tensor(&[37]);
    let found = l2_normalize(&input, &weight).unwrap();
    let wide = l2_normalize(&input.to_dtype(DType::F32).unwrap(), &weight).unwrap();
    assert_eq!(found.dtype(), DType::BF16);
    assert_eq!(values(&found), values(&wide.to_dtype(DType::BF16).unwrap()));
}

#[test]
fn nan_is_not_hidden() {
    let input = Tensor::new(&[[f32::NAN, 1.0], [3.0, 4.0]], &Device::Cpu).unwrap();
    let weight = Tensor::new(&[5f32, 5.0], &Device::Cpu).unwrap();
    let expected = Tensor::new(&[[f32::NAN, f32::NAN], [3.0, 4.0]], &Device::Cpu).unwrap();
    assert_close(&l2_normalize(&input, &weight).unwrap(), &expected, 1e-6);
}

#[test]
fn misfits_are_named() {
    let random = Random::new(199);
    let message = |input: &[usize], weight: &[usize]| {
        let (input, weight) = (random.clone().tensor(input), random.clone().tensor(weight));
        l2_normalize(&input, &weight).unwrap_err().to_string()
    };
    assert!(message(&[2, 3], &[4]).contains("weight"));
    assert!(message(&[2, 0], &[0]).contains("input"));
}
