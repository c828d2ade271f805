//! ```text
//! for each image and segment, in parallel:
//!     keys = (order-reversing bits of the value) << 32 | index
//!     partition the k smallest keys to the front, sort them
//! ```
//! One integer comparison decides value and tie at once, so that an unstable selection gives a stable result.

use candle_core::Tensor;
use rayon::prelude::*;

use crate::error::Result;
use crate::ops::support::check::with_slice;
use crate::ops::support::order::descending_key;

pub(super) struct Best {
    pub slots: usize,
    pub values: Vec<f32>,
    pub index: Vec<u32>,
    pub segment: Vec<u32>,
}

pub(super) fn run(segments: &[&Tensor], n: usize, k: usize) -> Result<Best> {
    let lengths: Vec<usize> = segments.iter().map(|segment| segment.dims()[1]).collect();
    let rows: Vec<(usize, usize)> =
        (0..n).flat_map(|image| (0..segments.len()).map(move |level| (image, level))).collect();
    let selected: Vec<Vec<(u32, f32)>> = rows
        .par_iter()
        .map(|&(image, level)| {
            let length = lengths[level];
            with_slice(segments[level], |values: &[f32]| {
                select(&values[image * length..(image + 1) * length], k)
            })
        })
        .collect::<Result<_>>()?;

    let slots = lengths.iter().map(|length| k.min(*length)).sum();
    let mut best = Best {
        slots,
        values: Vec::with_capacity(n * slots),
        index: Vec::with_capacity(n * slots),
        segment: Vec::with_capacity(n * slots),
    };
    for (&(_, level), row) in rows.iter().zip(&selected) {
        let offset: usize = lengths[..level].iter().sum();
        best.values.extend(row.iter().map(|(_, value)| value));
        best.index.extend(row.iter().map(|(index, _)| index + offset as u32));
        best.segment.extend(row.iter().map(|_| level as u32));
    }
    Ok(best)
}

/// Index and value of the `k` largest, in order.
fn select(values: &[f32], k: usize) -> Vec<(u32, f32)> {
    let mut keys: Vec<u64> =
        values.iter().enumerate().map(|(i, value)| descending_key(*value, i as u32)).collect();
    if k < keys.len() {
        keys.select_nth_unstable(k);
        keys.truncate(k);
    }
    keys.sort_unstable();
    keys.into_iter().map(|key| (key as u32, values[key as u32 as usize])).collect()
}
