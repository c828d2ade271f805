//! Products of rows with packed weights.
//!
//! ```text
//! for each task, some rows and some columns:
//!     for each block of terms:
//!         left = the rows' values for these terms, gathered
//!         sums += left · weights, panel by panel
//!     out = activation(sums + bias + residual)
//! ```
//! The rows are gathered even if they lie side by side already: the kernel wants them at a constant distance, and a copy
//! of what is multiplied with 64 columns or more costs at most 3 % of the product.

use rayon::prelude::*;

use super::kernel::{Block, DEPTH, Finish, LEFT_STRIDE, Start};
use super::matrix::PackedMatrix;
use super::memory::{OutputPointer, Scratch};
use super::simd::{Job, Simd};
use crate::ops::support::activation::Activation;
use crate::ops::support::parallel::{Grid, split};

/// What follows the product.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Epilogue<'a> {
    /// Added before the activation, as many values as the output has.
    pub residual: Option<&'a [f32]>,
    pub activation: Activation,
}

/// The left side of a product.
pub(crate) trait Rows: Sync {
    /// Writes terms `first_term..first_term + terms` of row `row` to the start of `left`, which has at least
    /// [`Simd::LANES`] more values; what is written there does not matter. Implementations are `#[inline(always)]`.
    fn gather<S: Simd>(
        &self,
        simd: S,
        row: usize,
        first_term: usize,
        terms: usize,
        left: &mut [f32],
    );
}

/// Rows that lie side by side.
#[derive(Debug)]
pub(crate) struct PlainRows<'a> {
    pub values: &'a [f32],
    /// Values in a row.
    pub terms: usize,
}

impl Rows for PlainRows<'_> {
    #[inline(always)]
    fn gather<S: Simd>(
        &self,
        simd: S,
        row: usize,
        first_term: usize,
        terms: usize,
        left: &mut [f32],
    ) {
        copy(simd, &self.values[row * self.terms + first_term..][..terms], left);
    }
}

/// Copies all of `from` to the start of `to`, which has at least [`Simd::LANES`] more values; some of these are
/// overwritten.
#[inline(always)]
pub(crate) fn copy<S: Simd>(simd: S, from: &[f32], to: &mut [f32]) {
    assert!(to.len() >= from.len() + S::LANES);
    let n = from.len();
    let (from, to) = (from.as_ptr(), to.as_mut_ptr());
    let whole = n / S::LANES * S::LANES;
    // SAFETY: reads stay below `n`; writes end at most `LANES` after it, which was asserted to be inside of `to`.
    unsafe {
        for i in (0..whole).step_by(S::LANES) {
            simd.store(to.add(i), simd.load(from.add(i)));
        }
        if whole < n {
            simd.store(to.add(whole), simd.load_first(from.add(whole), n - whole));
        }
    }
}

/// Multiplies rows with a matrix, and writes them one after the other: `[rows, columns]`.
pub(crate) fn multiply<R: Rows>(
    left: &R,
    rows: usize,
    matrix: &PackedMatrix,
    epilogue: Epilogue<'_>,
) -> Vec<f32> {
    let columns = matrix.columns();
    let places = |row: usize| row * columns;
    multiply_to(left, rows, std::slice::from_ref(matrix), epilogue, places, |_| 0)
}

/// Multiplies rows with several matrices that have equally many terms and columns. The product of row `row` with
/// matrix `m` lies at `row_place(row) + matrix_place(m)` in the output, which has `rows · columns · matrices` values.
/// The places must not overlap.
pub(crate) fn multiply_to<R: Rows>(
    left: &R,
    rows: usize,
    matrices: &[PackedMatrix],
    epilogue: Epilogue<'_>,
    row_place: impl Fn(usize) -> usize + Sync,
    matrix_place: impl Fn(usize) -> usize + Sync,
) -> Vec<f32> {
    let [matrix, ..] = matrices else {
        return Vec::new();
    };
    let len = rows * matrix.columns() * matrices.len();
    if let Some(residual) = epilogue.residual {
        assert_eq!(residual.len(), len, "values of the residual");
    }
    let mut out = super::memory::Output::new(len);
    if len > 0 {
        let pointer = out.pointer();
        let grid = grid(rows, matrix, matrices.len());
        (0..grid.tasks()).into_par_iter().with_max_len(1).for_each(|task| {
            let (rows, panels) = grid.task(task);
            let offsets = rows.clone().map(&row_place).collect::<Vec<_>>();
            let first_column = panels.start * matrix.panel_columns();
            let task = Task {
                left,
                first_row: rows.start,
                offsets: &offsets,
                matrices,
                first_column,
                columns: (panels.end * matrix.panel_columns()).min(matrix.columns()) - first_column,
                epilogue,
                out: pointer,
                len,
                matrix_place: &matrix_place,
            };
            matrix.isa().run(task);
        });
    }
    // SAFETY: the tasks cover all rows and columns of all matrices; as the places don't overlap and there are `len` of
    // them, all are written.
    unsafe { out.finish() }
}

