//! Gradients of a convolution on the CPU: slices in, slices out.
//!
//! The input's gradient is itself a convolution of the output's:
//! 1. with stride 1, with each filter's taps in reverse order and inputs and outputs exchanged, so that Winograd's method
//!    serves it as well;
//! 2. with stride s, one such convolution for each of the s·s phases of an input pixel, with every s-th tap;
//! 3. of a window that covers the whole input, a plain product;
//! 4. where few output pixels have a gradient, a product of these, whose windows are added up.
//!
//! The weight's gradient is a product over pixels of the output's gradient with the input's windows, or the adjoint of
//! Winograd's method.

use rayon::prelude::*;

use super::super::Conv2dParams;
use super::super::sizes::Sizes;
use super::tiling::Tiles4;
use super::unfold::Windows;
use super::{Algorithm, MIN_WINOGRAD_CHANNELS, Weights, run, winograd_gradient};
use crate::ops::support::activation::Activation;
use crate::ops::support::cpu::matrix::{PackedMatrix, Source};
use crate::ops::support::cpu::outer::{multiply_transposed, nonzero_rows};
use crate::ops::support::cpu::product::{ChosenRows, Epilogue, PlainRows, multiply};
use crate::ops::support::isa::Isa;

/// Output pixels per pixel with a gradient from which on the others are skipped.
const SPARSE: usize = 16;

const PLAIN: Epilogue<'static> = Epilogue { residual: None, activation: Activation::None };

/// Gradient `[N, H, W, I]` of the input from that of the output.
pub(super) fn input_gradient(
    isa: Isa,
    weight: &[f32],
    gradient: &[f32],
    sizes: &Sizes,
) -> Vec<f32> {
    let [outputs, inputs, height, width] = sizes.weight;
    let Conv2dParams { stride, padding, dilation, .. } = sizes.params;
    if height * width > 1 && sizes.window_covers_input() {
        return covering_input_gradient(isa, weight, gradient, sizes);
    }
    let pixels = nonzero_rows(gradient, outputs);
    if pixels.len() * SPARSE <= sizes.output[..3].iter().product() {
        return sparse_input_gradient(isa, weight, gradient, &pixels, sizes);
    }
    let around = dilation * (height - 1);
    if stride == 1 && height == width && padding <= around {
        let flipped = flip(weight, sizes.weight);
        let dims = [inputs, outputs, height, width];
        let params = Conv2dParams { padding: around - padding, ..sizes.params };
        let algorithm = Algorithm::choose(dims, params);
        let weights = Weights::new(isa, algorithm, &flipped, dims, &vec![0.0; inputs], params);
        return run(gradient, sizes.output, sizes.input, &weights, PLAIN);
    }
    if dilation > 1 {
        let pixels: Vec<usize> = (0..sizes.output[..3].iter().product()).collect();
        return sparse_input_gradient(isa, weight, gradient, &pixels, sizes);
    }
    let mut out = vec![0.0; sizes.input.iter().product()];
    for phase_y in 0..stride {
        for phase_x in 0..stride {
            add_phase(isa, weight, gradient, sizes, [phase_y, phase_x], &mut out);
        }
    }
    out
}

/// `[O, I, kh, kw]` → `[I, O, kh, kw]` with taps in reverse order.
fn flip(weight: &[f32], [outputs, inputs, height, width]: [usize; 4]) -> Vec<f32> {
    let taps = height * width;
    let mut flipped = vec![0.0; weight.len()];
    flipped.par_chunks_exact_mut(outputs * taps).enumerate().for_each(|(input, filter)| {
        for (output, filter) in filter.chunks_exact_mut(taps).enumerate() {
            let source = &weight[(output * inputs + input) * taps..][..taps];
            filter.iter_mut().zip(source.iter().rev()).for_each(|(to, from)| *to = *from);
        }
    });
    flipped
}

/// `[O, I, taps]` → `[O, taps, I]`.
fn taps_first(weight: &[f32], inputs: usize, taps: usize) -> Vec<f32> {
    let mut out = vec![0.0; weight.len()];
    out.par_chunks_exact_mut(inputs * taps).zip(weight.par_chunks_exact(inputs * taps)).for_each(
        |(out, weight)| {
            for (tap, out) in out.chunks_exact_mut(inputs).enumerate() {
                let from = weight[tap..].iter().step_by(taps);
                out.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            }
        },
    );
    out
}

