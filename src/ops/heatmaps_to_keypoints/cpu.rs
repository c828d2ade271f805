//! The largest value of resized heatmaps on the CPU: slices in, slices out.
//!
//! ```text
//! for each box, for each keypoint:
//!     across = the map's rows, resized to the width of the box
//!     for the row of the box that promises most, then for all that promise enough:
//!         row = four rows of `across`, mixed
//!         keep its largest value if that is larger than what there was, or as large and earlier
//! ```
//! What a row promises follows from the largest and the smallest value of the four rows. Most rows are left out.

use rayon::prelude::*;

use super::MOST_PLACES;

/// Values that are compared at a time.
const LANES: usize = 16;

/// Heatmaps and their boxes.
pub(super) struct Batch<'a> {
    /// `[N · K, M, M', P]`.
    pub heatmaps: &'a [f32],
    /// M and M'.
    pub size: [usize; 2],
    /// P.
    pub keypoints: usize,
    /// `[N · K]`.
    pub boxes: &'a [[f32; 4]],
}

impl Batch<'_> {
    /// `[N, K, P, 3]`, of images with so many filled slots and these factors of y and x.
    pub fn find(&self, counts: &[u32], factors: &[(f32, f32)]) -> Vec<f32> {
        let mut found = vec![0f32; self.boxes.len() * self.keypoints * 3];
        if found.is_empty() {
            return found;
        }
        let slots = self.boxes.len() / counts.len();
        found.par_chunks_exact_mut(self.keypoints * 3).enumerate().for_each(|(place, found)| {
            let image = place / slots;
            if place % slots < counts[image] as usize {
                self.find_of_box(place, factors[image], found);
            }
        });
        found
    }

    fn find_of_box(&self, place: usize, (y_factor, x_factor): (f32, f32), found: &mut [f32]) {
        let [x1, y1, x2, y2] = self.boxes[place];
        let [height, width] = self.size;
        let (rows, columns) = (Axis::new(y1, y2, height), Axis::new(x1, x2, width));
        let maps = &self.heatmaps[place * height * width * self.keypoints..];
        let mut map = vec![0f32; height * width];
        let mut resized = Resized::new(&rows, &columns, height);
        for (keypoint, found) in found.chunks_exact_mut(3).enumerate() {
            let values = maps[keypoint..].iter().step_by(self.keypoints);
            map.iter_mut().zip(values).for_each(|(place, value)| *place = *value);
            let Largest { row, column, value } = resized.largest(&map);
            found[0] = columns.position(column) * x_factor;
            found[1] = rows.position(row) * y_factor;
            found[2] = value;
        }
    }
}

/// The places along one side of a box.
struct Axis {
    start: f32,
    /// Pixels per place.
    step: f32,
    taps: Vec<Taps>,
}

/// The entries of a map that a place mixes, and by which weights.
#[derive(Clone, Copy)]
struct Taps {
    index: [usize; 4],
    weight: [f32; 4],
}

impl Axis {
    /// The places from `start` to `end`, on a map with `cells` entries.
    fn new(start: f32, end: f32, cells: usize) -> Self {
        // NaN becomes 1.
        let extent = (end - start).max(1.0);
        let places = extent.ceil().min(MOST_PLACES);
        let scale = cells as f32 / places;
        let taps = (0..places as usize).map(|place| Taps::new(scale, place, cells)).collect();
        Self { start, step: extent / places, taps }
    }

    /// The center of a place, in pixels.
    fn position(&self, place: usize) -> f32 {
        (place as f32 + 0.5) * self.step + self.start
    }
}

impl Taps {
    fn new(scale: f32, place: usize, cells: usize) -> Self {
        let at = scale * (place as f32 + 0.5) - 0.5;
        let low = at.floor().min((cells - 1) as f32);
        let t = (at - low).clamp(0.0, 1.0);
        let last = cells as isize - 1;
        let index = [-1, 0, 1, 2].map(|i| (low as isize + i).clamp(0, last) as usize);
        Self { index, weight: [outer(t + 1.0), inner(t), inner(1.0 - t), outer(1.0 - t + 1.0)] }
    }
}

/// The parameter of the kernel: Keys 1981.
const A: f32 = -0.75;

/// Weight at distances up to 1.
fn inner(x: f32) -> f32 {
    ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
}

/// Weight at distances from 1 to 2.
fn outer(x: f32) -> f32 {
    ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A
}