/// Rows that keep a block of weights busy, while they stay in the second-level cache.
const ROWS_PER_TASK: usize = 112;
/// Weights above this size come from main memory each time that a task reads them: the fewer tasks, the better.
const LARGE_MATRIX_BYTES: usize = 8 << 20;
/// Most rows of a task, so that the gathered block (544 KiB) stays in the second-level cache.
const MAX_ROWS_PER_TASK: usize = 504;

/// How a product is split.
fn grid(rows: usize, matrix: &PackedMatrix, matrices: usize) -> Grid {
    let threads = rayon::current_num_threads();
    let panels = matrix.columns().div_ceil(matrix.panel_columns());
    let large = matrices * matrix.panels().len() * size_of::<f32>() > LARGE_MATRIX_BYTES;
    let rows_per_task = if large {
        split(rows, threads, matrix.tile_rows(), MAX_ROWS_PER_TASK)
    } else {
        split(rows, 4 * threads, matrix.tile_rows(), ROWS_PER_TASK)
    };
    // Few rows: split the columns, too.
    let row_tasks = rows.div_ceil(rows_per_task);
    let panels_per_task = split(panels, threads.div_ceil(row_tasks), 1, panels);
    Grid { sizes: [rows, panels], steps: [rows_per_task, panels_per_task] }
}

/// Some rows and columns of a product.
struct Task<'a, R, P> {
    left: &'a R,
    first_row: usize,
    offsets: &'a [usize],
    matrices: &'a [PackedMatrix],
    first_column: usize,
    columns: usize,
    epilogue: Epilogue<'a>,
    out: OutputPointer,
    len: usize,
    matrix_place: P,
}

impl<R: Rows, P: Fn(usize) -> usize> Job for Task<'_, R, P> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let terms = self.matrices[0].terms();
        let mut scratch = Scratch::new(self.offsets.len() * LEFT_STRIDE);
        let left = scratch.values();
        for first_term in (0..terms).step_by(DEPTH) {
            let depth = (terms - first_term).min(DEPTH);
            for (row, left) in left.chunks_exact_mut(LEFT_STRIDE).enumerate() {
                self.left.gather(simd, self.first_row + row, first_term, depth, left);
            }
            let last = first_term + depth == terms;
            for (m, matrix) in self.matrices.iter().enumerate() {
                let place = (self.matrix_place)(m) + self.first_column;
                self.check(matrix, place);
                let panel = self.first_column / matrix.panel_columns();
                let start = panel * matrix.panel_stride() + first_term * matrix.panel_columns();
                // SAFETY:
                // 1. `left` has `rows` rows; the matrix has panels for `columns` columns from `first_column` on,
                //    and as many values of bias (`check`);
                // 2. `check` has compared all places with the length of the output and the residual; the first
                //    block of terms has written the sums that the others read;
                // 3. places don't overlap, by the contract of `multiply_to`, and no other task has this part.
                unsafe {
                    let finish = Finish {
                        bias: matrix.bias().as_ptr().add(self.first_column),
                        residual: self.epilogue.residual.map(|r| r.as_ptr().add(place)),
                        activation: self.epilogue.activation,
                    };
                    Block {
                        left: left.as_ptr(),
                        panels: matrix.panels().as_ptr().add(start),
                        panel_stride: matrix.panel_stride(),
                        depth,
                        columns: self.columns,
                        out: self.out.get().add(place),
                        offsets: self.offsets,
                        start: if first_term == 0 { Start::Zero } else { Start::Sums },
                        finish: last.then_some(finish),
                    }
                    .multiply(simd);
                }
            }
        }
    }
}

impl<R, P> Task<'_, R, P> {
    /// Compares the places that a block touches with the sizes of what it touches.
    #[inline(always)]
    fn check(&self, matrix: &PackedMatrix, place: usize) {
        assert!(self.first_column + self.columns <= matrix.columns());
        assert_eq!(matrix.terms(), self.matrices[0].terms());
        let end = self.offsets.iter().max().map_or(0, |offset| offset + place + self.columns);
        assert!(end <= self.len, "place {end} of {}", self.len);
    }
}
