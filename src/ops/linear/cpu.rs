//! Linear layer on the CPU: slices in, slices out.

use crate::ops::support::activation::Activation;
use crate::ops::support::cpu::element::Element;
use crate::ops::support::cpu::matrix::{PackedMatrix, Source};
use crate::ops::support::cpu::outer::{multiply_transposed, nonzero_rows};
use crate::ops::support::cpu::product::{Epilogue, PlainRows, multiply};
use crate::ops::support::isa::Isa;

/// Lays out a weight `[O, I]`, whose columns run over channels and then `cells`, for rows that run over cells and then
/// channels.
pub(super) fn prepare<E: Element>(
    isa: Isa,
    weight: &[E],
    [outputs, inputs]: [usize; 2],
    cells: usize,
    bias: &[f32],
) -> PackedMatrix {
    let source = Source {
        values: weight,
        taps: cells,
        inputs: inputs / cells,
        outputs,
        tap_stride: 1,
        input_stride: cells,
        output_stride: inputs,
    };
    PackedMatrix::new(isa, source, bias)
}

/// Multiplies `[R, I]` to `[R, O]`.
pub(super) fn run<E: Element, O: Element>(
    input: &[E],
    [rows, inputs]: [usize; 2],
    weights: &PackedMatrix,
    activation: Activation,
) -> Vec<O> {
    let left = PlainRows { values: input, numbers: inputs };
    multiply(&left, rows, weights, Epilogue { residual: None, activation })
}

/// Gradient `[R, I]` of the input from that `[R, O]` of the product.
pub(super) fn input_gradient(
    isa: Isa,
    weight: &[f32],
    gradient: &[f32],
    [outputs, inputs]: [usize; 2],
) -> Vec<f32> {
    let source = Source {
        values: weight,
        taps: 1,
        inputs: outputs,
        outputs: inputs,
        tap_stride: 0,
        input_stride: inputs,
        output_stride: 1,
    };
    let matrix = PackedMatrix::new(isa, source, &vec![0.0; inputs]);
    run(gradient, [gradient.len() / outputs, outputs], &matrix, Activation::None)
}

/// Gradient `[O, I]` of the weight.
pub(super) fn weight_gradient(
    isa: Isa,
    input: &[f32],
    gradient: &[f32],
    [outputs, inputs]: [usize; 2],
) -> Vec<f32> {
    let rows = PlainRows { values: input, numbers: inputs };
    multiply_transposed(isa, gradient, outputs, &nonzero_rows(gradient, outputs), &rows)
}
