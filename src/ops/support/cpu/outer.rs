//! Products over pixels: the gradients of weights.
//!
//! ```text
//! for each task, some outputs and some terms:
//!     for each block of pixels:
//!         left = the outputs' gradients of these pixels, transposed
//!         panels = the terms' values of these pixels, gathered
//!         sums += left · panels
//! ```
//! It is the product kernel of the forward pass, with pixels as terms.

use rayon::prelude::*;

use super::element::Pointer;
use super::kernel::{Block, DEPTH, Kernel, LEFT_STRIDE, Start, panel_columns};
use super::matrix::TileSizeOf;
use super::memory::{Output, Scratch};
use super::product::Rows;
use super::simd::{Job, Simd};
use crate::ops::support::isa::Isa;
use crate::ops::support::parallel::{Grid, split};

/// Terms of a task: what is gathered stays in the second-level cache.
const TERMS_PER_TASK: usize = DEPTH;
/// Most outputs of a task, likewise.
const MAX_OUTPUTS_PER_TASK: usize = 256;
/// Values of partial results, all together, when pixels are split.
const MAX_PARTIAL_VALUES: usize = 4 << 20;

/// Multiplies gradients `[pixels, outputs]` with the rows that made them: `[outputs, terms]`, where
/// `out[o, t] = Σ over pixels gradient[p, o] · row(p)[t]`.
pub(crate) fn multiply_transposed<R: Rows<Element = f32>>(
    isa: Isa,
    gradient: &[f32],
    outputs: usize,
    rows: &R,
    terms: usize,
) -> Vec<f32> {
    let len = outputs * terms;
    if len == 0 {
        return Vec::new();
    }
    let pixels = gradient.len() / outputs;
    if pixels == 0 {
        return vec![0.0; len];
    }
    let wanted = 4 * rayon::current_num_threads();
    let term_tasks = terms.div_ceil(TERMS_PER_TASK);
    let unit = isa.run(TileSizeOf).rows;
    let outputs_per_task = split(outputs, wanted.div_ceil(term_tasks), unit, MAX_OUTPUTS_PER_TASK);
    let grid = Grid { sizes: [outputs, terms], steps: [outputs_per_task, TERMS_PER_TASK] };
    let parts = wanted
        .div_ceil(grid.tasks())
        .min(pixels.div_ceil(DEPTH))
        .min((MAX_PARTIAL_VALUES / len).max(1));
    let pixels_per_part = pixels.div_ceil(parts).next_multiple_of(DEPTH);
    let parts = pixels.div_ceil(pixels_per_part);
    let mut out = Output::<f32>::new(len * parts);
    let pointer = out.pointer();
    (0..grid.tasks() * parts).into_par_iter().with_max_len(1).for_each(|task| {
        let part = task / grid.tasks();
        let (task_outputs, task_terms) = grid.task(task % grid.tasks());
        let first_pixel = part * pixels_per_part;
        isa.run(Task {
            gradient,
            outputs,
            rows,
            terms,
            pixels: first_pixel..(first_pixel + pixels_per_part).min(pixels),
            task_outputs,
            task_terms,
            place: part * len,
            out: pointer,
        });
    });
    // SAFETY: the tasks cover all outputs and terms of all parts.
    let mut out = unsafe { out.finish() };
    let (sum, others) = out.split_at_mut(len);
    for part in others.chunks_exact(len) {
        sum.par_iter_mut().zip(part).for_each(|(sum, value)| *sum += value);
    }
    out.truncate(len);
    out
}

struct Task<'a, R> {
    gradient: &'a [f32],
    outputs: usize,
    rows: &'a R,
    terms: usize,
    pixels: std::ops::Range<usize>,
    task_outputs: std::ops::Range<usize>,
    task_terms: std::ops::Range<usize>,
    /// Of the part's sums in the output.
    place: usize,
    out: Pointer,
}

impl<R: Rows<Element = f32>> Job for Task<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let width = panel_columns::<S>();
        let n_outputs = self.task_outputs.len();
        let n_terms = self.task_terms.len();
        let panels_len = n_terms.div_ceil(width) * DEPTH * width;
        let mut scratch = Scratch::new(n_outputs * LEFT_STRIDE + panels_len + LEFT_STRIDE);
        let (left, rest) = scratch.values().split_at_mut(n_outputs * LEFT_STRIDE);
        let (panels, row) = rest.split_at_mut(panels_len);
        let offsets = self
            .task_outputs
            .clone()
            .map(|output| self.place + output * self.terms + self.task_terms.start)
            .collect::<Vec<_>>();
        for first in self.pixels.clone().step_by(DEPTH) {
            let depth = (self.pixels.end - first).min(DEPTH);
            self.transpose(first, depth, left);
            for k in 0..depth {
                self.rows.gather::<S, f32>(simd, first + k, self.task_terms.start, n_terms, row);
                for (panel, values) in row[..n_terms].chunks(width).enumerate() {
                    let place = (panel * DEPTH + k) * width;
                    panels[place..place + values.len()].copy_from_slice(values);
                }
            }
            // The output was made for f32.
            let Pointer::F32(sums) = self.out else { return };
            // SAFETY: `left` has a row per output, and `panels` has `depth` rows of all terms; what follows the last term
            // in its panel is left from earlier use, and belongs to columns that are not written. The offsets lie inside
            // of the part, and no other task has these outputs and terms. The first block writes the sums.
            unsafe {
                Block {
                    kernel: Kernel::Values,
                    left: left.as_ptr(),
                    panels: panels.as_ptr(),
                    panel_stride: DEPTH * width,
                    depth,
                    columns: n_terms,
                    sums,
                    offsets: &offsets,
                    start: if first == self.pixels.start { Start::Zero } else { Start::Sums },
                    finish: None,
                }
                .multiply(simd);
            }
        }
    }
}

impl<R> Task<'_, R> {
    /// Writes the gradients of some pixels as `[output, LEFT_STRIDE]`.
    #[inline(always)]
    fn transpose(&self, first: usize, depth: usize, left: &mut [f32]) {
        /// Pixels side by side, so that writes fill cache lines.
        const LANES: usize = 16;
        let outputs = self.task_outputs.clone();
        for start in (0..depth).step_by(LANES) {
            let lanes = (depth - start).min(LANES);
            for (i, output) in outputs.clone().enumerate() {
                let to = &mut left[i * LEFT_STRIDE + start..][..lanes];
                for (lane, to) in to.iter_mut().enumerate() {
                    *to = self.gradient[(first + start + lane) * self.outputs + output];
                }
            }
        }
    }
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
