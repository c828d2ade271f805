//! Transposed convolution with stride 2 on the CPU: slices in, slices out.
//!
//! Windows of 2×2 places don't overlap, so each input pixel makes its own four output pixels:
//! ```text
//! for each input pixel, for each of its four output pixels (dy, dx):
//!     out[2y + dy, 2x + dx, :] = activation(bias + weight[:, :, dy, dx]ᵀ · input[y, x, :])
//! ```
//! Those are four products `[pixels, I] × [I, O]` of the same left side, which write their rows to where they belong.
//! Windows of 4×4 places overlap by half, so that up to four input pixels make an output pixel:
//! ```text
//! for some images at a time:
//!     products[y, x, dy, dx, :] = weight[:, :, dy, dx]ᵀ · input[y, x, :]
//!     out[Y, X, :] = activation(bias + sum of the products with 2y + dy - 1 = Y, 2x + dx - 1 = X)
//! ```
//! Nothing is multiplied twice, nor with zero.

use std::ops::Range;

use rayon::prelude::*;

use super::LayerDims;
use crate::ops::support::activation::Activation;
use crate::ops::support::cpu::element::{Element, Term};
use crate::ops::support::cpu::matrix::{PackedMatrix, Source};
use crate::ops::support::cpu::outer::{multiply_transposed, nonzero_rows};
use crate::ops::support::cpu::product::{Epilogue, PlainRows, Rows, multiply, multiply_to};
use crate::ops::support::cpu::simd::Simd;
use crate::ops::support::isa::Isa;

/// Values of products that wait to be added up, at most, or those of an image.
const MAX_PRODUCTS: usize = 4 << 20;

/// The window's weights.
#[derive(Debug)]
pub(super) enum Weights {
    /// One matrix `[I, O]` for each of four places, line by line.
    Apart(Vec<PackedMatrix>),
    /// `[I, 16 · O]`, place by place, and a bias per output channel.
    Overlapping(PackedMatrix, Vec<f32>),
}

/// Lays out a weight `[I, O, side, side]`.
pub(super) fn prepare<E: Element>(
    isa: Isa,
    weight: &[E],
    dims: LayerDims,
    bias: &[f32],
) -> Weights {
    let LayerDims { inputs, outputs, .. } = dims;
    let places = dims.places();
    let source = Source {
        values: weight,
        taps: 1,
        inputs,
        outputs,
        tap_stride: 0,
        input_stride: places * outputs,
        output_stride: places,
    };
    if dims.side == 2 {
        let of_place = |place: usize| {
            PackedMatrix::new(isa, Source { values: &weight[place..], ..source }, bias)
        };
        return Weights::Apart((0..places).map(of_place).collect());
    }
    let mut by_place = Vec::with_capacity(weight.len());
    for filters in weight.chunks_exact(places * outputs) {
        for place in 0..places {
            by_place.extend(filters[place..].iter().step_by(places));
        }
    }
    let columns = places * outputs;
    let source = Source { values: &by_place[..], outputs: columns, output_stride: 1, ..source };
    let none = vec![0.0; columns];
    Weights::Overlapping(PackedMatrix::new(isa, source, &none), bias.to_vec())
}

