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

use std::marker::PhantomData;

use rayon::prelude::*;

use super::element::{Element, Pointer, Term, Values};
use super::kernel::{Block, DEPTH, Finish, Kernel, LEFT_STRIDE, Start};
use super::matrix::PackedMatrix;
use super::memory::{Output, Scratch, as_terms};
use super::simd::{Job, Simd};
use crate::ops::support::activation::Activation;
use crate::ops::support::parallel::{Grid, split};

/// What follows the product.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Epilogue<'a> {
    /// Added before the activation, as many values as the output has.
    pub residual: Option<Values<'a>>,
    pub activation: Activation,
}

/// The left side of a product.
pub(crate) trait Rows: Sync {
    /// Type of the numbers.
    type Element: Element;

    /// Writes numbers `first..first + n` of row `row` to the start of `left`, which has at least [`Simd::LANES`] more
    /// places; what is written there does not matter. Implementations are `#[inline(always)]`.
    fn gather<S: Simd, T: Term<Self::Element>>(
        &self,
        simd: S,
        row: usize,
        first: usize,
        n: usize,
        left: &mut [T],
    );

    /// Numbers in a row.
    fn numbers(&self) -> usize;
}

/// Rows that lie side by side.
#[derive(Debug)]
pub(crate) struct PlainRows<'a, E> {
    pub values: &'a [E],
    /// Numbers in a row.
    pub numbers: usize,
}

impl<E: Element> Rows for PlainRows<'_, E> {
    type Element = E;

    #[inline(always)]
    fn gather<S: Simd, T: Term<E>>(
        &self,
        simd: S,
        row: usize,
        first: usize,
        n: usize,
        left: &mut [T],
    ) {
        T::copy(simd, &self.values[row * self.numbers + first..][..n], left);
    }

    fn numbers(&self) -> usize {
        self.numbers
    }
}

/// Some of the rows that lie side by side.
#[derive(Debug)]
pub(crate) struct ChosenRows<'a, E> {
    pub values: &'a [E],
    pub rows: &'a [usize],
    /// Numbers in a row.
    pub numbers: usize,
}

impl<E: Element> Rows for ChosenRows<'_, E> {
    type Element = E;

    #[inline(always)]
    fn gather<S: Simd, T: Term<E>>(
        &self,
        simd: S,
        row: usize,
        first: usize,
        n: usize,
        left: &mut [T],
    ) {
        T::copy(simd, &self.values[self.rows[row] * self.numbers + first..][..n], left);
    }

    fn numbers(&self) -> usize {
        self.numbers
    }
}

/// Multiplies rows with a matrix, and writes them one after the other: `[rows, columns]`.
pub(crate) fn multiply<R: Rows, O: Element>(
    left: &R,
    rows: usize,
    matrix: &PackedMatrix,
    epilogue: Epilogue<'_>,
) -> Vec<O> {
    let columns = matrix.columns();
    multiply_to(left, rows, std::slice::from_ref(matrix), epilogue, |row| row * columns, &[0])
}

/// Multiplies rows with several matrices that have equally many terms and columns. The product of row `row` with
/// matrix `m` lies at `row_place(row) + matrix_places[m]` in the output, which has `rows · columns · matrices` values.
/// The places must not overlap.
pub(crate) fn multiply_to<R: Rows, O: Element>(
    left: &R,
    rows: usize,
    matrices: &[PackedMatrix],
    epilogue: Epilogue<'_>,
    row_place: impl Fn(usize) -> usize + Sync,
    matrix_places: &[usize],
) -> Vec<O> {
    let [matrix, ..] = matrices else {
        return Vec::new();
    };
    let len = rows * matrix.columns() * matrices.len();
    if let Some(residual) = epilogue.residual {
        assert_eq!(residual.len, len, "values of the residual");
    }
    assert_eq!(left.numbers().div_ceil(matrix.kernel().numbers()), matrix.terms());
    let mut out = Output::<O>::new(len);
    if len > 0 {
        let pointer = out.pointer();
        let grid = grid(rows, matrix, matrices.len());
        (0..grid.tasks()).into_par_iter().with_max_len(1).for_each(|task| {
            let (rows, panels) = grid.task(task);
            let offsets = rows.clone().map(&row_place).collect::<Vec<_>>();
            let first_column = panels.start * matrix.panel_columns();
            let part = Part {
                first_row: rows.start,
                offsets: &offsets,
                matrices,
                matrix_places,
                first_column,
                columns: (panels.end * matrix.panel_columns()).min(matrix.columns()) - first_column,
                epilogue,
                out: pointer,
                len,
            };
            part.run(left);
        });
    }
    // SAFETY: the tasks cover all rows and columns of all matrices; as the places don't overlap and there are `len` of
    // them, all are written.
    unsafe { out.finish() }
}

