//! Products over pixels: the gradients of weights.
//!
//! ```text
//! for each pixel p:
//!     for each output o, for each term t:
//!         sums[o, t] += gradient[p, o] · row(p)[t]
//! ```
//! of the pixels that have a gradient. Both sides have channels side by side, so that a tile of sums takes its vectors and its broadcast values from memory as
//! it lies. The sums of a task stay in the second-level cache.

use std::ops::Range;

use rayon::prelude::*;

use super::element::{Pointer, Term};
use super::kernel::{DEPTH, LEFT_STRIDE, MAX_TILE, Start, VECTORS, panel_columns};
use super::matrix::TileSizeOf;
use super::memory::{Output, Scratch};
use super::product::Rows;
use super::simd::{Job, RowsJob, Simd};
use crate::ops::support::isa::Isa;
use crate::ops::support::parallel::{Grid, split};

/// Terms of a task: what is gathered stays in the second-level cache.
const TERMS_PER_TASK: usize = DEPTH;
/// Most outputs of a task, likewise.
const MAX_OUTPUTS_PER_TASK: usize = DEPTH;
/// Values of partial results, all together, when pixels are split.
const MAX_PARTIAL_VALUES: usize = 4 << 20;

/// Sums of some outputs and terms over some pixels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OuterBlock {
    /// `[depth, left_stride]`, of which `rows` are used, and whole tiles of rows can be read.
    pub left: *const f32,
    pub left_stride: usize,
    /// `[depth, right_stride]`, of which all vectors that `columns` touch can be read.
    pub right: *const f32,
    pub right_stride: usize,
    /// Pixels.
    pub depth: usize,
    pub rows: usize,
    pub columns: usize,
    /// `[rows, out_stride]`.
    pub out: *mut f32,
    pub out_stride: usize,
    pub start: Start,
}

impl OuterBlock {
    /// Computes the sums.
    ///
    /// # Safety
    /// 1. `left` and `right` point to as many values as the fields' descriptions say;
    /// 2. `columns` values can be written at each row of `out`, and are initialized with [`Start::Sums`];
    /// 3. nothing else accesses these meanwhile.
    #[inline(always)]
    pub unsafe fn multiply<S: Simd>(&self, simd: S) {
        for column in (0..self.columns).step_by(panel_columns::<S>()) {
            let columns = (self.columns - column).min(panel_columns::<S>());
            for row in (0..self.rows).step_by(S::TILE_ROWS) {
                let rows = (self.rows - row).min(S::TILE_ROWS);
                // SAFETY: by the caller's promises; the tile covers rows and columns inside of the block.
                let tile = unsafe {
                    Self {
                        left: self.left.add(row),
                        right: self.right.add(column),
                        rows,
                        columns,
                        out: self.out.add(row * self.out_stride + column),
                        ..*self
                    }
                };
                simd.with_rows(rows, RunTile(tile));
            }
        }
    }
}

/// Chooses an [`OuterTile`].
struct RunTile(OuterBlock);

impl RowsJob for RunTile {
    #[inline(always)]
    fn run<S: Simd, const ROWS: usize>(self, simd: S) {
        // An ordinary call: one copy of the code for all users of a tile.
        simd.run(OuterTile::<ROWS>(self.0));
    }
}

/// A tile with a number of rows that the compiler knows, so that its sums are registers.
struct OuterTile<const ROWS: usize>(OuterBlock);

impl<const ROWS: usize> Job for OuterTile<ROWS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let OuterBlock { mut left, mut right, depth, out, out_stride, start, .. } = self.0;
        let mut sums = [[simd.splat(0.0); VECTORS]; ROWS];
        // SAFETY: by the promises that `OuterBlock::multiply` was given. The pointers are moved beyond the last pixel, but
        // not read there.
        unsafe {
            for _ in 0..depth {
                let mut vectors = [simd.splat(0.0); VECTORS];
                for (v, vector) in vectors.iter_mut().enumerate() {
                    *vector = simd.load(right.add(v * S::LANES));
                }
                for (row, sums) in sums.iter_mut().enumerate() {
                    let value = simd.splat(*left.add(row));
                    for (sum, vector) in sums.iter_mut().zip(vectors) {
                        *sum = simd.mul_add(value, vector, *sum);
                    }
                }
                left = left.wrapping_add(self.0.left_stride);
                right = right.wrapping_add(self.0.right_stride);
            }
            if self.0.rows < ROWS || self.0.columns < panel_columns::<S>() {
                let mut values = [0f32; MAX_TILE];
                for (row, sums) in sums.iter().enumerate() {
                    for (v, sum) in sums.iter().enumerate() {
                        simd.store(values.as_mut_ptr().add((row * VECTORS + v) * S::LANES), *sum);
                    }
                }
                return self.0.write_part(&values, panel_columns::<S>());
            }
            for (row, sums) in sums.into_iter().enumerate() {
                for (v, mut sum) in sums.into_iter().enumerate() {
                    let out = out.add(row * out_stride + v * S::LANES);
                    if start == Start::Sums {
                        sum = simd.add(sum, simd.load(out));
                    }
                    simd.store(out, sum);
                }
            }
        }
    }
}

