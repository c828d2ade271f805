//! Max pooling on the CPU: slices in, slices out.

use rayon::prelude::*;

use super::MaxPool2dParams;
use crate::ops::support::cpu::element::Element;

/// Pools `[N, H, W, C]` to `[N, Ho, Wo, C]`.
pub(super) fn run<E: Element>(
    input: &[E],
    [_, height, width, channels]: [usize; 4],
    [batch, out_height, out_width, _]: [usize; 4],
    params: &MaxPool2dParams,
) -> Vec<E> {
    let mut out = vec![E::narrow(f32::NEG_INFINITY); batch * out_height * out_width * channels];
    if out.is_empty() {
        return out;
    }
    out.par_chunks_mut(out_width * channels).enumerate().for_each(|(line, out)| {
        let (image, y) = (line / out_height, line % out_height);
        for row in window(y, height, params) {
            let row = &input[(image * height + row) * width * channels..][..width * channels];
            for (x, out) in out.chunks_exact_mut(channels).enumerate() {
                for column in window(x, width, params) {
                    largest(out, &row[column * channels..][..channels]);
                }
            }
        }
    });
    out
}

/// The places of a window that lie inside of the input.
fn window(position: usize, size: usize, params: &MaxPool2dParams) -> std::ops::Range<usize> {
    let start = position * params.stride;
    let end = (start + params.kernel).saturating_sub(params.padding).min(size);
    start.saturating_sub(params.padding)..end
}

/// Raises `out` to `values`; NaN wins over every number.
fn largest<E: Element>(out: &mut [E], values: &[E]) {
    for (out, &value) in out.iter_mut().zip(values) {
        // Also true when `value` is NaN; when `out` is NaN already, only another NaN replaces it.
        *out = if value.widen() > out.widen() || value.widen().is_nan() { value } else { *out };
    }
}

/// Gradient `[N, H, W, C]` of the input: that of each output goes to the first of its window's largest values.
pub(super) fn input_gradient(
    input: &[f32],
    dims: [usize; 4],
    out_dims: [usize; 4],
    gradient: &[f32],
    params: &MaxPool2dParams,
) -> Vec<f32> {
    let [_, height, width, channels] = dims;
    let [_, out_height, out_width, _] = out_dims;
    let mut out = vec![0.0; input.len()];
    if gradient.is_empty() {
        return out;
    }
    let winners = winners(input, dims, out_dims, params);
    let out_line = out_width * channels;
    // Windows overlap, so each line of the input collects what belongs to it.
    out.par_chunks_exact_mut(width * channels).enumerate().for_each(|(line, out)| {
        let (image, row) = (line / height, line % height);
        let last = (row + params.padding) / params.stride;
        let first =
            (row + params.padding + 1).saturating_sub(params.kernel).div_ceil(params.stride);
        for out_y in first..(last + 1).min(out_height) {
            let start = (image * out_height + out_y) * out_line;
            let winners = &winners[start..start + out_line];
            let gradient = &gradient[start..start + out_line];
            for (i, (winner, gradient)) in winners.iter().zip(gradient).enumerate() {
                let winner = *winner as usize;
                if winner / width == row {
                    out[winner % width * channels + i % channels] += gradient;
                }
            }
        }
    });
    out
}

/// For each output, `row · W + column` of the first of its window's largest values.
fn winners(
    input: &[f32],
    [_, height, width, channels]: [usize; 4],
    [batch, out_height, out_width, _]: [usize; 4],
    params: &MaxPool2dParams,
) -> Vec<u32> {
    let line = out_width * channels;
    let mut winners = vec![0u32; batch * out_height * line];
    winners.par_chunks_exact_mut(line).enumerate().for_each_init(
        || vec![0f32; channels],
        |largest, (i, winners)| {
            let (image, y) = (i / out_height, i % out_height);
            for (x, winners) in winners.chunks_exact_mut(channels).enumerate() {
                let (rows, columns) = (window(y, height, params), window(x, width, params));
                largest.fill(f32::NEG_INFINITY);
                winners.fill((rows.start * width + columns.start) as u32);
                for row in rows {
                    for column in columns.clone() {
                        let place = row * width + column;
                        let values = &input[(image * height * width + place) * channels..];
                        for ((largest, winner), &value) in
                            largest.iter_mut().zip(winners.iter_mut()).zip(values)
                        {
                            // The rule of `largest`.
                            if value > *largest || value.is_nan() {
                                *largest = value;
                                *winner = place as u32;
                            }
                        }
                    }
                }
            }
        },
    );
    winners
}
