//! The keypoint loss on the CPU: slices in, slices out. Sums have the order of rows and keypoints, whatever the number of
//! threads. Targets are cells or ignored.

use rayon::prelude::*;

use super::Maps;
use crate::ops::support::matches::IGNORED_LABEL;

impl Maps {
    /// Logits of a row.
    fn row(self) -> usize {
        self.cells * self.keypoints
    }
}

/// `[R, P]`: the logarithm of the sum of the exponentials of a map's logits, 0 for a keypoint without a cell.
pub(super) fn normalizers(logits: &[f32], targets: &[u32], maps: Maps) -> Vec<f64> {
    let map = |i: usize| {
        let (row, keypoint) = (i / maps.keypoints, i % maps.keypoints);
        let logits = &logits[row * maps.row() + keypoint..];
        logits.iter().step_by(maps.keypoints).take(maps.cells).map(|logit| f64::from(*logit))
    };
    let normalizer = |i: usize| {
        if targets[i] == IGNORED_LABEL {
            return 0.0;
        }
        // No exponential overflows.
        let largest = map(i).fold(f64::NEG_INFINITY, f64::max);
        largest + map(i).map(|logit| (logit - largest).exp()).sum::<f64>().ln()
    };
    (0..targets.len()).into_par_iter().map(normalizer).collect()
}

/// The loss, and one over the number of keypoints that count, or 0.
pub(super) fn cost(logits: &[f32], targets: &[u32], normalizers: &[f64], maps: Maps) -> (f32, f64) {
    let (mut costs, mut n) = (0.0, 0usize);
    for (i, (target, normalizer)) in targets.iter().zip(normalizers).enumerate() {
        if *target != IGNORED_LABEL {
            let (row, keypoint) = (i / maps.keypoints, i % maps.keypoints);
            let place = row * maps.row() + *target as usize * maps.keypoints + keypoint;
            costs += normalizer - f64::from(logits[place]);
            n += 1;
        }
    }
    let share = if n == 0 { 0.0 } else { 1.0 / n as f64 };
    ((costs * share) as f32, share)
}

/// The derivative of each keypoint's cost by its logits, times a factor.
pub(super) fn slopes(
    logits: &[f32],
    targets: &[u32],
    normalizers: &[f64],
    maps: Maps,
    factor: f64,
) -> Vec<f32> {
    let mut slopes = vec![0f32; logits.len()];
    if slopes.is_empty() {
        return slopes;
    }
    let rows = slopes.par_chunks_exact_mut(maps.row()).zip(logits.par_chunks_exact(maps.row()));
    rows.enumerate().for_each(|(row, (slopes, logits))| {
        let of_row = row * maps.keypoints..(row + 1) * maps.keypoints;
        let (targets, normalizers) = (&targets[of_row.clone()], &normalizers[of_row]);
        let cells = slopes.chunks_exact_mut(maps.keypoints);
        for (cell, (slopes, logits)) in cells.zip(logits.chunks_exact(maps.keypoints)).enumerate() {
            let terms = slopes.iter_mut().zip(logits).zip(targets.iter().zip(normalizers));
            for ((slope, logit), (target, normalizer)) in terms {
                if *target != IGNORED_LABEL {
                    let probability = (f64::from(*logit) - normalizer).exp();
                    let wanted = if *target as usize == cell { 1.0 } else { 0.0 };
                    *slope = ((probability - wanted) * factor) as f32;
                }
            }
        }
    });
    slopes
}
