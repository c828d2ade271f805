//! The loss by its definition, in f64, of logits that are not large.

use super::{IGNORED_LABEL, Maps};

pub(super) fn keypoint_loss(logits: &[f64], targets: &[u32], maps: Maps) -> f64 {
    let (mut sum, mut n) = (0.0, 0.0);
    for row in 0..maps.rows {
        for keypoint in 0..maps.keypoints {
            let target = targets[row * maps.keypoints + keypoint];
            if target == IGNORED_LABEL {
                continue;
            }
            let at = |cell: usize| logits[(row * maps.cells + cell) * maps.keypoints + keypoint];
            let total: f64 = (0..maps.cells).map(|cell| at(cell).exp()).sum();
            sum -= (at(target as usize).exp() / total).ln();
            n += 1.0;
        }
    }
    if n > 0.0 { sum / n } else { 0.0 }
}