/// `[O, taps, I]` → `[O, I, taps]`, times `scale[o]`.
pub(super) fn taps_last(
    values: &[f32],
    inputs: usize,
    taps: usize,
    scale: Option<&[f32]>,
) -> Vec<f32> {
    let mut out = vec![0.0; values.len()];
    out.par_chunks_exact_mut(inputs * taps)
        .zip(values.par_chunks_exact(inputs * taps))
        .enumerate()
        .for_each(|(output, (out, values))| {
            let scale = scale.map_or(1.0, |scale| scale[output]);
            for (tap, values) in values.chunks_exact(inputs).enumerate() {
                let to = out[tap..].iter_mut().step_by(taps);
                to.zip(values).for_each(|(to, from)| *to = scale * from);
            }
        });
    out
}

/// A matrix that turns the gradient of an output pixel into those of its window: `[O]` to `[taps, I]`.
fn all_taps(
    isa: Isa,
    weight: &[f32],
    [outputs, inputs, height, width]: [usize; 4],
) -> PackedMatrix {
    let columns = height * width * inputs;
    let by_tap = taps_first(weight, inputs, height * width);
    let source = Source {
        values: &by_tap,
        taps: 1,
        inputs: outputs,
        outputs: columns,
        tap_stride: 0,
        input_stride: columns,
        output_stride: 1,
    };
    PackedMatrix::new(isa, source, &vec![0.0; columns])
}

/// Every output pixel has an image of its own: its gradient is multiplied with all taps at once.
fn covering_input_gradient(isa: Isa, weight: &[f32], gradient: &[f32], sizes: &Sizes) -> Vec<f32> {
    let left = PlainRows { values: gradient, numbers: sizes.weight[0] };
    multiply(&left, sizes.output[0], &all_taps(isa, weight, sizes.weight), PLAIN)
}

/// Few output pixels have a gradient: each is multiplied with all taps, and added to the window.
fn sparse_input_gradient(
    isa: Isa,
    weight: &[f32],
    gradient: &[f32],
    pixels: &[usize],
    sizes: &Sizes,
) -> Vec<f32> {
    let [outputs, inputs, window_height, window_width] = sizes.weight;
    let [_, height, width, _] = sizes.input;
    let [_, out_height, out_width, _] = sizes.output;
    let Conv2dParams { stride, padding, dilation, .. } = sizes.params;
    let left = ChosenRows { values: gradient, rows: pixels, numbers: outputs };
    let matrix = all_taps(isa, weight, sizes.weight);
    let windows: Vec<f32> = multiply(&left, pixels.len(), &matrix, PLAIN);
    let mut out = vec![0.0; sizes.input.iter().product()];
    out.par_chunks_exact_mut((width * inputs).max(1)).enumerate().for_each(|(i, line)| {
        let (image, y) = (i / height, i % height);
        for dy in (0..window_height).filter(|dy| dy * dilation <= y + padding) {
            let from_top = y + padding - dy * dilation;
            let out_y = from_top / stride;
            if !from_top.is_multiple_of(stride) || out_y >= out_height {
                continue;
            }
            let first_pixel = (image * out_height + out_y) * out_width;
            let first = pixels.partition_point(|pixel| *pixel < first_pixel);
            let end = pixels.partition_point(|pixel| *pixel < first_pixel + out_width);
            for index in first..end {
                let left_edge = (pixels[index] - first_pixel) * stride;
                let taps = &windows[(index * window_height + dy) * window_width * inputs..];
                for (dx, tap) in taps.chunks_exact(inputs).take(window_width).enumerate() {
                    // Wraps around to something larger than the input when it is negative.
                    let x = (left_edge + dx * dilation).wrapping_sub(padding);
                    if x < width {
                        let to = &mut line[x * inputs..][..inputs];
                        to.iter_mut().zip(tap).for_each(|(to, value)| *to += value);
                    }
                }
            }
        }
    });
    out
}

/// One axis of a phase: the input pixels `phase, phase + stride, …`.
struct PhaseAxis {
    /// Number of pixels.
    pixels: usize,
    /// Taps that reach them, last first.
    taps: Vec<usize>,
    /// Output pixel under the first of these taps, for the first pixel.
    start: isize,
}

impl PhaseAxis {
    /// Tap `d` of output pixel `q` lies on input pixel `q · stride + d − padding`.
    fn new(phase: usize, size: usize, window: usize, params: Conv2dParams) -> Self {
        let Conv2dParams { stride, padding, .. } = params;
        let taps: Vec<usize> =
            ((phase + padding) % stride..window).step_by(stride).collect::<Vec<_>>();
        let last = taps.last().copied().unwrap_or(0);
        Self {
            pixels: size.saturating_sub(phase).div_ceil(stride),
            start: ((phase + padding) as isize - last as isize) / stride as isize,
            taps: taps.into_iter().rev().collect(),
        }
    }
}

