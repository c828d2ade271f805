//! ```text
//! for some anchors of a level, in parallel:
//!     softmax of each anchor; a key for every class above the threshold
//! for each image and class, in parallel: join the keys, keep the best, sort
//! ```

use candle_core::Tensor;
use rayon::prelude::*;

use super::{Sizes, TopPerClassParams};
use crate::error::Result;
use crate::ops::support::check::with_slice;
use crate::ops::support::order::{descending_key, key_value};
use crate::ops::support::pairs::{HostPairs, Pairs, keep_smallest};

/// Anchors of a task.
const PER_TASK: usize = 256;

/// Some anchors of a level and image.
struct Part {
    image: usize,
    level: usize,
    /// First anchor, in the level and over all levels joined.
    first: [usize; 2],
    anchors: usize,
}

pub(super) fn run(logits: &[&Tensor], sizes: Sizes, params: &TopPerClassParams) -> Result<Pairs> {
    let logits: Vec<Tensor> =
        logits.iter().map(|level| level.contiguous()).collect::<candle_core::Result<_>>()?;
    let (classes, taken) = (sizes.classes, sizes.taken(params));
    let mut parts = Vec::new();
    for image in 0..sizes.images {
        let mut start = 0;
        for (level, tensor) in logits.iter().enumerate() {
            let length = tensor.dims()[1];
            parts.extend((0..length).step_by(PER_TASK).map(|first| Part {
                image,
                level,
                first: [first, start + first],
                anchors: PER_TASK.min(length - first),
            }));
            start += length;
        }
    }
    let found: Vec<Vec<(u32, u64)>> = parts
        .par_iter()
        .map(|part| {
            let tensor = &logits[part.level];
            let start = part.image * tensor.dims()[1] + part.first[0];
            with_slice(tensor, |logits: &[f32]| {
                let logits = &logits[start * classes..(start + part.anchors) * classes];
                score(logits, classes, part.first[1], params.score_threshold)
            })
        })
        .collect::<Result<_>>()?;

    let foreground = sizes.foreground();
    let mut rows = vec![Vec::new(); sizes.images * foreground];
    for (part, keys) in parts.iter().zip(found) {
        for (label, key) in keys {
            rows[part.image * foreground + label as usize - 1].push(key);
        }
    }
    rows.par_iter_mut().for_each(|keys| {
        keep_smallest(keys, taken);
        keys.sort_unstable();
    });
    let slots = foreground * taken;
    let mut pairs = HostPairs::new(sizes.images * slots);
    for (row, keys) in rows.iter().enumerate() {
        let label = (row % foreground + 1) as u32;
        for (place, key) in keys.iter().enumerate() {
            pairs.set(row * taken + place, *key as u32, label, key_value(*key));
        }
    }
    Ok(pairs.into_tensors((sizes.images, slots))?)
}

/// Class and key of everything above the threshold.
fn score(logits: &[f32], classes: usize, first: usize, threshold: f32) -> Vec<(u32, u64)> {
    let mut keys = Vec::new();
    if classes == 0 {
        return keys;
    }
    let mut exponentials = vec![0f32; classes];
    for (anchor, row) in logits.chunks_exact(classes).enumerate() {
        let largest = row.iter().fold(f32::NEG_INFINITY, |m, logit| m.max(*logit));
        for (exponential, logit) in exponentials.iter_mut().zip(row) {
            *exponential = (logit - largest).exp();
        }
        let sum: f32 = exponentials.iter().sum();
        for (label, exponential) in exponentials.iter().enumerate().skip(1) {
            let score = exponential / sum;
            if score > threshold {
                keys.push((label as u32, descending_key(score, (first + anchor) as u32)));
            }
        }
    }
    keys
}
