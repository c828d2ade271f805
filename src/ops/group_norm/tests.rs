use candle_core::{DType, Device, Tensor, Var};

use super::*;
use crate::ops::support::testing::{
    PRODUCT_TOLERANCE, Random, SMALL_STEP, assert_close, assert_close_relative, assert_gradients,
    exact, fixture, rounded, values,
};

const EPS: f64 = 1e-5;

fn through(activation: Activation, values: Vec<f64>) -> Vec<f64> {
    values.into_iter().map(|value| activation.exact(value)).collect()
}

/// The norm of input, weight and bias.
fn normed(t: &[Tensor], groups: usize, activation: Activation) -> Tensor {
    group_norm(&t[0], groups, &t[1], &t[2], activation, EPS).unwrap()
}

#[test]
fn agrees_with_the_definition() {
    let mut random = Random::new(151);
    let cases: [(&[usize], usize); 7] = [
        (&[2, 1, 1, 4], 2),
        (&[2, 3, 5, 8], 8),
        (&[1, 41, 37, 18], 3),
        (&[3, 6], 1),
        (&[2, 300, 12], 4),
        (&[1, 9, 4, 520], 2),
        (&[1, 1, 1, 1], 1),
    ];
    for (dims, groups) in cases {
        let channels = *dims.last().unwrap();
        let inputs = [
            random.tensor(dims).affine(3.0, 5.0).unwrap(),
            random.tensor(&[channels]),
            random.tensor(&[channels]),
        ];
        let [x, w, b] = inputs.each_ref().map(|t| exact(&values(t)));
        let out = reference::group_norm(&x, dims[0], groups, [&w, &b], EPS);
        for activation in Activation::ALL {
            let expected = rounded(&through(activation, out.clone()));
            let expected = Tensor::from_vec(expected, dims, &Device::Cpu).unwrap();
            // An activation makes outputs smaller, but not their roundings.
            let largest = out.iter().fold(0f64, |largest, value| largest.max(value.abs()));
            let tolerance = PRODUCT_TOLERANCE * largest as f32;
            assert_close(&normed(&inputs, groups, activation), &expected, tolerance);
        }
    }
}

/// A mean that is large beside the deviation costs digits of the input, but none of the variance: no sum of squares is
/// taken from another one.
#[test]
fn values_far_from_zero_keep_their_deviation() {
    let mut random = Random::new(157);
    let steps: Vec<f32> = (0..4 * 900).map(|_| 4096.0 + random.below(8) as f32).collect();
    let input = Tensor::from_vec(steps, (1, 30, 30, 4), &Device::Cpu).unwrap();
    let ones = Tensor::ones(4, DType::F32, &Device::Cpu).unwrap();
    let zeros = ones.zeros_like().unwrap();
    let found = group_norm(&input, 2, &ones, &zeros, Activation::None, EPS).unwrap();
    let x = exact(&values(&input));
    let expected = reference::group_norm(&x, 1, 2, [&[1.0; 4], &[0.0; 4]], EPS);
    let expected = Tensor::from_vec(rounded(&expected), (1, 30, 30, 4), &Device::Cpu).unwrap();
    // The mean itself is rounded to a unit of 2^-12.
    assert_close(&found, &expected, 2e-4);
    let mean = values(&found).iter().map(|x| x * x).sum::<f32>() / 3600.0;
    assert!((mean - 1.0).abs() < 1e-4, "{mean}");
}

#[test]
fn gradients_are_those_of_the_definition() {
    let mut random = Random::new(163);
    let cases: [(&[usize], usize); 4] =
        [(&[2, 3, 2, 4], 2), (&[2, 1, 6], 3), (&[1, 70, 3], 1), (&[3, 2, 2, 9], 3)];
    for (dims, groups) in cases {
        let channels = *dims.last().unwrap();
        let inputs = [random.tensor(dims), random.tensor(&[channels]), random.tensor(&[channels])];
        for activation in Activation::ALL {
            let eps = 1e-3;
            assert_gradients(
                &inputs,
                SMALL_STEP,
                |t| group_norm(&t[0], groups, &t[1], &t[2], activation, eps).unwrap(),
                |t| {
                    let parameters = [&t[1][..], &t[2]];
                    let out = reference::group_norm(&t[0], dims[0], groups, parameters, eps);
                    through(activation, out)
                },
            );
        }
    }
}