impl OuterBlock {
    /// Writes the rows and columns of a tile that belong to the block, where these are not all.
    ///
    /// # Safety
    /// As for [`Self::multiply`]; `values` has rows of `width` values.
    #[inline(never)]
    unsafe fn write_part(&self, values: &[f32], width: usize) {
        for (row, values) in values.chunks_exact(width).take(self.rows).enumerate() {
            for (column, value) in values[..self.columns].iter().enumerate() {
                // SAFETY: by the caller's promises; neither a row nor a column beyond those of the block is accessed.
                unsafe {
                    let place = self.out.add(row * self.out_stride + column);
                    let before = if self.start == Start::Sums { place.read() } else { 0.0 };
                    place.write(before + value);
                }
            }
        }
    }
}

/// How sums over pixels are split into tasks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OuterPlan {
    /// Outputs and terms.
    pub grid: Grid,
    /// Parts of the pixels, each with sums of its own, which are added up in the end.
    pub parts: usize,
    /// Units of pixels in a part.
    pub units_per_part: usize,
}

impl OuterPlan {
    /// Splits `units` of pixels where outputs and terms alone make too few tasks, as long as the parts' results of `values`
    /// each are few.
    pub fn new(grid: Grid, units: usize, values: usize) -> Self {
        let parts = (4 * rayon::current_num_threads())
            .div_ceil(grid.tasks())
            .min(units)
            .min((MAX_PARTIAL_VALUES / values.max(1)).max(1))
            .max(1);
        let units_per_part = units.div_ceil(parts).max(1);
        Self { grid, parts: units.div_ceil(units_per_part).max(1), units_per_part }
    }

    /// Number of tasks.
    pub fn tasks(&self) -> usize {
        self.grid.tasks() * self.parts
    }

    /// Part, outputs and terms of a task.
    pub fn task(&self, index: usize) -> (usize, Range<usize>, Range<usize>) {
        let (outputs, terms) = self.grid.task(index % self.grid.tasks());
        (index / self.grid.tasks(), outputs, terms)
    }

    /// Units of a part.
    pub fn units(&self, part: usize, units: usize) -> Range<usize> {
        let start = (part * self.units_per_part).min(units);
        start..(start + self.units_per_part).min(units)
    }

    /// Adds up the parts, which lie one after the other.
    pub fn sum(&self, mut parts: Vec<f32>) -> Vec<f32> {
        let len = parts.len() / self.parts;
        let (sum, others) = parts.split_at_mut(len);
        for part in others.chunks_exact(len.max(1)) {
            sum.par_iter_mut().zip(part).for_each(|(sum, value)| *sum += value);
        }
        parts.truncate(len);
        parts
    }
}

/// Multiplies gradients `[_, outputs]` with the rows that made them: `[outputs, terms]`, where
/// `out[o, t] = Σ over pixels gradient[p, o] · row(p)[t]`.
pub(crate) fn multiply_transposed<R: Rows<Element = f32>>(
    isa: Isa,
    gradient: &[f32],
    outputs: usize,
    pixels: &[usize],
    rows: &R,
) -> Vec<f32> {
    let terms = rows.numbers();
    let len = outputs * terms;
    if len == 0 || pixels.is_empty() {
        return vec![0.0; len];
    }
    let wanted = 4 * rayon::current_num_threads();
    let term_tasks = terms.div_ceil(TERMS_PER_TASK);
    let unit = isa.run(TileSizeOf).rows;
    let outputs_per_task = split(outputs, wanted.div_ceil(term_tasks), unit, MAX_OUTPUTS_PER_TASK);
    let grid = Grid { sizes: [outputs, terms], steps: [outputs_per_task, TERMS_PER_TASK] };
    let blocks = pixels.len().div_ceil(DEPTH);
    let plan = OuterPlan::new(grid, blocks, len);
    let mut out = Output::<f32>::new(len * plan.parts);
    let pointer = out.pointer();
    (0..plan.tasks()).into_par_iter().with_max_len(1).for_each(|task| {
        let (part, task_outputs, task_terms) = plan.task(task);
        let blocks = plan.units(part, blocks);
        isa.run(Task {
            gradient,
            outputs,
            rows,
            terms,
            pixels: &pixels[blocks.start * DEPTH..(blocks.end * DEPTH).min(pixels.len())],
            task_outputs,
            task_terms,
            place: part * len,
            out: pointer,
        });
    });
    // SAFETY: the tasks cover all outputs and terms of all parts, each of which has pixels.
    plan.sum(unsafe { out.finish() })
}

