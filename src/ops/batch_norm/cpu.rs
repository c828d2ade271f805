//! Batch norm on the CPU: slices in, slices out.

use std::ops::Range;

use rayon::prelude::*;

use crate::ops::support::activation::Activation;

/// Rows whose sums are added in f32; the sums of such blocks are added in f64.
const BLOCK: usize = 64;

/// The rows of `[rows, channels]` that are filled, in blocks of at most [`BLOCK`].
pub(super) struct Filled {
    blocks: Vec<Range<usize>>,
    rows: usize,
}

impl Filled {
    /// Of ascending ranges.
    pub fn new(ranges: &[Range<usize>]) -> Self {
        let blocks = ranges.iter().flat_map(|range| {
            let starts = range.clone().step_by(BLOCK);
            starts.map(|start| start..range.end.min(start + BLOCK))
        });
        Self { blocks: blocks.collect(), rows: ranges.iter().map(ExactSizeIterator::len).sum() }
    }

    /// The parts of values `[rows, channels]` that lie in the blocks, and where they lie.
    fn parts_of<'a>(
        &self,
        mut values: &'a mut [f32],
        channels: usize,
    ) -> Vec<(Range<usize>, &'a mut [f32])> {
        let mut end = 0;
        let part = |block: &Range<usize>| {
            let range = block.start * channels..block.end * channels;
            let (_, after) = std::mem::take(&mut values).split_at_mut(range.start - end);
            let (part, after) = after.split_at_mut(range.len());
            (values, end) = (after, range.end);
            (range, part)
        };
        self.blocks.iter().map(part).collect()
    }
}

/// Values of the length of `like`, of which `compute` makes those of each block, from its place; the others are zero.
fn by_block(
    like: &[f32],
    filled: &Filled,
    channels: usize,
    compute: impl Fn(Range<usize>, &mut [f32]) + Sync,
) -> Vec<f32> {
    let mut out = vec![0f32; like.len()];
    let parts = filled.parts_of(&mut out, channels);
    parts.into_par_iter().for_each(|(range, out)| compute(range, out));
    out
}

/// The values of filled rows, and zero in the others.
pub(super) fn filled(values: &[f32], filled: &Filled, channels: usize) -> Vec<f32> {
    by_block(values, filled, channels, |range, out| out.copy_from_slice(&values[range]))
}

/// Of each channel.
pub(super) struct Statistics {
    pub mean: Vec<f32>,
    /// Divided by the number of values.
    pub variance: Vec<f32>,
}

/// Mean and variance of each column of `[rows, channels]`, in two passes.
pub(super) fn statistics(input: &[f32], filled: &Filled, channels: usize) -> Statistics {
    let rows = filled.rows.max(1) as f64;
    let divide = |[sums]: [Vec<f64>; 1]| -> Vec<f32> {
        sums.into_iter().map(|sum| (sum / rows) as f32).collect()
    };
    let mean = divide(sum_rows(input, filled, channels, |_, x, [sum]| {
        sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
    }));
    let variance = divide(sum_rows(input, filled, channels, |_, x, [sum]| {
        for ((sum, x), mean) in sum.iter_mut().zip(x).zip(&mean) {
            *sum += (x - mean) * (x - mean);
        }
    }));
    Statistics { mean, variance }
}

/// Sums over filled rows: `add` gets the index of a row, the row, and sums of its block to add to.
fn sum_rows<const N: usize>(
    values: &[f32],
    filled: &Filled,
    channels: usize,
    add: impl Fn(usize, &[f32], [&mut [f32]; N]) + Sync,
) -> [Vec<f64>; N] {
    let blocks: Vec<Vec<f32>> = filled
        .blocks
        .par_iter()
        .map(|block| {
            let mut sums = vec![0f32; N * channels];
            let rows = values[block.start * channels..block.end * channels].chunks_exact(channels);
            for (index, row) in block.clone().zip(rows) {
                let mut parts = sums.chunks_exact_mut(channels);
                add(index, row, std::array::from_fn(|_| parts.next().unwrap_or_default()));
            }
            sums
        })
        .collect();
    let mut totals: [Vec<f64>; N] = std::array::from_fn(|_| vec![0f64; channels]);
    for block in blocks {
        for (total, sums) in totals.iter_mut().zip(block.chunks_exact(channels)) {
            total.iter_mut().zip(sums).for_each(|(total, sum)| *total += f64::from(*sum));
        }
    }
    totals
}

