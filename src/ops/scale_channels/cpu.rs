//! Products of features with numbers by channel on the CPU: slices in, slices out.

use rayon::prelude::*;

use crate::ops::support::cpu::element::Element;
use crate::ops::support::cpu::elementwise::sum_pixels;

/// `[N, H, W, C]` times `[N, C]`.
pub(super) fn run<E: Element>(
    input: &[E],
    scale: &[E],
    [_, height, width, channels]: [usize; 4],
) -> Vec<E> {
    let mut out = vec![E::default(); input.len()];
    if out.is_empty() {
        return out;
    }
    let line = width * channels;
    out.par_chunks_exact_mut(line).zip(input.par_chunks_exact(line)).enumerate().for_each(
        |(line, (out, input))| {
            let scale = &scale[line / height * channels..][..channels];
            for (out, input) in out.chunks_exact_mut(channels).zip(input.chunks_exact(channels)) {
                for ((out, input), scale) in out.iter_mut().zip(input).zip(scale) {
                    *out = E::narrow(input.widen() * scale.widen());
                }
            }
        },
    );
    out
}

/// Gradient `[N, C]` of the scale from that of the output.
pub(super) fn of_scale(
    input: &[f32],
    gradient: &[f32],
    [batch, height, width, channels]: [usize; 4],
) -> Vec<f32> {
    let sums = sum_pixels([batch, height * width, channels], |pixel, sums| {
        let input = &input[pixel * channels..][..channels];
        let gradient = &gradient[pixel * channels..][..channels];
        for ((sum, input), gradient) in sums.iter_mut().zip(input).zip(gradient) {
            *sum += input * gradient;
        }
    });
    sums.into_iter().map(|sum| sum as f32).collect()
}