/// The weight `[I, O, side, side]` that these were made from.
pub(super) fn restore(weights: &Weights, dims: LayerDims) -> Vec<f32> {
    let LayerDims { inputs, outputs, .. } = dims;
    let places = dims.places();
    let columns: Vec<f32> = match weights {
        Weights::Apart(matrices) => matrices.iter().flat_map(PackedMatrix::unpack).collect(),
        Weights::Overlapping(matrix, _) => matrix.unpack(),
    };
    let mut out = vec![0.0; places * inputs * outputs];
    for (i, column) in columns.chunks_exact(inputs).enumerate() {
        let (place, output) = (i / outputs, i % outputs);
        for (input, value) in column.iter().enumerate() {
            out[(input * outputs + output) * places + place] = *value;
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
    let rows = batch * height * width;
    match weights {
        Weights::Apart(matrices) => {
            let left = PlainRows { values: input, numbers: inputs };
            let outputs = matrices[0].columns();
            let out_width = 2 * width;
            multiply_to(
                &left,
                rows,
                matrices,
                Epilogue { residual: None, activation },
                // Image and line are one index here: each input line makes two output lines.
                |pixel| (pixel / width * 2 * out_width + pixel % width * 2) * outputs,
                &[0, 1, out_width, out_width + 1].map(|pixel| pixel * outputs),
            )
        }
        Weights::Overlapping(matrix, bias) => {
            let mut out = vec![O::default(); 4 * rows * bias.len()];
            let pixels = height * width;
            let part = (MAX_PRODUCTS / (pixels * matrix.columns()).max(1)).max(1);
            let inputs_of_part = (part * pixels * inputs).max(1);
            let outputs_of_part = (part * 4 * pixels * bias.len()).max(1);
            let parts = input.chunks(inputs_of_part).zip(out.chunks_mut(outputs_of_part));
            for (input, out) in parts {
                let left = PlainRows { values: input, numbers: inputs };
                let plain = Epilogue { residual: None, activation: Activation::None };
                let products = multiply::<_, f32>(&left, input.len() / inputs, matrix, plain);
                add_up(&products, [height, width], bias, activation, out);
            }
            out
        }
    }
}

/// The products `[N, H, W, 4, 4, O]` that meet in each pixel of `[N, 2H, 2W, O]`.
fn add_up<O: Element>(
    products: &[f32],
    [height, width]: [usize; 2],
    bias: &[f32],
    activation: Activation,
    out: &mut [O],
) {
    let outputs = bias.len();
    out.par_chunks_exact_mut((2 * width * outputs).max(1)).enumerate().for_each_init(
        || vec![0f32; outputs],
        |sums, (line, out)| {
            let (image, y) = (line / (2 * height), line % (2 * height));
            for (x, out) in out.chunks_exact_mut(outputs).enumerate() {
                sums.copy_from_slice(bias);
                for (row, dy) in sources(y, height) {
                    for (column, dx) in sources(x, width) {
                        let pixel = (image * height + row) * width + column;
                        let place = (pixel * 16 + dy * 4 + dx) * outputs;
                        let products = &products[place..][..outputs];
                        sums.iter_mut().zip(products).for_each(|(sum, value)| *sum += value);
                    }
                }
                for (out, sum) in out.iter_mut().zip(&*sums) {
                    *out = O::narrow(activation.apply(*sum));
                }
            }
        },
    );
}

/// The lines of the input whose windows of four lines reach a line of the output, and by which of their lines.
fn sources(line: usize, lines: usize) -> impl Iterator<Item = (usize, usize)> {
    let last = line.div_ceil(2);
    let (first, odd) = (last.saturating_sub(1), (line + 1) % 2);
    (first..(last + 1).min(lines)).map(move |source| (source, odd + 2 * (last - source)))
}

/// One row per input pixel, with the values of the output pixels of its window in the order `(dy, dx, channel)`, zero
/// outside of the image.
struct Windows<'a> {
    /// `[N, 2H, 2W, O]`.
    values: &'a [f32],
    dims: LayerDims,
    /// H and W.
    size: [usize; 2],
}

impl Windows<'_> {
    /// Numbers of a line of the window.
    fn line(&self) -> usize {
        self.dims.side * self.dims.outputs
    }

    /// Where the numbers of a line of a window lie that are in the image, and which these are.
    #[inline(always)]
    fn inside(&self, row: usize, dy: usize) -> (usize, Range<usize>) {
        let ([height, width], channels) = (self.size, self.dims.outputs);
        let padding = self.dims.padding();
        let (image, y, x) = (row / (height * width), row / width % height, row % width);
        let (top, left) = (2 * y + dy, 2 * x);
        if top < padding || top - padding >= 2 * height {
            return (0, 0..0);
        }
        let skipped = padding.saturating_sub(left);
        let end = self.dims.side.min(2 * width + padding - left);
        let pixel = (image * 2 * height + top - padding) * 2 * width + left + skipped - padding;
        (pixel * channels, skipped * channels..end * channels)
    }
}

impl Rows for Windows<'_> {
    type Element = f32;

    fn numbers(&self) -> usize {
        self.dims.side * self.line()
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
        let mut at = first;
        let end = first + n;
        let mut rest = left;
        while at < end {
            let (dy, place) = (at / self.line(), at % self.line());
            let (start, inside) = self.inside(row, dy);
            let stop =
                [inside.start, inside.end, self.line()].into_iter().find(|stop| place < *stop);
            let n = (stop.unwrap_or(self.line()) - place).min(end - at);
            if inside.contains(&place) {
                let start = start + place - inside.start;
                T::copy(simd, &self.values[start..start + n], rest);
            } else {
                rest[..n].fill(T::default());
            }
            rest = &mut rest[n..];
            at += n;
        }
    }
}

/// Gradient `[N, H, W, I]` of the input from that `[N, 2H, 2W, O]` of the product; `size` is H and W.
pub(super) fn input_gradient(
    isa: Isa,
    weight: &[f32],
    gradient: &[f32],
    dims: LayerDims,
    size: [usize; 2],
) -> Vec<f32> {
    let LayerDims { inputs, outputs, .. } = dims;
    let source = Source {
        values: weight,
        taps: dims.places(),
        inputs: outputs,
        outputs: inputs,
        tap_stride: 1,
        input_stride: dims.places(),
        output_stride: dims.places() * outputs,
    };
    let matrix = PackedMatrix::new(isa, source, &vec![0.0; inputs]);
    let rows = gradient.len() / (4 * outputs);
    let left = Windows { values: gradient, dims, size };
    multiply(&left, rows, &matrix, Epilogue { residual: None, activation: Activation::None })
}

/// Gradient `[I, O, side, side]` of the weight.
pub(super) fn weight_gradient(
    isa: Isa,
    input: &[f32],
    gradient: &[f32],
    dims: LayerDims,
    size: [usize; 2],
) -> Vec<f32> {
    let (outputs, places) = (dims.outputs, dims.places());
    let rows = Windows { values: gradient, dims, size };
    let nonzero = nonzero_rows(input, dims.inputs);
    let by_place = multiply_transposed(isa, input, dims.inputs, &nonzero, &rows);
    let mut weight = vec![0.0; by_place.len()];
    let filters = weight.chunks_exact_mut(places * outputs);
    for (filter, by_place) in filters.zip(by_place.chunks_exact(places * outputs)) {
        for (place, values) in by_place.chunks_exact(outputs).enumerate() {
            let of_place = filter[place..].iter_mut().step_by(places);
            of_place.zip(values).for_each(|(weight, value)| *weight = *value);
        }
    }
    weight
}
