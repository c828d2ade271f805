//! Linear layer by its definition, in f64.

use crate::ops::support::activation::Activation;

/// Multiplies `[R, I]` with `[O, I]`.
pub(super) fn linear(
    input: &[f32],
    weight: &[f32],
    bias: &[f32],
    inputs: usize,
    activation: Activation,
) -> Vec<f32> {
    let mut out = Vec::new();
    for row in input.chunks_exact(inputs) {
        for (weight, &bias) in weight.chunks_exact(inputs).zip(bias) {
            let products = row.iter().zip(weight).map(|(&a, &b)| f64::from(a) * f64::from(b));
            let sum = products.sum::<f64>() + f64::from(bias);
            out.push(if activation == Activation::Relu { sum.max(0.0) } else { sum } as f32);
        }
    }
    out
}