struct Task<'a, R> {
    gradient: &'a [f32],
    outputs: usize,
    rows: &'a R,
    terms: usize,
    pixels: &'a [usize],
    task_outputs: Range<usize>,
    task_terms: Range<usize>,
    /// Of the part's sums in the output.
    place: usize,
    out: Pointer,
}

impl<R: Rows<Element = f32>> Job for Task<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        // The output was made for f32.
        let Pointer::F32(out) = self.out else { return };
        let (n_outputs, n_terms) = (self.task_outputs.len(), self.task_terms.len());
        assert!(n_outputs <= DEPTH && n_terms <= DEPTH);
        // Vectors are read beyond the last term, and a copied row may write beyond it.
        let mut scratch = Scratch::new(2 * DEPTH * LEFT_STRIDE + 2 * panel_columns::<S>());
        let (left, right) = scratch.values().split_at_mut(DEPTH * LEFT_STRIDE);
        let place = self.place + self.task_outputs.start * self.terms + self.task_terms.start;
        for (block, pixels) in self.pixels.chunks(DEPTH).enumerate() {
            for (k, pixel) in pixels.iter().enumerate() {
                let start = pixel * self.outputs + self.task_outputs.start;
                let gradient = &self.gradient[start..start + n_outputs];
                f32::copy(simd, gradient, &mut left[k * LEFT_STRIDE..][..LEFT_STRIDE]);
                let row = &mut right[k * LEFT_STRIDE..][..LEFT_STRIDE];
                self.rows.gather::<S, f32>(simd, *pixel, self.task_terms.start, n_terms, row);
            }
            // SAFETY: `left` has `depth` rows of all outputs, `right` has `depth` rows of all terms, and after each
            // enough values for whole vectors and tiles. The place lies inside of the part, and no other task has these outputs and
            // terms. The first block writes the sums.
            unsafe {
                OuterBlock {
                    left: left.as_ptr(),
                    left_stride: LEFT_STRIDE,
                    right: right.as_ptr(),
                    right_stride: LEFT_STRIDE,
                    depth: pixels.len(),
                    rows: n_outputs,
                    columns: n_terms,
                    out: out.add(place),
                    out_stride: self.terms,
                    start: if block == 0 { Start::Zero } else { Start::Sums },
                }
                .multiply(simd);
            }
        }
    }
}

/// Rows of `[rows, columns]` with a value that is not zero, by ascending index: of a gradient, often few. Losses look at
/// some hundred anchors, and boxes cover parts of a map.
pub(crate) fn nonzero_rows(values: &[f32], columns: usize) -> Vec<usize> {
    /// Rows that a task looks at.
    const ROWS: usize = 1 << 10;
    let rows = values.par_chunks_exact(columns.max(1)).with_min_len(ROWS).enumerate();
    rows.filter(|(_, row)| row.iter().any(|value| *value != 0.0)).map(|(row, _)| row).collect()
}

/// Sums of each column of `[rows, columns]`.
pub(crate) fn column_sums(values: &[f32], columns: usize) -> Vec<f32> {
    /// Values that a task adds up; the order of summation depends on it, not on the number of threads.
    const CHUNK: usize = 1 << 16;
    let rows_per_task = (CHUNK / columns.max(1)).max(1);
    let partial: Vec<Vec<f32>> = values
        .par_chunks(rows_per_task * columns.max(1))
        .map(|rows| {
            let mut sums = vec![0f32; columns];
            for row in rows.chunks_exact(columns) {
                sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
            sums
        })
        .collect();
    let mut sums = vec![0f64; columns];
    for part in partial {
        sums.iter_mut().zip(part).for_each(|(sum, value)| *sum += f64::from(value));
    }
    sums.into_iter().map(|sum| sum as f32).collect()
}
