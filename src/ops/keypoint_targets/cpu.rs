//! Keypoint targets on the CPU: slices in, slices out.

use super::OP;
use crate::error::{Error, Result};
use crate::ops::support::matches::IGNORED_LABEL;

/// The arguments of the op.
pub(super) struct Batch<'a> {
    /// `[N, G, P]`: x, y and visibility.
    pub keypoints: &'a [[f32; 3]],
    /// `[N, S]`.
    pub boxes: &'a [[f32; 4]],
    pub objects: &'a [u32],
    pub counts: &'a [u32],
    /// G.
    pub n_objects: usize,
    /// P.
    pub points: usize,
    /// S.
    pub slots: usize,
}

impl Batch<'_> {
    /// Cells `[N, S, P]`.
    pub fn targets(&self, side: usize) -> Result<Vec<u32>> {
        let mut targets = vec![IGNORED_LABEL; self.boxes.len() * self.points];
        for (place, bbox) in self.boxes.iter().enumerate() {
            let (image, slot) = (place / self.slots, place % self.slots);
            if slot >= self.counts[image] as usize {
                continue;
            }
            let object = self.objects[place] as usize;
            if object >= self.n_objects {
                return Err(Error::Pixels {
                    what: format!("{OP}: slot {slot} of image {image}"),
                    found: format!("object {object}"),
                    expected: format!("one of the image's {}", self.n_objects),
                });
            }
            let first = (image * self.n_objects + object) * self.points;
            let keypoints = &self.keypoints[first..][..self.points];
            let targets = &mut targets[place * self.points..][..self.points];
            for (target, keypoint) in targets.iter_mut().zip(keypoints) {
                *target = cell(*keypoint, *bbox, side).unwrap_or(IGNORED_LABEL);
            }
        }
        Ok(targets)
    }
}

/// The cell of a keypoint, if it is in the box and visible.
fn cell([x, y, visible]: [f32; 3], [x1, y1, x2, y2]: [f32; 4], side: usize) -> Option<u32> {
    let column = place(x, x1, x2, side)?;
    let row = place(y, y1, y2, side)?;
    (visible > 0.0).then_some(row * side as u32 + column)
}

/// The column (or row) of a coordinate. A coordinate that is not finite has none.
fn place(at: f32, start: f32, end: f32, side: usize) -> Option<u32> {
    if at == end {
        return Some(side as u32 - 1);
    }
    // A quotient first, as the reference has it.
    let place = ((at - start) * (side as f32 / (end - start))).floor();
    (place >= 0.0 && place < side as f32).then_some(place as u32)
}
