use candle_core::{DType, Device, Tensor, Var};

use super::*;
use crate::ops::support::testing::{
    PRODUCT_TOLERANCE, Random, assert_close_relative, assert_gradients, exact, fixture, rounded,
    values,
};

#[test]
fn agrees_with_the_definition() {
    for (dims, outputs, side) in [
        ([0, 14, 14, 8], 6, 2),
        ([1, 1, 1, 3], 1, 2),
        ([2, 5, 7, 12], 91, 2),
        ([3, 14, 13, 64], 32, 2),
        ([1, 4, 9, 33], 40, 2),
        ([0, 14, 14, 8], 6, 4),
        ([1, 1, 1, 3], 1, 4),
        ([2, 1, 3, 5], 17, 4),
        ([3, 14, 13, 64], 17, 4),
        ([1, 4, 9, 33], 40, 4),
    ] {
        for activation in Activation::ALL {
            let mut random = Random::new(13);
            let input = random.tensor(&dims);
            let weight = random.tensor(&[dims[3], outputs, side, side]);
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
fn agrees_with_torch() {
    let file = fixture("keypoints.safetensors");
    let get = |name: &str| &file[&format!("conv_transpose/{name}")];
    let variables = ["input", "weight", "bias"].map(|name| Var::from_tensor(get(name)).unwrap());
    let [input, weight, bias] = &variables;
    let weights = TrainableConvTranspose2d::new(weight, bias).unwrap();
    let output = conv_transpose2d_trainable(input, &weights, Activation::None).unwrap();
    assert_close_relative(&output, get("output"), PRODUCT_TOLERANCE);
    let sum = (output * get("output_gradient")).unwrap().sum_all().unwrap();
    let gradients = sum.backward().unwrap();
    for (variable, name) in variables.iter().zip(["input", "weight", "bias"]) {
        let expected = get(&format!("{name}_gradient"));
        assert_close_relative(gradients.get(variable).unwrap(), expected, PRODUCT_TOLERANCE);
    }
}

#[test]
fn bf16_agrees_with_f32_on_the_same_numbers() {
    for (dims, outputs, side) in [
        ([3, 14, 13, 64], 32, 2),
        ([1, 4, 9, 33], 40, 2),
        ([1, 3, 2, 600], 70, 2),
        ([2, 7, 5, 600], 17, 4),
    ] {
        let mut random = Random::new(53);
        let input = random.tensor(&dims).to_dtype(DType::BF16).unwrap();
        let weight = random.tensor(&[dims[3], outputs, side, side]).to_dtype(DType::BF16).unwrap();
        let bias = random.tensor(&[outputs]);
        let wide =
            PreparedConvTranspose2d::new(&weight.to_dtype(DType::F32).unwrap(), &bias).unwrap();
        let expected =
            conv_transpose2d(&input.to_dtype(DType::F32).unwrap(), &wide, Activation::Relu)
                .unwrap();
        for isa in Isa::available() {
            let prepared = PreparedConvTranspose2d::for_isa(isa, &weight, &bias).unwrap();
            let found = conv_transpose2d(&input, &prepared, Activation::Relu).unwrap();
            assert_close_relative(&found, &expected, 1.0 / 256.0);
            let prepared = prepared.with_output(DType::F32);
            let found = conv_transpose2d(&input, &prepared, Activation::Relu).unwrap();
            assert_close_relative(&found, &expected, PRODUCT_TOLERANCE);
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
    for sides in [[3, 3], [2, 4], [4, 2]] {
        let weight = random.tensor(&[4, 6, sides[0], sides[1]]);
        assert!(PreparedConvTranspose2d::new(&weight, &bias).is_err());
    }
}

/// Without ReLU it is linear in each input, so that the twin's rounding is small beside a step of 1.
#[test]
fn gradients_are_those_of_the_definition() {
    for (dims, outputs, side) in [
        ([1, 1, 1, 3], 1, 2),
        ([2, 3, 5, 4], 7, 2),
        ([1, 4, 3, 40], 33, 2),
        ([1, 1, 1, 3], 1, 4),
        ([2, 3, 5, 4], 7, 4),
        ([1, 4, 3, 40], 33, 4),
    ] {
        let mut random = Random::new(67);
        let tensors = [
            random.tensor(&dims),
            random.tensor(&[dims[3], outputs, side, side]),
            random.tensor(&[outputs]),
        ];
        let twin = |input: &[f64], weight: &[f64], bias: &[f64]| {
            let (input, weight, bias) = (rounded(input), rounded(weight), rounded(bias));
            let activation = Activation::None;
            exact(&reference::conv_transpose2d(&input, dims, &weight, &bias, activation))
        };
        assert_gradients(
            &tensors,
            1.0,
            |t| {
                let weights = TrainableConvTranspose2d::new(&t[1], &t[2]).unwrap();
                conv_transpose2d_trainable(&t[0], &weights, Activation::None).unwrap()
            },
            |t| twin(&t[0], &t[1], &t[2]),
        );
        let prepared = PreparedConvTranspose2d::new(&tensors[1], &tensors[2]).unwrap();
        let (weight, bias) = (exact(&values(&tensors[1])), exact(&values(&tensors[2])));
        assert_gradients(
            &tensors[..1],
            1.0,
            |t| conv_transpose2d(&t[0], &prepared, Activation::None).unwrap(),
            |t| twin(&t[0], &weight, &bias),
        );
    }
}

#[test]
fn relu_hides_what_it_cuts_off() {
    let mut random = Random::new(71);
    let (input, bias) = (random.tensor(&[1, 3, 4, 5]), random.tensor(&[6]));
    let weight = Var::from_tensor(&random.tensor(&[5, 6, 4, 4])).unwrap();
    let weights = TrainableConvTranspose2d::new(&weight, &bias).unwrap();
    let gradient = |activation, mask: &Tensor| {
        let output = conv_transpose2d_trainable(&input, &weights, activation).unwrap();
        let sum = (output * mask).unwrap().sum_all().unwrap();
        sum.backward().unwrap().get(weight.as_tensor()).unwrap().clone()
    };
    let output = conv_transpose2d_trainable(&input, &weights, Activation::None).unwrap();
    let positive = output.detach().gt(0f32).unwrap().to_dtype(DType::F32).unwrap();
    let ones = positive.ones_like().unwrap();
    assert_close_relative(
        &gradient(Activation::Relu, &ones),
        &gradient(Activation::None, &positive),
        PRODUCT_TOLERANCE,
    );
}