/// `x · scale + shift`, by channel.
pub(super) struct Affine {
    scale: Vec<f32>,
    shift: Vec<f32>,
}

impl Affine {
    pub fn new(statistics: &Statistics, weight: &[f32], bias: &[f32], eps: f64) -> Self {
        let scale: Vec<f32> = inverse_deviation(&statistics.variance, eps)
            .zip(weight)
            .map(|(inverse, weight)| (inverse * f64::from(*weight)) as f32)
            .collect();
        let shift = scale
            .iter()
            .zip(&statistics.mean)
            .zip(bias)
            .map(|((scale, mean), bias)| bias - mean * scale)
            .collect();
        Self { scale, shift }
    }
}

fn inverse_deviation(variance: &[f32], eps: f64) -> impl Iterator<Item = f64> {
    variance.iter().map(move |variance| (f64::from(*variance) + eps).sqrt().recip())
}

/// `activation(input · scale + shift + residual)` in filled rows, zero in the others.
pub(super) fn apply(
    input: &[f32],
    filled: &Filled,
    affine: &Affine,
    residual: Option<&[f32]>,
    activation: Activation,
) -> Vec<f32> {
    let channels = affine.scale.len();
    by_block(input, filled, channels, |range, out| {
        let input = &input[range.clone()];
        for (out, input) in out.chunks_exact_mut(channels).zip(input.chunks_exact(channels)) {
            for (((out, x), scale), shift) in
                out.iter_mut().zip(input).zip(&affine.scale).zip(&affine.shift)
            {
                *out = x * scale + shift;
            }
        }
        if let Some(residual) = residual {
            out.iter_mut().zip(&residual[range]).for_each(|(out, residual)| *out += residual);
        }
        activation.apply_to_all(out);
    })
}

/// What the gradients share: the sums over all filled rows.
pub(super) struct Backward<'a> {
    input: &'a [f32],
    gradient: &'a [f32],
    filled: &'a Filled,
    mean: Vec<f32>,
    /// `1 / √(variance + eps)`.
    inverse: Vec<f32>,
    pub of_weight: Vec<f32>,
    pub of_bias: Vec<f32>,
}

impl<'a> Backward<'a> {
    pub fn new(
        input: &'a [f32],
        gradient: &'a [f32],
        filled: &'a Filled,
        Statistics { mean, variance }: Statistics,
        eps: f64,
    ) -> Self {
        let channels = mean.len();
        let inverse: Vec<f32> =
            inverse_deviation(&variance, eps).map(|inverse| inverse as f32).collect();
        let [products, sums] = sum_rows(input, filled, channels, |row, x, [products, sums]| {
            let gradient = &gradient[row * channels..][..channels];
            for ((product, x), (mean, g)) in
                products.iter_mut().zip(x).zip(mean.iter().zip(gradient))
            {
                *product += (x - mean) * g;
            }
            sums.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
        });
        let of_weight = products
            .iter()
            .zip(&inverse)
            .map(|(product, inverse)| (product * f64::from(*inverse)) as f32)
            .collect();
        let of_bias = sums.iter().map(|sum| *sum as f32).collect();
        Self { input, gradient, filled, mean, inverse, of_weight, of_bias }
    }

    /// `weight / σ · (g − Σg / n − x̂ · Σ(g · x̂) / n)` in filled rows, zero in the others.
    pub fn of_input(&self, weight: &[f32]) -> Vec<f32> {
        let channels = self.mean.len();
        let rows = self.filled.rows as f32;
        // As g · a + x · b + c.
        let coefficients: Vec<[f32; 3]> = (0..channels)
            .map(|channel| {
                let a = weight[channel] * self.inverse[channel];
                let b = -a * self.of_weight[channel] * self.inverse[channel] / rows;
                [a, b, -a * self.of_bias[channel] / rows]
            })
            .collect();
        by_block(self.input, self.filled, channels, |range, out| {
            let input = &self.input[range.clone()];
            let gradient = &self.gradient[range];
            for (i, out) in out.iter_mut().enumerate() {
                let [a, b, c] = coefficients[i % channels];
                *out = gradient[i] * a + (input[i] - self.mean[i % channels]) * b + c;
            }
        })
    }
}
