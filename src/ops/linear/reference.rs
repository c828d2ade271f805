//! Linear layer by its definition, in f64.

use crate::ops::support::activation::Activation;
use crate::ops::support::testing::{exact, rounded};

/// Multiplies `[R, I]` with `[O, I]`.
pub(super) fn linear(
    input: &[f32],
    weight: &[f32],
    bias: &[f32],
    inputs: usize,
    activation: Activation,
) -> Vec<f32> {
    let [input, weight, bias] = [input, weight, bias].map(exact);
    rounded(&linear_exact(&input, &weight, &bias, inputs, activation))
}

/// The same in f64 throughout.
pub(super) fn linear_exact(
    input: &[f64],
    weight: &[f64],
    bias: &[f64],
    inputs: usize,
    activation: Activation,
) -> Vec<f64> {
    let mut out = Vec::new();
    for row in input.chunks_exact(inputs) {
        for (weight, &bias) in weight.chunks_exact(inputs).zip(bias) {
            let products = row.iter().zip(weight).map(|(a, b)| a * b);
            let sum = products.sum::<f64>() + bias;
            out.push(activation.exact(sum));
        }
    }
    out
}
