//! Normalisation of cells on the CPU: slices in, slices out.

use rayon::prelude::*;

use super::MIN_LENGTH;
use crate::ops::support::cpu::element::Element;
use crate::ops::support::cpu::simd::{Job, Simd};
use crate::ops::support::isa::Isa;

/// Cells that a task works on; their sums are added in f32, those of tasks in f64.
const CELLS: usize = 64;

/// Sums that are added side by side, so that the compiler can make vectors of them.
const LANES: usize = 16;

/// The sum of `term` of all values.
#[inline(always)]
fn sum_of<E: Copy>(values: &[E], term: impl Fn(E) -> f32) -> f32 {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut sums = [0f32; LANES];
    for chunk in chunks {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *sum += term(*value);
        }
    }
    for (sum, value) in sums.iter_mut().zip(rest) {
        *sum += term(*value);
    }
    sums.iter().sum()
}

/// Euclidean length of a cell.
#[inline(always)]
fn length<E: Element>(cell: &[E]) -> f32 {
    sum_of(cell, |x| x.widen() * x.widen()).sqrt()
}

struct Normalize<'a, E> {
    cells: &'a [E],
    weight: &'a [f32],
    out: &'a mut [E],
}

impl<E: Element> Job for Normalize<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let channels = self.weight.len();
        for (out, cell) in
            self.out.chunks_exact_mut(channels).zip(self.cells.chunks_exact(channels))
        {
            let length = length(cell);
            // NaN stays NaN.
            let length = if length < MIN_LENGTH { MIN_LENGTH } else { length };
            for ((out, x), weight) in out.iter_mut().zip(cell).zip(self.weight) {
                *out = E::narrow(x.widen() / length * weight);
            }
        }
    }
}

/// `weight · x / ‖x‖` of each cell.
pub(super) fn run<E: Element>(input: &[E], weight: &[f32]) -> Vec<E> {
    let mut out = vec![E::default(); input.len()];
    let part = CELLS * weight.len();
    out.par_chunks_mut(part).zip(input.par_chunks(part)).for_each(|(out, cells)| {
        Isa::preferred().run(Normalize { cells, weight, out });
    });
    out
}

/// The way back through some cells: writes the gradient of the input, and returns that of the weight.
struct Back<'a> {
    cells: &'a [f32],
    gradient: &'a [f32],
    weight: &'a [f32],
    out: &'a mut [f32],
}

impl Job for Back<'_> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> Vec<f32> {
        let Self { cells, gradient, weight, out } = self;
        let channels = weight.len();
        let mut of_weight = vec![0f32; channels];
        let rows = cells.chunks_exact(channels).zip(gradient.chunks_exact(channels));
        for (out, (cell, gradient)) in out.chunks_exact_mut(channels).zip(rows) {
            let length = length(cell);
            let is_constant = length < MIN_LENGTH;
            let length = if is_constant { MIN_LENGTH } else { length };
            let mut along = 0.0;
            if !is_constant {
                for (out, ((x, g), w)) in out.iter_mut().zip(cell.iter().zip(gradient).zip(weight))
                {
                    *out = x / length * (g * w);
                }
                along = sum_of(out, |term| term);
            }
            for (i, out) in out.iter_mut().enumerate() {
                let unit = cell[i] / length;
                *out = (gradient[i] * weight[i] - unit * along) / length;
                of_weight[i] += gradient[i] * unit;
            }
        }
        of_weight
    }
}

/// Gradients of input, `(w · g − x̂ · Σ(w · g · x̂)) / ‖x‖` of each cell, and of weight, `Σ(g · x̂)` of each channel.
pub(super) fn backward(input: &[f32], gradient: &[f32], weight: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let mut out = vec![0f32; input.len()];
    let part = CELLS * weight.len();
    let values = input.par_chunks(part).zip(gradient.par_chunks(part));
    let sums: Vec<Vec<f32>> = out
        .par_chunks_mut(part)
        .zip(values)
        .map(|(out, (cells, gradient))| Isa::preferred().run(Back { cells, gradient, weight, out }))
        .collect();
    let mut of_weight = vec![0f64; weight.len()];
    for sums in sums {
        of_weight.iter_mut().zip(sums).for_each(|(total, sum)| *total += f64::from(sum));
    }
    (out, of_weight.into_iter().map(|sum| sum as f32).collect())
}
