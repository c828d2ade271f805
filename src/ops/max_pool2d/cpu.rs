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
