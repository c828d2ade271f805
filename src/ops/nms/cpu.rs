//! ```text
//! visit the valid slots by descending score:
//!     keep the slot unless a kept box of its group overlaps it; stop at `capacity`
//! ```
//! Kept boxes lie in blocks, and the result is looked at once a block, so that the comparison needs no branch per box.

use std::collections::HashMap;

use candle_core::Tensor;
use rayon::prelude::*;

use crate::error::Result;
use crate::ops::support::check::lend;
use crate::ops::support::geometry::iou;
use crate::ops::support::order::descending_key;

/// Kept boxes compared before the result is looked at: long enough to fill vector registers.
const BLOCK: usize = 16;

pub(super) fn run(
    boxes: &Tensor,
    scores: &Tensor,
    groups: &Tensor,
    valid: &Tensor,
    threshold: f32,
    capacity: usize,
) -> Result<(Vec<u32>, Vec<u32>)> {
    let [n, slots] = [scores.dims()[0], scores.dims()[1]];
    lend!(boxes: f32, scores: f32, groups: u32, valid: u8);
    let (boxes, _) = boxes.as_chunks::<4>();
    let kept: Vec<Vec<u32>> = (0..n)
        .into_par_iter()
        .map(|image| {
            let range = image * slots..(image + 1) * slots;
            let slots = Slots {
                boxes: &boxes[range.clone()],
                scores: &scores[range.clone()],
                groups: &groups[range.clone()],
                valid: &valid[range],
            };
            suppress(&slots, threshold, capacity)
        })
        .collect();
    let mut index = vec![0; n * capacity];
    for (image, row) in kept.iter().enumerate() {
        index[image * capacity..image * capacity + row.len()].copy_from_slice(row);
    }
    Ok((index, kept.iter().map(|row| row.len() as u32).collect()))
}

/// The slots of one image.
struct Slots<'a> {
    boxes: &'a [[f32; 4]],
    scores: &'a [f32],
    groups: &'a [u32],
    valid: &'a [u8],
}

fn suppress(slots: &Slots, threshold: f32, capacity: usize) -> Vec<u32> {
    let mut order: Vec<u64> = (0..slots.scores.len())
        .filter(|&slot| {
            let finite = slots.boxes[slot].iter().all(|corner| corner.is_finite());
            slots.valid[slot] != 0 && !slots.scores[slot].is_nan() && finite
        })
        .map(|slot| descending_key(slots.scores[slot], slot as u32))
        .collect();
    order.sort_unstable();

    let mut kept = Vec::with_capacity(capacity.min(order.len()));
    let mut groups: HashMap<u32, Group> = HashMap::new();
    for slot in order.into_iter().map(|key| key as u32) {
        if kept.len() == capacity {
            break;
        }
        let candidate = slots.boxes[slot as usize];
        let group = groups.entry(slots.groups[slot as usize]).or_default();
        if !group.overlaps(candidate, threshold) {
            group.push(candidate);
            kept.push(slot);
        }
    }
    kept
}

/// The kept boxes of one group, in blocks. Unused places hold empty boxes at infinity, whose IoU is never above a
/// threshold.
#[derive(Default)]
struct Group {
    blocks: Vec<[[f32; 4]; BLOCK]>,
    len: usize,
}

impl Group {
    fn push(&mut self, kept: [f32; 4]) {
        if self.len.is_multiple_of(BLOCK) {
            self.blocks.push([[f32::INFINITY; 4]; BLOCK]);
        }
        if let Some(block) = self.blocks.last_mut() {
            block[self.len % BLOCK] = kept;
        }
        self.len += 1;
    }

    fn overlaps(&self, candidate: [f32; 4], threshold: f32) -> bool {
        self.blocks.iter().any(|block| {
            let mut found = false;
            for kept in block {
                found |= iou(*kept, candidate) > threshold;
            }
            found
        })
    }
}