/// Writes the gradient of the input pixels of one phase.
fn add_phase(
    isa: Isa,
    weight: &[f32],
    gradient: &[f32],
    sizes: &Sizes,
    phase: [usize; 2],
    out: &mut [f32],
) {
    let [outputs, inputs, window_height, window_width] = sizes.weight;
    let [batch, height, width, _] = sizes.input;
    let stride = sizes.params.stride;
    let rows = PhaseAxis::new(phase[0], height, window_height, sizes.params);
    let columns = PhaseAxis::new(phase[1], width, window_width, sizes.params);
    let taps: Vec<usize> = rows
        .taps
        .iter()
        .flat_map(|row| columns.taps.iter().map(move |column| row * window_width + column))
        .collect();
    if taps.is_empty() || rows.pixels * columns.pixels == 0 {
        return;
    }
    let all_taps = window_height * window_width;
    let mut chosen = vec![0.0; inputs * taps.len() * outputs];
    chosen.par_chunks_exact_mut(taps.len() * outputs).enumerate().for_each(|(input, chosen)| {
        for (chosen, tap) in chosen.chunks_exact_mut(outputs).zip(&taps) {
            let from = weight[input * all_taps + tap..].iter().step_by(inputs * all_taps);
            chosen.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        }
    });
    let source = Source {
        values: &chosen,
        taps: taps.len(),
        inputs: outputs,
        outputs: inputs,
        tap_stride: outputs,
        input_stride: 1,
        output_stride: taps.len() * outputs,
    };
    let matrix = PackedMatrix::new(isa, source, &vec![0.0; inputs]);
    let windows = Windows {
        input: gradient,
        dims: sizes.output,
        out_size: [rows.pixels, columns.pixels],
        window: [rows.taps.len(), columns.taps.len()],
        stride: 1,
        dilation: 1,
        start: [rows.start, columns.start],
        channels: 0..outputs,
    };
    let part = multiply(&windows, batch * rows.pixels * columns.pixels, &matrix, PLAIN);
    let line = width * inputs;
    out.par_chunks_exact_mut(line).enumerate().for_each(|(i, out)| {
        let (image, y) = (i / height, i % height);
        if y % stride != phase[0] {
            return;
        }
        let first = (image * rows.pixels + y / stride) * columns.pixels;
        let part = &part[first * inputs..][..columns.pixels * inputs];
        for (x, part) in part.chunks_exact(inputs).enumerate() {
            out[(x * stride + phase[1]) * inputs..][..inputs].copy_from_slice(part);
        }
    });
}

/// Gradient `[O, I, kh, kw]` of the weight, times `scale[o]`.
pub(super) fn weight_gradient(
    isa: Isa,
    input: &[f32],
    gradient: &[f32],
    sizes: &Sizes,
    scale: Option<&[f32]>,
) -> Vec<f32> {
    let [outputs, inputs, height, width] = sizes.weight;
    let taps = height * width;
    let pixels = nonzero_rows(gradient, outputs);
    let fits = Algorithm::can_transform([height, width], sizes.params);
    if fits && inputs.min(outputs) >= MIN_WINOGRAD_CHANNELS {
        // Tiles of 6×6 outputs would save little more, and round ten times as much.
        let tiles = winograd_gradient::tiles_of(Tiles4, &pixels, sizes);
        // A tile costs 36 products, a pixel 9.
        if pixels.len() > 4 * tiles.len() {
            let filters = winograd_gradient::run(isa, Tiles4, input, gradient, &tiles, sizes);
            return scale_filters(filters, inputs * taps, scale);
        }
    }
    if taps == 1 && sizes.params == Conv2dParams::new(1, 0) {
        let rows = PlainRows { values: input, numbers: inputs };
        let filters = multiply_transposed(isa, gradient, outputs, &pixels, &rows);
        return scale_filters(filters, inputs, scale);
    }
    let windows = Windows::new(input, sizes.input, sizes.output, [height, width], sizes.params);
    let by_tap = multiply_transposed(isa, gradient, outputs, &pixels, &windows);
    taps_last(&by_tap, inputs, taps, scale)
}

/// Multiplies each filter of `len` values with its output's scale.
fn scale_filters(mut filters: Vec<f32>, len: usize, scale: Option<&[f32]>) -> Vec<f32> {
    if let Some(scale) = scale {
        for (filter, scale) in filters.chunks_exact_mut(len).zip(scale) {
            filter.iter_mut().for_each(|value| *value *= scale);
        }
    }
    filters
}
