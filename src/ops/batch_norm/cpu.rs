//! Batch norm on the CPU: slices in, slices out.

use rayon::prelude::*;

use crate::ops::support::activation::Activation;

/// Rows whose sums are added in f32; the sums of such blocks are added in f64.
const BLOCK: usize = 64;

/// Of each channel.
pub(super) struct Statistics {
    pub mean: Vec<f32>,
    /// Divided by the number of values.
    pub variance: Vec<f32>,
}

/// Mean and variance of each column of `[rows, channels]`, in two passes.
pub(super) fn statistics(input: &[f32], channels: usize) -> Statistics {
    let rows = (input.len() / channels).max(1) as f64;
    let divide = |sums: Vec<f64>| sums.into_iter().map(|sum| (sum / rows) as f32).collect();
    let mean: Vec<f32> = divide(
        sum_rows::<1>(input, channels, |_, x, [sum]| {
            sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
        })[0]
            .clone(),
    );
    let variance = divide(
        sum_rows::<1>(input, channels, |_, x, [sum]| {
            for ((sum, x), mean) in sum.iter_mut().zip(x).zip(&mean) {
                *sum += (x - mean) * (x - mean);
            }
        })[0]
            .clone(),
    );
    Statistics { mean, variance }
}

/// Sums over rows: `add` gets the index of a row, the row, and sums of its block to add to.
fn sum_rows<const N: usize>(
    values: &[f32],
    channels: usize,
    add: impl Fn(usize, &[f32], [&mut [f32]; N]) + Sync,
) -> [Vec<f64>; N] {
    let blocks: Vec<Vec<f32>> = values
        .par_chunks(BLOCK * channels)
        .enumerate()
        .map(|(block, rows)| {
            let mut sums = vec![0f32; N * channels];
            for (i, row) in rows.chunks_exact(channels).enumerate() {
                let mut parts = sums.chunks_exact_mut(channels);
                add(
                    block * BLOCK + i,
                    row,
                    std::array::from_fn(|_| parts.next().unwrap_or_default()),
                );
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

/// `activation(input · scale + shift + residual)`.
pub(super) fn apply(
    input: &[f32],
    affine: &Affine,
    residual: Option<&[f32]>,
    activation: Activation,
) -> Vec<f32> {
    let channels = affine.scale.len();
    let mut out = vec![0f32; input.len()];
    let part = BLOCK * channels;
    out.par_chunks_mut(part).enumerate().for_each(|(block, out)| {
        let start = block * part;
        let input = &input[start..start + out.len()];
        for (out, input) in out.chunks_exact_mut(channels).zip(input.chunks_exact(channels)) {
            for (((out, x), scale), shift) in
                out.iter_mut().zip(input).zip(&affine.scale).zip(&affine.shift)
            {
                *out = x * scale + shift;
            }
        }
        if let Some(residual) = residual {
            let residual = &residual[start..start + out.len()];
            out.iter_mut().zip(residual).for_each(|(out, residual)| *out += residual);
        }
        if activation == Activation::Relu {
            // NaN stays NaN.
            out.iter_mut().for_each(|out| *out = if *out < 0.0 { 0.0 } else { *out });
        }
    });
    out
}

/// What the gradients share: the sums over all rows.
pub(super) struct Backward<'a> {
    input: &'a [f32],
    gradient: &'a [f32],
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
        Statistics { mean, variance }: Statistics,
        eps: f64,
    ) -> Self {
        let channels = mean.len();
        let inverse: Vec<f32> =
            inverse_deviation(&variance, eps).map(|inverse| inverse as f32).collect();
        let [products, sums] = sum_rows::<2>(input, channels, |row, x, [products, sums]| {
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
        Self { input, gradient, mean, inverse, of_weight, of_bias }
    }

    /// `weight / σ · (g − Σg / n − x̂ · Σ(g · x̂) / n)`.
    pub fn of_input(&self, weight: &[f32]) -> Vec<f32> {
        let channels = self.mean.len();
        let rows = (self.input.len() / channels) as f32;
        // As g · a + x · b + c.
        let coefficients: Vec<[f32; 3]> = (0..channels)
            .map(|channel| {
                let a = weight[channel] * self.inverse[channel];
                let b = -a * self.of_weight[channel] * self.inverse[channel] / rows;
                [a, b, -a * self.of_bias[channel] / rows]
            })
            .collect();
        let mut out = vec![0f32; self.input.len()];
        let part = BLOCK * channels;
        out.par_chunks_mut(part).enumerate().for_each(|(block, out)| {
            let start = block * part;
            let input = &self.input[start..start + out.len()];
            let gradient = &self.gradient[start..start + out.len()];
            for (i, out) in out.iter_mut().enumerate() {
                let [a, b, c] = coefficients[i % channels];
                *out = gradient[i] * a + (input[i] - self.mean[i % channels]) * b + c;
            }
        });
        out
    }
}
