//! Means over pixels on the CPU: slices in, slices out.

use rayon::prelude::*;

use crate::ops::support::cpu::element::Element;
use crate::ops::support::cpu::elementwise::sum_pixels;

/// `[N, C]` from `[N, H, W, C]`.
pub(super) fn run<E: Element>(input: &[E], [batch, height, width, channels]: [usize; 4]) -> Vec<E> {
    let pixels = height * width;
    let sums = sum_pixels([batch, pixels, channels], |pixel, sums| {
        let values = &input[pixel * channels..][..channels];
        sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value.widen());
    });
    sums.into_iter().map(|sum| E::narrow((sum / pixels as f64) as f32)).collect()
}

/// Gradient `[N, H, W, C]` of the input from that `[N, C]` of the means.
pub(super) fn backward(gradient: &[f32], [batch, height, width, channels]: [usize; 4]) -> Vec<f32> {
    let pixels = height * width;
    let mut out = vec![0f32; batch * pixels * channels];
    if out.is_empty() {
        return out;
    }
    let share = 1.0 / pixels as f32;
    let shares: Vec<f32> = gradient.iter().map(|gradient| gradient * share).collect();
    out.par_chunks_exact_mut(width * channels).enumerate().for_each(|(line, out)| {
        let shares = &shares[line / height * channels..][..channels];
        out.chunks_exact_mut(channels).for_each(|out| out.copy_from_slice(shares));
    });
    out
}