/// The largest value of a resized map.
#[derive(Clone, Copy)]
struct Largest {
    row: usize,
    column: usize,
    value: f32,
}

/// Resizes the maps of one box.
struct Resized<'a> {
    rows: &'a [Taps],
    columns: &'a [Taps],
    /// `[M, columns]`.
    across: Vec<f32>,
    /// Smallest and largest value of each row of `across`.
    ranges: Vec<(f32, f32)>,
    /// What each row of the result can be at most.
    bounds: Vec<f32>,
    /// A row of the result.
    row: Vec<f32>,
}

impl<'a> Resized<'a> {
    fn new(rows: &'a Axis, columns: &'a Axis, height: usize) -> Self {
        let (rows, columns) = (&rows.taps[..], &columns.taps[..]);
        let across = vec![0.0; height * columns.len()];
        let row = vec![0.0; columns.len()];
        Self { rows, columns, across, ranges: Vec::new(), bounds: Vec::new(), row }
    }

    /// The largest value of a map `[M, M']`.
    fn largest(&mut self, map: &[f32]) -> Largest {
        self.resize_rows(map);
        self.bounds.clear();
        self.bounds.extend(self.rows.iter().map(|taps| bound(taps, &self.ranges)));
        let first = first_largest(&self.bounds);
        let mut best = None;
        let rest = (0..self.rows.len()).filter(|row| *row != first);
        for row in std::iter::once(first).chain(rest) {
            self.look_at(row, &mut best);
        }
        best.unwrap_or(Largest { row: 0, column: 0, value: f32::NAN })
    }

    fn resize_rows(&mut self, map: &[f32]) {
        let (n, width) = (self.columns.len(), map.len() * self.columns.len() / self.across.len());
        self.ranges.clear();
        for (across, map) in self.across.chunks_exact_mut(n).zip(map.chunks_exact(width)) {
            let mut range = (f32::INFINITY, f32::NEG_INFINITY);
            for (out, taps) in across.iter_mut().zip(self.columns) {
                *out = mix(taps.weight, taps.index.map(|index| map[index]));
                range = (range.0.min(*out), range.1.max(*out));
            }
            self.ranges.push(range);
        }
    }

    /// Notes the largest value of a row, unless it can't be the largest of all.
    fn look_at(&mut self, row: usize, best: &mut Option<Largest>) {
        if best.is_some_and(|best| self.bounds[row] < best.value) {
            return;
        }
        let taps = self.rows[row];
        let n = self.columns.len();
        let [a, b, c, d] = taps.index.map(|index| &self.across[index * n..][..n]);
        for (i, out) in self.row.iter_mut().enumerate() {
            *out = mix(taps.weight, [a[i], b[i], c[i], d[i]]);
        }
        let value = largest(&self.row);
        let is_better =
            best.is_none_or(|best| value > best.value || (value == best.value && row < best.row));
        if is_better && let Some(column) = self.row.iter().position(|v| *v == value) {
            *best = Some(Largest { row, column, value });
        }
    }
}

/// In this order, which is the reference's.
fn mix(weight: [f32; 4], values: [f32; 4]) -> f32 {
    weight[0] * values[0] + weight[1] * values[1] + weight[2] * values[2] + weight[3] * values[3]
}

/// What a mixture of rows can be at most, whatever their values within these ranges, and however sums are rounded. NaN
/// where that is unknown.
fn bound(taps: &Taps, ranges: &[(f32, f32)]) -> f32 {
    let (mut sum, mut size) = (0.0, 0.0);
    for (index, weight) in taps.index.into_iter().zip(taps.weight) {
        let (smallest, largest) = ranges[index];
        let term = weight * if weight > 0.0 { largest } else { smallest };
        sum += term;
        size += term.abs();
    }
    sum + 8.0 * f32::EPSILON * size
}

/// The first of the largest values; 0 if none can be compared.
fn first_largest(values: &[f32]) -> usize {
    let value = largest(values);
    values.iter().position(|v| *v == value).unwrap_or(0)
}

/// The largest of some values that is no NaN, or −∞.
fn largest(values: &[f32]) -> f32 {
    let mut best = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        best.iter_mut()
            .zip(chunk)
            .for_each(|(best, v)| *best = if *v > *best { *v } else { *best });
    }
    best.iter().chain(rest).fold(f32::NEG_INFINITY, |best, v| if *v > best { *v } else { best })
}
