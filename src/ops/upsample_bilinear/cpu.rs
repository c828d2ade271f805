//! Bilinear enlargement on the CPU: slices in, slices out. A task is a line of what is written.

use rayon::prelude::*;

use super::{FAR, NEAR};

/// The input pixels that an output pixel mixes: the nearer one and the other.
fn sources(index: usize, n: usize) -> [usize; 2] {
    let near = index / 2;
    let far = if index.is_multiple_of(2) { near.saturating_sub(1) } else { near + 1 };
    [near, far.min(n - 1)]
}

/// Enlarges `[N, H, W, C]` to `[N, 2H, 2W, C]`.
pub(super) fn run(input: &[f32], [_, height, width, channels]: [usize; 4]) -> Vec<f32> {
    let mut out = vec![0f32; 4 * input.len()];
    let line = width * channels;
    out.par_chunks_exact_mut((2 * line).max(1)).enumerate().for_each_init(
        || vec![0f32; line],
        |mixed, (i, out)| {
            let (image, y) = (i / (2 * height), i % (2 * height));
            let [near, far] =
                sources(y, height).map(|row| &input[(image * height + row) * line..][..line]);
            for ((mixed, near), far) in mixed.iter_mut().zip(near).zip(far) {
                *mixed = NEAR * near + FAR * far;
            }
            for (x, out) in out.chunks_exact_mut(channels).enumerate() {
                let [near, far] =
                    sources(x, width).map(|column| &mixed[column * channels..][..channels]);
                for ((out, near), far) in out.iter_mut().zip(near).zip(far) {
                    *out = NEAR * near + FAR * far;
                }
            }
        },
    );
    out
}

/// The output pixels that read an input pixel, and their shares of it; at a border, one of them reads it twice.
fn readers(index: usize, n: usize) -> [(usize, f32); 4] {
    let (first, last) = (2 * index, 2 * index + 1);
    let before = if index == 0 { first } else { first - 1 };
    let after = if index + 1 == n { last } else { last + 1 };
    [(before, FAR), (first, NEAR), (last, NEAR), (after, FAR)]
}

/// Gradient `[N, H, W, C]` of the input from that `[N, 2H, 2W, C]` of the output.
pub(super) fn gradient(gradient: &[f32], [batch, height, width, channels]: [usize; 4]) -> Vec<f32> {
    let mut out = vec![0f32; batch * height * width * channels];
    let line = 2 * width * channels;
    out.par_chunks_exact_mut((width * channels).max(1)).enumerate().for_each_init(
        || vec![0f32; line],
        |mixed, (i, out)| {
            let (image, y) = (i / height, i % height);
            mixed.fill(0.0);
            for (row, share) in readers(y, height) {
                let values = &gradient[(image * 2 * height + row) * line..][..line];
                mixed.iter_mut().zip(values).for_each(|(sum, value)| *sum += share * value);
            }
            for (x, out) in out.chunks_exact_mut(channels).enumerate() {
                for (column, share) in readers(x, width) {
                    let values = &mixed[column * channels..][..channels];
                    out.iter_mut().zip(values).for_each(|(sum, value)| *sum += share * value);
                }
            }
        },
    );
    out
}