#[test]
fn outputs_and_gradients_are_those_of_torch() {
    let tensors = fixture("norms.safetensors");
    for (case, groups) in [("each", 4), ("fours", 3), ("one", 1)] {
        for (suffix, activation) in [("", Activation::None), ("_relu", Activation::Relu)] {
            let get = |what: &str| &tensors[&format!("group_norm/{case}{suffix}/{what}")];
            let names = ["input", "weight", "bias"];
            let variables = names.map(|name| Var::from_tensor(get(name)).unwrap());
            let inputs = variables.each_ref().map(|variable| variable.as_tensor().clone());
            let output = normed(&inputs, groups, activation);
            assert_close_relative(&output, get("output"), 1e-5);
            let loss = (output * get("weights")).unwrap().sum_all().unwrap();
            let gradients = loss.backward().unwrap();
            for (name, input) in names.into_iter().zip(&inputs) {
                let found = gradients.get(input).unwrap();
                assert_close_relative(found, get(&format!("of_{name}")), 1e-5);
            }
        }
    }
}

#[test]
fn images_do_not_see_each_other() {
    let mut random = Random::new(167);
    let (weight, bias) = (random.tensor(&[8]), random.tensor(&[8]));
    let images = [random.tensor(&[1, 9, 7, 8]), random.tensor(&[1, 9, 7, 8])];
    let norm = |input: &Tensor| {
        normed(&[input.clone(), weight.clone(), bias.clone()], 4, Activation::Relu)
    };
    let both = norm(&Tensor::cat(&images, 0).unwrap());
    let apart = Tensor::cat(&images.map(|image| norm(&image)), 0).unwrap();
    assert_eq!(values(&both), values(&apart));
}

#[test]
fn bf16_is_rounded_once() {
    let mut random = Random::new(173);
    let input = random.tensor(&[2, 9, 12, 36]).to_dtype(DType::BF16).unwrap();
    let (weight, bias) = (random.tensor(&[36]), random.tensor(&[36]));
    let norm = |input: Tensor| normed(&[input, weight.clone(), bias.clone()], 4, Activation::Relu);
    let found = norm(input.clone());
    assert_eq!(found.dtype(), DType::BF16);
    let expected = norm(input.to_dtype(DType::F32).unwrap()).to_dtype(DType::BF16).unwrap();
    assert_eq!(values(&found), values(&expected));
}

#[test]
fn nothing_and_the_same_everywhere_are_normed() {
    let mut random = Random::new(179);
    let (weight, bias) = (random.tensor(&[6]), random.tensor(&[6]));
    for dims in [[0, 4, 5, 6], [2, 0, 5, 6]] {
        let inputs = [random.tensor(&dims), weight.clone(), bias.clone()]
            .map(|t| Var::from_tensor(&t).unwrap());
        let inputs = inputs.each_ref().map(|variable| variable.as_tensor().clone());
        let output = normed(&inputs, 3, Activation::Relu);
        assert_eq!(output.dims(), dims);
        let ones = output.ones_like().unwrap();
        let gradients = (output * ones).unwrap().sum_all().unwrap().backward().unwrap();
        for parameter in &inputs[1..] {
            assert_eq!(values(gradients.get(parameter).unwrap()), [0.0; 6]);
        }
    }
    let same = Tensor::full(2f32, (1, 3, 3, 6), &Device::Cpu).unwrap();
    let found = normed(&[same, weight, bias.clone()], 3, Activation::None);
    assert_close(&found, &bias.broadcast_as((1, 3, 3, 6)).unwrap(), 0.0);
}

#[test]
fn misfits_are_named() {
    let mut random = Random::new(181);
    let input = random.tensor(&[1, 2, 2, 6]);
    let message = |groups: usize, weight: usize| {
        let (weight, bias) = (Random::new(1).tensor(&[weight]), Random::new(2).tensor(&[6]));
        group_norm(&input, groups, &weight, &bias, Activation::None, EPS).unwrap_err().to_string()
    };
    assert!(message(4, 6).contains("a multiple of 4 groups"));
    assert!(message(0, 6).contains("groups"));
    assert!(message(3, 5).contains("weight"));
    let flat = random.tensor(&[6]);
    assert!(group_norm(&flat, 2, &flat, &flat, Activation::None, EPS).is_err());
}
