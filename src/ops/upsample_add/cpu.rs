//! Nearest-neighbor enlargement plus a second map on the CPU: slices in, slices out.

use rayon::prelude::*;

use crate::ops::support::cpu::element::Element;

/// Adds `coarse` `[N, h, w, C]`, enlarged by the index tables, to `lateral` `[N, H, W, C]`.
pub(super) fn run<E: Element>(
    coarse: &[E],
    [coarse_height, coarse_width]: [usize; 2],
    lateral: &[E],
    channels: usize,
    rows: &[usize],
    columns: &[usize],
) -> Vec<E> {
    let mut out = vec![E::default(); lateral.len()];
    if out.is_empty() {
        return out;
    }
    let line = columns.len() * channels;
    out.par_chunks_mut(line).zip(lateral.par_chunks(line)).enumerate().for_each(
        |(i, (out, lateral))| {
            let (image, y) = (i / rows.len(), i % rows.len());
            let start = (image * coarse_height + rows[y]) * coarse_width * channels;
            let coarse = &coarse[start..start + coarse_width * channels];
            let pixels = out.chunks_exact_mut(channels).zip(lateral.chunks_exact(channels));
            for ((out, lateral), &column) in pixels.zip(columns) {
                let coarse = &coarse[column * channels..][..channels];
                for ((out, a), b) in out.iter_mut().zip(lateral).zip(coarse) {
                    *out = E::narrow(a.widen() + b.widen());
                }
            }
        },
    );
    out
}

/// Gradient `[N, h, w, C]` of `coarse`: each value sums those of the fine pixels that it went to.
pub(super) fn coarse_gradient(
    gradient: &[f32],
    [batch, coarse_height, coarse_width, channels]: [usize; 4],
    rows: &[usize],
    columns: &[usize],
) -> Vec<f32> {
    let line = coarse_width * channels;
    let mut out = vec![0.0; batch * coarse_height * line];
    if out.is_empty() {
        return out;
    }
    out.par_chunks_exact_mut(line).enumerate().for_each(|(i, out)| {
        let (image, coarse_y) = (i / coarse_height, i % coarse_height);
        // The table ascends.
        let first = rows.partition_point(|row| *row < coarse_y);
        let last = rows.partition_point(|row| *row <= coarse_y);
        for y in first..last {
            let start = (image * rows.len() + y) * columns.len() * channels;
            let pixels = gradient[start..].chunks_exact(channels);
            for (pixel, column) in pixels.zip(columns) {
                let out = &mut out[column * channels..][..channels];
                out.iter_mut().zip(pixel).for_each(|(sum, value)| *sum += value);
            }
        }
    });
    out
}