/// Multiplies the rows of several left sides with a matrix each, all of one size, and writes the products of a row side by
/// side: `[rows, matrices · columns]`.
pub(crate) fn multiply_side_by_side<R: Rows, O: Element>(
    left: &[R],
    rows: usize,
    matrices: &[PackedMatrix],
    epilogue: Epilogue<'_>,
) -> Vec<O> {
    let [first, ..] = matrices else {
        return Vec::new();
    };
    let line = first.columns() * matrices.len();
    let len = rows * line;
    if let Some(residual) = epilogue.residual {
        assert_eq!(residual.len, len, "values of the residual");
    }
    assert_eq!(left.len(), matrices.len());
    let mut out = Output::<O>::new(len);
    if len > 0 {
        let pointer = out.pointer();
        let grid = grid(rows, first, 1);
        // Tasks of equal rows follow each other, while these are in a cache.
        let tasks = grid.tasks() * matrices.len();
        (0..tasks).into_par_iter().with_max_len(1).for_each(|task| {
            let (left, matrix) = (&left[task % matrices.len()], &matrices[task % matrices.len()]);
            let (rows, panels) = grid.task(task / matrices.len());
            assert_eq!(left.numbers().div_ceil(matrix.kernel().numbers()), matrix.terms());
            assert_eq!(matrix.columns(), first.columns());
            let offsets = rows.clone().map(|row| row * line).collect::<Vec<_>>();
            let first_column = panels.start * matrix.panel_columns();
            let end = (panels.end * matrix.panel_columns()).min(matrix.columns());
            let part = Part {
                first_row: rows.start,
                offsets: &offsets,
                matrices: std::slice::from_ref(matrix),
                matrix_places: &[task % matrices.len() * matrix.columns()],
                first_column,
                columns: end - first_column,
                epilogue,
                out: pointer,
                len,
            };
            part.run(left);
        });
    }
    // SAFETY: the tasks cover all rows and columns of all matrices, which lie side by side in each line.
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
struct Part<'a> {
    first_row: usize,
    offsets: &'a [usize],
    matrices: &'a [PackedMatrix],
    matrix_places: &'a [usize],
    first_column: usize,
    columns: usize,
    epilogue: Epilogue<'a>,
    out: Pointer,
    len: usize,
}

/// Computes a part of a product with terms that hold numbers of type `T`.
struct Task<'a, R, T> {
    left: &'a R,
    part: Part<'a>,
    term: PhantomData<T>,
}

impl<R: Rows, T: Term<R::Element>> Job for Task<'_, R, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { left: source, part, .. } = self;
        let (rows, terms) = (part.offsets.len(), part.matrices[0].terms());
        let (numbers, per_term) = (source.numbers(), part.matrices[0].kernel().numbers());
        let left_len = rows.next_multiple_of(S::TILE_ROWS) * LEFT_STRIDE;
        let mut scratch = Scratch::new(left_len + part.sums_len());
        let (left, sums) = scratch.values().split_at_mut(left_len);
        for first_term in (0..terms).step_by(DEPTH) {
            let depth = (terms - first_term).min(DEPTH);
            let first = first_term * per_term;
            let n = (numbers - first).min(depth * per_term);
            for (row, left) in left.chunks_exact_mut(LEFT_STRIDE).take(rows).enumerate() {
                let left = as_terms::<R::Element, T>(left);
                source.gather(simd, part.first_row + row, first, n, left);
                // The last pair may lack its second number.
                left[n..depth * per_term].fill(T::default());
            }
            for m in 0..part.matrices.len() {
                part.multiply(simd, m, first_term, left, sums);
            }
        }
    }
}

