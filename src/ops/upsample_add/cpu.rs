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
