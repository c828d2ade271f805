//! The adjoint of pooling, on all threads:
//! ```text
//! for each level and image, for each band of feature rows:
//!     for each box of the level, for each cell and each of its taps that falls into the band:
//!         features[tap] += tap's weight · gradient[cell, :]
//! ```
//! A band belongs to one task, so that sums have one order and nobody waits.

use rayon::prelude::*;

use super::RoiAlignParams;
use super::cpu::Axis;
use crate::ops::support::geometry;

/// Rows of a band.
const BAND: usize = 8;

/// What was pooled, and the gradient of the result.
pub(super) struct Pooled<'a> {
    /// `[N·K, output, output, C]`.
    pub gradient: &'a [f32],
    /// `[N, K, 4]`.
    pub boxes: &'a [f32],
    /// K.
    pub n_slots: usize,
    /// `[N]`.
    pub counts: &'a [u32],
}

/// A box that was pooled.
struct Placed {
    /// Its place among all slots.
    slot: usize,
    level: usize,
    rows: Axis,
    columns: Axis,
}

/// Gradients of the levels `[N, H_l, W_l, C]` that are wanted.
pub(super) fn run(
    pooled: &Pooled<'_>,
    levels: &[[usize; 4]],
    wanted: &[bool],
    params: &RoiAlignParams,
) -> Vec<Option<Vec<f32>>> {
    let placed: Vec<Vec<Placed>> =
        (0..pooled.counts.len()).map(|image| place(pooled, image, levels, params)).collect();
    levels
        .iter()
        .zip(wanted)
        .enumerate()
        .map(|(level, ([batch, height, width, channels], wanted))| {
            wanted.then(|| {
                let line = width * channels;
                let mut out = vec![0f32; batch * height * line];
                for (image, map) in out.chunks_exact_mut((height * line).max(1)).enumerate() {
                    let boxes: Vec<&Placed> =
                        placed[image].iter().filter(|placed| placed.level == level).collect();
                    map.par_chunks_mut((BAND * line).max(1)).enumerate().for_each(|(band, map)| {
                        for placed in &boxes {
                            placed.add(pooled, params.output, *channels, line, band * BAND, map);
                        }
                    });
                }
                out
            })
        })
        .collect()
}

/// The boxes of an image that have a level, with their samples.
fn place(
    pooled: &Pooled<'_>,
    image: usize,
    levels: &[[usize; 4]],
    params: &RoiAlignParams,
) -> Vec<Placed> {
    let first = image * pooled.n_slots;
    let last = first + (pooled.counts[image] as usize).min(pooled.n_slots);
    (first..last)
        .into_par_iter()
        .filter_map(|slot| {
            let corners: [f32; 4] = std::array::from_fn(|i| pooled.boxes[4 * slot + i]);
            if !corners.iter().all(|corner| corner.is_finite()) {
                return None;
            }
            let level = params.level_index(geometry::area(corners))?;
            let [_, height, width, _] = levels[level];
            let [x1, y1, x2, y2] = corners.map(|corner| corner * params.spatial_scales[level]);
            let (mut rows, mut columns) = (Axis::default(), Axis::default());
            rows.sample(y1, y2, height, params);
            columns.sample(x1, x2, width, params);
            Some(Placed { slot, level, rows, columns })
        })
        .collect()
}

impl Placed {
    /// Adds this box's gradient to a band of rows from `first_row` on, `line` values each.
    fn add(
        &self,
        pooled: &Pooled<'_>,
        output: usize,
        channels: usize,
        line: usize,
        first_row: usize,
        band: &mut [f32],
    ) {
        let cell_line = output * channels;
        let gradient = &pooled.gradient[self.slot * output * cell_line..][..output * cell_line];
        let band_rows = first_row..first_row + band.len() / line.max(1);
        for (i, gradient) in gradient.chunks_exact(cell_line.max(1)).enumerate() {
            for (row, row_weight) in self.rows.of(i) {
                if !band_rows.contains(row) {
                    continue;
                }
                let features = &mut band[(row - first_row) * line..][..line];
                for (j, gradient) in gradient.chunks_exact(channels).enumerate() {
                    for (column, column_weight) in self.columns.of(j) {
                        let weight = row_weight * column_weight;
                        let features = &mut features[column * channels..][..channels];
                        for (feature, gradient) in features.iter_mut().zip(gradient) {
                            *feature += weight * gradient;
                        }
                    }
                }
            }
        }
    }
}