impl Part<'_> {
    /// Computes it.
    fn run<R: Rows>(self, left: &R) {
        let matrix = &self.matrices[0];
        match matrix.kernel() {
            Kernel::Values => {
                matrix.isa().run(Task { left, part: self, term: PhantomData::<f32> });
            }
            #[cfg(target_arch = "x86_64")]
            Kernel::Pairs(proof) => {
                let term = PhantomData::<<R::Element as Element>::Packed>;
                proof.avx512().run(Task { left, part: self, term });
            }
        }
    }

    /// Sums that are kept between blocks of terms: none where there is one block, or where the output can keep them.
    fn sums_len(&self) -> usize {
        match self.out {
            Pointer::Bf16(_) if self.matrices[0].terms() > DEPTH => {
                self.matrices.len() * self.offsets.len() * self.columns
            }
            _ => 0,
        }
    }

    /// Adds a block of terms to the product with one matrix.
    #[inline(always)]
    fn multiply<S: Simd>(
        &self,
        simd: S,
        m: usize,
        first_term: usize,
        left: &[f32],
        sums: &mut [f32],
    ) {
        let matrix = &self.matrices[m];
        let place = self.matrix_places[m] + self.first_column;
        self.check(matrix, place);
        let rows = self.offsets.len();
        let panel = self.first_column / matrix.panel_columns();
        let start = panel * matrix.panel_stride() + first_term * matrix.panel_columns();
        let depth = (matrix.terms() - first_term).min(DEPTH);
        let side_by_side: Vec<usize>;
        // SAFETY: `place` is inside of the output (`check`), and the scratch has sums for each matrix.
        let (sums, offsets) = unsafe {
            match self.out {
                Pointer::F32(out) => (out.add(place), self.offsets),
                Pointer::Bf16(_) if sums.is_empty() => (std::ptr::null_mut(), self.offsets),
                Pointer::Bf16(_) => {
                    side_by_side = (0..rows).map(|row| row * self.columns).collect();
                    (sums.as_mut_ptr().add(m * rows * self.columns), side_by_side.as_slice())
                }
            }
        };
        // SAFETY:
        // 1. `left` has `rows` rows, filled up to whole tiles; the matrix has panels for `columns` columns from
        //    `first_column` on, and as many values of bias (`check`);
        // 2. `check` has compared all places with the length of the output and the residual; sums that are not in the
        //    output have the scratch of `sums_len`. The first block of terms has written those that the others read;
        // 3. places don't overlap, by the contract of `multiply_to`, and no other task has this part.
        unsafe {
            let finish = Finish {
                bias: matrix.bias().as_ptr().add(self.first_column),
                residual: self.epilogue.residual.map(|values| values.pointer.add(place)),
                activation: self.epilogue.activation,
                out: self.out.add(place),
                offsets: self.offsets.as_ptr(),
            };
            Block {
                kernel: matrix.kernel(),
                left: left.as_ptr(),
                panels: matrix.panels().as_ptr().add(start),
                panel_stride: matrix.panel_stride(),
                depth,
                columns: self.columns,
                sums,
                offsets,
                start: if first_term == 0 { Start::Zero } else { Start::Sums },
                finish: (first_term + depth == matrix.terms()).then_some(finish),
            }
            .multiply(simd);
        }
    }

    /// Compares the places that a block touches with the sizes of what it touches.
    fn check(&self, matrix: &PackedMatrix, place: usize) {
        assert!(self.first_column + self.columns <= matrix.columns());
        assert_eq!(matrix.terms(), self.matrices[0].terms());
        assert_eq!(matrix.kernel(), self.matrices[0].kernel());
        let end = self.offsets.iter().max().map_or(0, |offset| offset + place + self.columns);
        assert!(end <= self.len, "place {end} of {}", self.len);
    }
}
