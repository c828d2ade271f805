//! Linear layer on the CPU: slices in, slices out.

use crate::ops::support::activation::Activation;
use crate::ops::support::cpu::product::{Epilogue, PackedMatrix, product};

/// Lays out a weight `[O, I]`.
pub(super) fn prepare(weight: &[f32], [outputs, inputs]: [usize; 2], bias: &[f32]) -> PackedMatrix {
    PackedMatrix::new(inputs, outputs, bias, |i, o| weight[o * inputs + i])
}

/// Multiplies `[R, I]` to `[R, O]`.
pub(super) fn run(input: &[f32], weights: &PackedMatrix, activation: Activation) -> Vec<f32> {
    product(input, weights, Epilogue { residual: None, activation })
}
