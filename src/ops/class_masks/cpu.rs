//! For each row, on all threads: `finish(bias[label] + Σ over channels weight[label, c] · features[cell, c])` per cell,
//! where `finish` is a sigmoid or nothing.
//!
//! Products are summed in [`LANES`] sums side by side, which the compiler can keep in vector registers; one running sum
//! would have to be added in order.

use rayon::prelude::*;

use crate::ops::support::cpu::element::Element;

/// Sums kept side by side.
const LANES: usize = 16;

/// The 1×1 convolution.
pub(super) struct Filters<'a> {
    /// `[num_classes, C]`.
    pub weight: &'a [f32],
    /// `[num_classes]`.
    pub bias: &'a [f32],
    /// C.
    pub channels: usize,
}

/// `features` is `[R, n_cells, C]`; returns `[R, n_cells]`.
pub(super) fn run<E: Element>(
    features: &[E],
    filters: &Filters<'_>,
    labels: &[u32],
    n_cells: usize,
    finish: impl Fn(f32) -> f32 + Sync,
) -> Vec<f32> {
    let channels = filters.channels;
    let mut masks = vec![0f32; labels.len() * n_cells];
    if masks.is_empty() {
        return masks;
    }
    masks.par_chunks_mut(n_cells).zip(labels).enumerate().for_each(|(row, (mask, label))| {
        let class = *label as usize;
        if class == 0 || class >= filters.bias.len() {
            return;
        }
        let weight = &filters.weight[class * channels..][..channels];
        let features = &features[row * n_cells * channels..][..n_cells * channels];
        for (cell, value) in mask.iter_mut().enumerate() {
            let logit = filters.bias[class] + dot(weight, &features[cell * channels..][..channels]);
            *value = finish(logit);
        }
    });
    masks
}

fn dot<E: Element>(a: &[f32], b: &[E]) -> f32 {
    let (a_blocks, a_rest) = a.as_chunks::<LANES>();
    let (b_blocks, b_rest) = b.as_chunks::<LANES>();
    let mut sums = [0f32; LANES];
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane].widen();
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b.widen()).sum();
    sums.iter().sum::<f32>() + rest
}
