//! ```text
//! for parts of levels, in parallel:
//!     compare logits with a bound, 16 at a time; score those that may be above the threshold
//!     keys = (order-reversing bits of the score) << 32 | place in the level; drop all but the best now and then
//! for each image and level: join the parts, keep the best, sort
//! ```
//! A level has up to 11 million logits, of which a few thousand pass: the bound saves the exponentials, and the exact
//! score decides.

use candle_core::Tensor;
use rayon::prelude::*;

use super::TopPairsParams;
use crate::error::Result;
use crate::ops::support::check::with_slice;
use crate::ops::support::geometry::sigmoid;
use crate::ops::support::order::{descending_key, key_value};
use crate::ops::support::pairs::{HostPairs, Pairs, keep_smallest};

/// Logits compared before the result is looked at: long enough to fill vector registers.
const BLOCK: usize = 16;
/// Logits of a task.
const PER_TASK: usize = 1 << 16;

/// Some anchors of a level and image.
struct Part {
    image: usize,
    level: usize,
    first: usize,
    anchors: usize,
}

pub(super) fn run(
    logits: &[&Tensor],
    quality: Option<&[&Tensor]>,
    params: &TopPairsParams,
) -> Result<Pairs> {
    let (n, classes) = (logits[0].dims()[0], logits[0].dims()[2]);
    let lengths: Vec<usize> = logits.iter().map(|level| level.dims()[1]).collect();
    let contiguous = |levels: &[&Tensor]| -> Result<Vec<Tensor>> {
        Ok(levels.iter().map(|level| level.contiguous()).collect::<candle_core::Result<_>>()?)
    };
    let logits = contiguous(logits)?;
    let quality = quality.map(contiguous).transpose()?;
    let per_task = (PER_TASK / classes.max(1)).max(1);
    let mut parts = Vec::new();
    for image in 0..n {
        for (level, length) in lengths.iter().enumerate() {
            parts.extend((0..*length).step_by(per_task).map(|first| Part {
                image,
                level,
                first,
                anchors: per_task.min(length - first),
            }));
        }
    }
    let found: Vec<Vec<u64>> = parts
        .par_iter()
        .map(|part| {
            let start = part.image * lengths[part.level] + part.first;
            let anchors = start..start + part.anchors;
            let scan = |logits: &[f32], quality: Option<&[f32]>| {
                let logits = &logits[anchors.start * classes..anchors.end * classes];
                let quality = quality.map(|quality| &quality[anchors.clone()]);
                scan(logits, quality, classes, part.first, params)
            };
            with_slice(&logits[part.level], |logits: &[f32]| match &quality {
                Some(quality) => {
                    with_slice(&quality[part.level], |quality| scan(logits, Some(quality)))
                }
                None => Ok(scan(logits, None)),
            })?
        })
        .collect::<Result<_>>()?;

    let mut rows = vec![Vec::new(); n * lengths.len()];
    for (part, keys) in parts.iter().zip(found) {
        rows[part.image * lengths.len() + part.level].extend(keys);
    }
    rows.par_iter_mut().for_each(|keys| {
        keep_smallest(keys, params.per_level);
        keys.sort_unstable();
    });
    let slots: usize = lengths.iter().map(|length| params.per_level.min(length * classes)).sum();
    let mut pairs = HostPairs::new(n * slots);
    for (image, rows) in rows.chunks(lengths.len()).enumerate() {
        let (mut slot, mut first_anchor) = (image * slots, 0);
        for (keys, length) in rows.iter().zip(&lengths) {
            for (place, key) in keys.iter().enumerate() {
                let local = *key as u32;
                let (anchor, label) = (local / classes as u32, local % classes as u32);
                pairs.set(slot + place, first_anchor + anchor, label, key_value(*key));
            }
            slot += params.per_level.min(length * classes);
            first_anchor += *length as u32;
        }
    }
    Ok(pairs.into_tensors((n, slots))?)
}

/// Keys of the pairs above the threshold, at least the best `per_level` of them; `first` is the number of the first
/// anchor in its level.
fn scan(
    logits: &[f32],
    quality: Option<&[f32]>,
    classes: usize,
    first: usize,
    params: &TopPairsParams,
) -> Vec<u64> {
    if classes == 0 {
        return Vec::new();
    }
    let threshold = params.score_threshold;
    let most = 8 * params.per_level + 4096;
    let bound = lower_bound(f64::from(threshold));
    let mut keys = Vec::new();
    for (anchor, row) in logits.chunks_exact(classes).enumerate() {
        let quality = quality.map(|quality| sigmoid(quality[anchor]));
        let bound = match quality {
            Some(quality) => bound_beside(threshold, quality),
            None => bound,
        };
        for (block, logits) in row.chunks(BLOCK).enumerate() {
            let mut near = false;
            for logit in logits {
                near |= *logit >= bound;
            }
            if !near {
                continue;
            }
            for (place, logit) in logits.iter().enumerate() {
                if *logit >= bound {
                    let class = sigmoid(*logit);
                    let score = quality.map_or(class, |quality| (class * quality).sqrt());
                    if score > threshold {
                        let index = (first + anchor) * classes + block * BLOCK + place;
                        keys.push(descending_key(score, index as u32));
                    }
                }
            }
        }
        if keys.len() > most {
            keep_smallest(&mut keys, params.per_level);
        }
    }
    keys
}

/// A logit below which no sigmoid is greater than `score`, as computed in f32; infinite where none is.
///
/// The computed sigmoid is within a few units in its last place, 1e-6, of the exact one.
fn lower_bound(score: f64) -> f32 {
    let certain = score * (1.0 - 1e-5);
    if certain >= 1.0 {
        return f32::INFINITY;
    }
    if certain <= 0.0 {
        return f32::NEG_INFINITY;
    }
    ((certain / (1.0 - certain)).ln() - 1e-3) as f32
}

/// Like [`lower_bound`], for a score that is the root of the product with this quality.
fn bound_beside(threshold: f32, quality: f32) -> f32 {
    if threshold < 0.0 {
        return f32::NEG_INFINITY;
    }
    let threshold = f64::from(threshold);
    // A quality of 0 gives a score of 0, which no threshold from 0 on is below; NaN compares as false.
    if quality > 0.0 {
        lower_bound(threshold * threshold / f64::from(quality))
    } else {
        f32::INFINITY
    }
}
