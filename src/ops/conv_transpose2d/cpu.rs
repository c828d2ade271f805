//! Transposed convolution with a 2×2 window and stride 2 on the CPU: slices in, slices out.
//!
//! Windows don't overlap, so each input pixel makes its own four output pixels:
//! ```text
//! for each input pixel, for each of its four output pixels (dy, dx):
//!     out[2y + dy, 2x + dx, :] = activation(bias + weight[:, :, dy, dx]ᵀ · input[y, x, :])
//! ```
//! Those are four products `[pixels, I] × [I, O]` of the same left side, which write their rows to where they belong.

use crate::ops::support::activation::Activation;
use crate::ops::support::cpu::element::{Element, Term};
use crate::ops::support::cpu::matrix::{PackedMatrix, Source};
use crate::ops::support::cpu::outer::{multiply_transposed, nonzero_rows};
use crate::ops::support::cpu::product::{Epilogue, PlainRows, Rows, multiply, multiply_to};
use crate::ops::support::cpu::simd::Simd;
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

/// The weight `[I, O, 2, 2]` that these were made from.
pub(super) fn restore(weights: &Weights) -> Vec<f32> {
    let (inputs, outputs) = (weights[0].terms(), weights[0].columns());
    let mut out = vec![0.0; 4 * inputs * outputs];
    for (tap, matrix) in weights.iter().enumerate() {
        for (output, column) in matrix.unpack().chunks_exact(inputs).enumerate() {
            for (input, value) in column.iter().enumerate() {
                out[(input * outputs + output) * 4 + tap] = *value;
            }
        }
    }
    out
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

/// One row per input pixel, with the values of its four output pixels in the order `(dy, dx, channel)`.
struct Quads<'a> {
    /// `[N, 2H, 2W, O]`.
    values: &'a [f32],
    channels: usize,
    /// W.
    width: usize,
}

impl Rows for Quads<'_> {
    type Element = f32;

    fn numbers(&self) -> usize {
        4 * self.channels
    }

    #[inline(always)]
    fn gather<S: Simd, T: Term<f32>>(
        &self,
        simd: S,
        row: usize,
        first: usize,
        n: usize,
        left: &mut [T],
    ) {
        // Image and line are one index here, as in `run`.
        let (line, x) = (row / self.width, row % self.width);
        // The two pixels of a line lie side by side.
        let half = 2 * self.channels;
        let mut at = first;
        let end = first + n;
        let mut rest = left;
        while at < end {
            let (dy, place) = (at / half, at % half);
            let n = (half - place).min(end - at);
            let start = ((2 * line + dy) * self.width + x) * half + place;
            T::copy(simd, &self.values[start..start + n], rest);
            rest = &mut rest[n..];
            at += n;
        }
    }
}

/// Gradient `[N, H, W, I]` of the input from that `[N, 2H, 2W, O]` of the product; `width` is W.
pub(super) fn input_gradient(
    isa: Isa,
    weight: &[f32],
    gradient: &[f32],
    [inputs, outputs]: [usize; 2],
    width: usize,
) -> Vec<f32> {
    let source = Source {
        values: weight,
        taps: 4,
        inputs: outputs,
        outputs: inputs,
        tap_stride: 1,
        input_stride: 4,
        output_stride: 4 * outputs,
    };
    let matrix = PackedMatrix::new(isa, source, &vec![0.0; inputs]);
    let rows = gradient.len() / (4 * outputs);
    let left = Quads { values: gradient, channels: outputs, width };
    multiply(&left, rows, &matrix, Epilogue { residual: None, activation: Activation::None })
}

/// Gradient `[I, O, 2, 2]` of the weight.
pub(super) fn weight_gradient(
    isa: Isa,
    input: &[f32],
    gradient: &[f32],
    [inputs, outputs]: [usize; 2],
    width: usize,
) -> Vec<f32> {
    let rows = Quads { values: gradient, channels: outputs, width };
    let by_tap = multiply_transposed(isa, input, inputs, &nonzero_rows(input, inputs), &rows);
    let mut weight = vec![0.0; by_tap.len()];
    let filters = weight.chunks_exact_mut(4 * outputs).zip(by_tap.chunks_exact(4 * outputs));
    for (filter, by_tap) in filters {
        for (tap, values) in by_tap.chunks_exact(outputs).enumerate() {
            let places = filter[tap..].iter_mut().step_by(4);
            places.zip(values).for_each(|(place, value)| *place = *value);
        }
    }
    weight
}
