//! For each box, on all threads:
//! ```text
//! rows = for each output row the feature rows it touches, with their weights; columns alike
//! cell = Σ over rows, Σ over columns: row weight · column weight · features[row, column, :]
//! ```
//! 1. The weight of a sample is a product of a row's and a column's, so taps are listed per axis: 4·output·sampling
//!    of them instead of 4·output²·sampling² per box.
//! 2. Taps of one cell that fall on the same row are added up, as neighboring samples of a small box share most rows.
//! 3. Channels are summed in blocks that stay in registers while all taps of a cell pass by.

use rayon::prelude::*;

use super::RoiAlignParams;
use crate::ops::support::cpu::element::Element;
use crate::ops::support::geometry;

/// Channels summed at a time; the sums fill eight SSE or NEON registers of sixteen.
const BLOCK: usize = 32;

/// One pyramid level.
pub(super) struct Map<'a, E> {
    /// `[N, height, width, C]`.
    pub values: &'a [E],
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// Cells per pixel.
    pub scale: f32,
}

/// Pools all boxes, `[N, K, 4]`; returns `[N·K, output, output, C]`.
pub(super) fn run<E: Element>(
    maps: &[Map<'_, E>],
    channels: usize,
    boxes: &[f32],
    n_slots: usize,
    counts: &[u32],
    params: &RoiAlignParams,
) -> Vec<E> {
    let per_box = params.output * params.output * channels;
    let mut pooled = vec![E::default(); counts.len() * n_slots * per_box];
    if pooled.is_empty() {
        return pooled;
    }
    let (boxes, _) = boxes.as_chunks::<4>();
    pooled.par_chunks_mut(per_box).zip(boxes).enumerate().for_each_init(
        || [Axis::default(), Axis::default()],
        |[rows, columns], (row, (pooled, corners))| {
            let (image, slot) = (row / n_slots, row % n_slots);
            let finite = corners.iter().all(|corner| corner.is_finite());
            if slot >= counts[image] as usize || !finite {
                return;
            }
            let Some(level) = params.level_index(geometry::area(*corners)) else { return };
            let map = &maps[level];
            let [x1, y1, x2, y2] = corners.map(|corner| corner * map.scale);
            rows.sample(y1, y2, map.height, params);
            columns.sample(x1, x2, map.width, params);
            let per_image = map.height * map.width * channels;
            let features = &map.values[image * per_image..][..per_image];
            let cells = pooled.chunks_exact_mut(channels);
            for (i, cell) in cells.enumerate() {
                let row_taps = rows.of(i / params.output);
                let column_taps = columns.of(i % params.output);
                sum_taps(cell, features, map.width, row_taps, column_taps);
            }
        },
    );
    pooled
}

/// Where the samples of one axis fall: for each output row the feature rows and their weights.
#[derive(Default)]
pub(super) struct Axis {
    taps: Vec<(usize, f32)>,
    ends: Vec<usize>,
}

impl Axis {
    /// Lists the taps of an extent `start..end`, in cells of a map with `size` rows (or columns).
    pub fn sample(&mut self, start: f32, end: f32, size: usize, params: &RoiAlignParams) {
        self.taps.clear();
        self.ends.clear();
        let samples = params.sampling as f32;
        let extent = (end - start).max(1.0);
        let bin = extent / params.output as f32;
        for cell in 0..params.output {
            let first = self.taps.len();
            for i in 0..params.sampling {
                let at = start + cell as f32 * bin + (i as f32 + 0.5) * bin / samples;
                // Written so that NaN, from an extent that overflows, is outside.
                if !(at >= -1.0 && at <= size as f32) {
                    continue;
                }
                let at = at.max(0.0);
                let low = at as usize;
                if low >= size - 1 {
                    self.add(first, size - 1, 1.0 / samples);
                } else {
                    let fraction = at - low as f32;
                    self.add(first, low, (1.0 - fraction) / samples);
                    self.add(first, low + 1, fraction / samples);
                }
            }
            self.ends.push(self.taps.len());
        }
    }

    fn add(&mut self, first_of_cell: usize, index: usize, weight: f32) {
        match self.taps[first_of_cell..].iter_mut().find(|tap| tap.0 == index) {
            Some(tap) => tap.1 += weight,
            None => self.taps.push((index, weight)),
        }
    }

    /// The taps of one output row (or column).
    pub fn of(&self, cell: usize) -> &[(usize, f32)] {
        let start = if cell == 0 { 0 } else { self.ends[cell - 1] };
        &self.taps[start..self.ends[cell]]
    }
}

/// Sums the weighted features of all taps into a cell of C channels.
fn sum_taps<E: Element>(
    cell: &mut [E],
    features: &[E],
    width: usize,
    rows: &[(usize, f32)],
    columns: &[(usize, f32)],
) {
    let channels = cell.len();
    let (blocks, rest) = cell.as_chunks_mut::<BLOCK>();
    let rest_start = blocks.len() * BLOCK;
    for (b, block) in blocks.iter_mut().enumerate() {
        let mut sums = [0f32; BLOCK];
        for (row, row_weight) in rows {
            for (column, column_weight) in columns {
                let weight = row_weight * column_weight;
                let start = (row * width + column) * channels + b * BLOCK;
                for (sum, feature) in sums.iter_mut().zip(&features[start..start + BLOCK]) {
                    *sum += weight * feature.widen();
                }
            }
        }
        *block = sums.map(E::narrow);
    }
    let mut sums = [0f32; BLOCK];
    for (row, row_weight) in rows {
        for (column, column_weight) in columns {
            let weight = row_weight * column_weight;
            let start = (row * width + column) * channels + rest_start;
            for (sum, feature) in sums.iter_mut().zip(&features[start..start + rest.len()]) {
                *sum += weight * feature.widen();
            }
        }
    }
    rest.iter_mut().zip(sums).for_each(|(value, sum)| *value = E::narrow(sum));
}
