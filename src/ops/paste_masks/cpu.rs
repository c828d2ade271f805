//! Full-size masks on the CPU: slices in, slices out.

use rayon::prelude::*;

use super::PasteMasksParams;
use crate::ops::support::paste::region;

/// Draws `[D, side, side]` probabilities in boxes `[D, 4]`.
pub(super) fn run(
    probabilities: &[f32],
    side: usize,
    boxes: &[f32],
    params: &PasteMasksParams,
) -> Vec<u8> {
    let PasteMasksParams { height, width, threshold } = *params;
    let (boxes, _) = boxes.as_chunks::<4>();
    let mut masks = vec![0; boxes.len() * height * width];
    if masks.is_empty() {
        return masks;
    }
    let inputs = probabilities.par_chunks_exact(side * side).zip(boxes);
    masks.par_chunks_exact_mut(height * width).zip(inputs).for_each(
        |(mask, (probabilities, bbox))| {
            let region = region(side, probabilities, *bbox, (height, width));
            let rows = region.probabilities.chunks_exact(region.width.max(1));
            for (row, values) in rows.enumerate() {
                let start = (region.y + row) * width + region.x;
                for (pixel, &value) in mask[start..].iter_mut().zip(values) {
                    *pixel = if value > threshold { 255 } else { 0 };
                }
            }
        },
    );
    masks
}
