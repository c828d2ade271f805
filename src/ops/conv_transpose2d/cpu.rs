//! Transposed convolution with a 2×2 window and stride 2 on the CPU: slices in, slices out.
//!
//! Windows don't overlap, so each input pixel makes its own four output pixels:
//! ```text
//! for each input pixel, for each of its four output pixels (dy, dx):
//!     out[2y + dy, 2x + dx, :] = activation(bias + weight[:, :, dy, dx]ᵀ · input[y, x, :])
//! ```
//! Those are four products `[pixels, I] × [I, O]` of the same left side, which write their rows to where they belong.

use crate::ops::support::activation::Activation;
use crate::ops::support::cpu::element::Element;
use crate::ops::support::cpu::matrix::{PackedMatrix, Source};
use crate::ops::support::cpu::product::{Epilogue, PlainRows, multiply_to};
use crate::ops::support::isa::Isa;

/// The window's weights, one matrix `[I, O]` for each of its four places, line by line.
pub(super) type Weights = [PackedMatrix; 4];

/// Lays out a weight `[I, O, 2, 2]`.
pub(super) fn prepare<E: Element>(
    isa: Isa,
    weight: &[E],
    [inputs, outputs]: [usize; 2],
    bias: &[f32],
) -> Weights {
    std::array::from_fn(|tap| {
        let source = Source {
            values: &weight[tap..],
            taps: 1,
            inputs,
            outputs,
            tap_stride: 0,
            input_stride: 4 * outputs,
            output_stride: 4,
        };
        PackedMatrix::new(isa, source, bias)
    })
}

/// Enlarges `[N, H, W, I]` to `[N, 2H, 2W, O]`.
pub(super) fn run<E: Element, O: Element>(
    input: &[E],
    [batch, height, width, inputs]: [usize; 4],
    weights: &Weights,
    activation: Activation,
) -> Vec<O> {
    let left = PlainRows { values: input, numbers: inputs };
    let outputs = weights[0].columns();
    let out_width = 2 * width;
    multiply_to(
        &left,
        batch * height * width,
        weights,
        Epilogue { residual: None, activation },
        // Image and line are one index here: each input line makes two output lines.
        |pixel| (pixel / width * 2 * out_width + pixel % width * 2) * outputs,
        &[0, 1, out_width, out_width + 1].map(|pixel| pixel * outputs),
    )
}
