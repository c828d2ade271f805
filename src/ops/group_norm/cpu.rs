//! Group norm on the CPU: slices in, slices out.
//!
//! An image is cut into blocks of rows that stay in the cache of a core, so that the input is fetched from memory once for
//! mean and variance together.

use std::mem::MaybeUninit;

use rayon::prelude::*;

use super::plan::Plan;
use crate::ops::support::activation::Activation;
use crate::ops::support::cpu::element::Element;
use crate::ops::support::cpu::memory::Output;
use crate::ops::support::cpu::simd::{Job, Simd};
use crate::ops::support::isa::Isa;

/// Values of a block, about.
const BLOCK: usize = 1 << 14;
/// Rows whose sums are added in f32, at most; the sums of blocks are added in f64.
const MAX_ROWS: usize = 256;

/// Values of a block: whole rows.
fn block(plan: &Plan) -> usize {
    (BLOCK / plan.channels).clamp(1, MAX_ROWS) * plan.channels
}

/// What an image's groups have in common, `[N, G]` each.
pub(super) struct Statistics {
    pub mean: Vec<f32>,
    /// `1 / √(variance + eps)`.
    pub inverse: Vec<f32>,
}

/// How many values there are, where they lie and how far they spread.
#[derive(Debug, Clone, Copy, Default)]
struct Moments {
    n: f64,
    mean: f64,
    /// Sum of squared differences from the mean.
    squares: f64,
}

impl Moments {
    /// Of both (Chan et al. 1979).
    fn and(self, other: Self) -> Self {
        let n = self.n + other.n;
        if n == 0.0 {
            return self;
        }
        let difference = other.mean - self.mean;
        Self {
            n,
            mean: self.mean + difference * (other.n / n),
            squares: self.squares
                + other.squares
                + difference * difference * (self.n * other.n / n),
        }
    }
}

/// Moments of each group of a block of rows.
struct OfBlock<'a, E> {
    rows: &'a [E],
    channels: usize,
    groups: usize,
}

impl<E: Element> Job for OfBlock<'_, E> {
    type Output = Vec<Moments>;

    // Loops rather than closures, which would not be compiled for the instruction set.
    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> Self::Output {
        let Self { rows, channels, groups } = self;
        let of_group = channels / groups;
        let n = (rows.len() / groups) as f64;
        let mut sums = vec![0f32; channels];
        for row in rows.chunks_exact(channels) {
            for (sum, x) in sums.iter_mut().zip(row) {
                *sum += x.widen();
            }
        }
        let mut means = Vec::with_capacity(groups);
        for sums in sums.chunks_exact_mut(of_group) {
            let mut total = 0f64;
            for sum in &*sums {
                total += f64::from(*sum);
            }
            means.push(total / n);
            sums.fill((total / n) as f32);
        }
        let centers = sums;
        let mut squares = vec![0f32; channels];
        for row in rows.chunks_exact(channels) {
            for ((square, x), center) in squares.iter_mut().zip(row).zip(&centers) {
                let difference = x.widen() - center;
                *square += difference * difference;
            }
        }
        let mut moments = Vec::with_capacity(groups);
        for (squares, mean) in squares.chunks_exact(of_group).zip(means) {
            let mut total = 0f64;
            for square in squares {
                total += f64::from(*square);
            }
            moments.push(Moments { n, mean, squares: total });
        }
        moments
    }
}

/// Mean and deviation of each group of each image.
pub(super) fn statistics<E: Element>(input: &[E], plan: &Plan, eps: f64) -> Statistics {
    let Plan { images, channels, groups, .. } = *plan;
    let mut totals = vec![Moments::default(); images * groups];
    if !input.is_empty() {
        let of_block = |rows: &[E]| Isa::preferred().run(OfBlock { rows, channels, groups });
        let of_image = |(totals, input): (&mut [Moments], &[E])| {
            let blocks: Vec<_> = input.par_chunks(block(plan)).map(of_block).collect();
            for block in blocks {
                for (total, block) in totals.iter_mut().zip(block) {
                    *total = total.and(block);
                }
            }
        };
        totals.par_chunks_mut(groups).zip(input.par_chunks(plan.image())).for_each(of_image);
    }
    let inverse = |m: &Moments| ((m.squares / m.n.max(1.0) + eps).sqrt().recip()) as f32;
    Statistics {
        mean: totals.iter().map(|moments| moments.mean as f32).collect(),
        inverse: totals.iter().map(inverse).collect(),
    }
}

/// One number for each group, repeated for each of its channels.
fn spread(of_groups: &[f32], of_group: usize) -> impl Iterator<Item = f32> {
    of_groups.iter().flat_map(move |value| std::iter::repeat_n(*value, of_group))
}

/// `activation((x − mean) · scale + bias)` of a block of rows; far from zero, `x · scale` would lose what the bias brings back.
struct Apply<'a, E> {
    rows: &'a [E],
    mean: &'a [f32],
    scale: &'a [f32],
    bias: &'a [f32],
    activation: Activation,
    out: &'a mut [MaybeUninit<E>],
}

impl<E: Element> Apply<'_, E> {
    #[inline(always)]
    fn each(self, activate: impl Fn(f32) -> f32) {
        let Self { rows, mean, scale, bias, out, .. } = self;
        let channels = scale.len();
        let (mean, bias) = (&mean[..channels], &bias[..channels]);
        for (out, row) in out.chunks_exact_mut(channels).zip(rows.chunks_exact(channels)) {
            for i in 0..channels {
                let value = (row[i].widen() - mean[i]) * scale[i] + bias[i];
                out[i].write(E::narrow(activate(value)));
            }
        }
    }
}

impl<E: Element> Job for Apply<'_, E> {
    type Output = ();

    // A loop for each, which the compiler makes vectors of.
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        match self.activation {
            Activation::None => self.each(|x| x),
            Activation::Relu => self.each(|x| Activation::Relu.apply(x)),
            activation => self.each(|x| activation.apply(x)),
        }
    }
}

/// Normalises, scales and shifts.
pub(super) fn apply<E: Element>(
    input: &[E],
    plan: &Plan,
    statistics: &Statistics,
    [weight, bias]: [&[f32]; 2],
    activation: Activation,
) -> Vec<E> {
    let mut out = Output::<E>::new(input.len());
    let of_image = |image: usize, out: &mut [MaybeUninit<E>], input: &[E]| {
        let groups = image * plan.groups..(image + 1) * plan.groups;
        let inverse = spread(&statistics.inverse[groups.clone()], plan.of_group());
        let scale: Vec<f32> = inverse.zip(weight).map(|(inverse, w)| inverse * w).collect();
        let mean: Vec<f32> = spread(&statistics.mean[groups], plan.of_group()).collect();
        let blocks = out.par_chunks_mut(block(plan)).zip(input.par_chunks(block(plan)));
        blocks.for_each(|(out, rows)| {
            let (mean, scale) = (&mean, &scale);
            Isa::preferred().run(Apply { rows, mean, scale, bias, activation, out });
        });
    };
    if !input.is_empty() {
        let image = plan.image();
        let images = out.places().par_chunks_mut(image).zip(input.par_chunks(image)).enumerate();
        images.for_each(|(image, (out, input))| of_image(image, out, input));
    }
    // SAFETY: the output is as long as the input, and blocks of whole rows cover both.
    unsafe { out.finish() }
}

/// Sums over a block of rows, by channel: of `g · (x − mean)`, then of `g`.
struct Products<'a> {
    input: &'a [f32],
    gradient: &'a [f32],
    mean: &'a [f32],
}

impl Job for Products<'_> {
    type Output = [Vec<f32>; 2];

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> Self::Output {
        let Self { input, gradient, mean } = self;
        let channels = mean.len();
        let (mut products, mut sums) = (vec![0f32; channels], vec![0f32; channels]);
        for (x, g) in input.chunks_exact(channels).zip(gradient.chunks_exact(channels)) {
            for (((product, x), g), mean) in products.iter_mut().zip(x).zip(g).zip(mean) {
                *product += (x - mean) * g;
            }
            for (sum, g) in sums.iter_mut().zip(g) {
                *sum += g;
            }
        }
        [products, sums]
    }
}

/// `g · by_gradient + (x − mean) · by_input + constant` of a block of rows.
struct Back<'a> {
    input: &'a [f32],
    gradient: &'a [f32],
    factors: &'a Factors,
    out: &'a mut [MaybeUninit<f32>],
}

/// Of an image, by channel.
struct Factors {
    by_gradient: Vec<f32>,
    by_input: Vec<f32>,
    constant: Vec<f32>,
    mean: Vec<f32>,
}

impl Job for Back<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { input, gradient, factors, out } = self;
        let Factors { by_gradient, by_input, constant, mean } = factors;
        let channels = mean.len();
        let rows = input.chunks_exact(channels).zip(gradient.chunks_exact(channels));
        for (out, (x, g)) in out.chunks_exact_mut(channels).zip(rows) {
            for i in 0..channels {
                let value = g[i] * by_gradient[i] + (x[i] - mean[i]) * by_input[i] + constant[i];
                out[i].write(value);
            }
        }
    }
}

/// What the gradients share: sums over the rows of each image.
pub(super) struct Backward<'a> {
    input: &'a [f32],
    gradient: &'a [f32],
    plan: &'a Plan,
    statistics: &'a Statistics,
    /// `[N, C]`: of `g · (x − mean)`, and of `g`.
    sums: [Vec<f64>; 2],
}

impl<'a> Backward<'a> {
    pub fn new(
        input: &'a [f32],
        gradient: &'a [f32],
        plan: &'a Plan,
        statistics: &'a Statistics,
    ) -> Self {
        let Plan { images, channels, groups, .. } = *plan;
        let [mut products, mut sums] = [(); 2].map(|()| vec![0f64; images * channels]);
        if !input.is_empty() {
            let image = plan.image();
            let totals = products.par_chunks_mut(channels).zip(sums.par_chunks_mut(channels));
            let values = input.par_chunks(image).zip(gradient.par_chunks(image));
            let means = statistics.mean.par_chunks(groups);
            totals.zip(values).zip(means).for_each(|((totals, (input, gradient)), mean)| {
                let mean: Vec<f32> = spread(mean, plan.of_group()).collect();
                let blocks = input.par_chunks(block(plan)).zip(gradient.par_chunks(block(plan)));
                let of_block = |(input, gradient)| {
                    Isa::preferred().run(Products { input, gradient, mean: &mean })
                };
                for [products, sums] in blocks.map(of_block).collect::<Vec<_>>() {
                    add(totals.0, &products);
                    add(totals.1, &sums);
                }
            });
        }
        Self { input, gradient, plan, statistics, sums: [products, sums] }
    }

    /// Of weight and bias.
    pub fn of_parameters(&self) -> [Vec<f32>; 2] {
        let Plan { channels, groups, .. } = *self.plan;
        let [mut of_weight, mut of_bias] = [(); 2].map(|()| vec![0f64; channels]);
        let [products, sums] = self.sums.each_ref().map(|sums| sums.chunks_exact(channels));
        let inverse = self.statistics.inverse.chunks_exact(groups);
        for ((products, sums), inverse) in products.zip(sums).zip(inverse) {
            let inverse = spread(inverse, self.plan.of_group());
            for ((total, product), inverse) in of_weight.iter_mut().zip(products).zip(inverse) {
                *total += product * f64::from(inverse);
            }
            of_bias.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
        }
        [of_weight, of_bias].map(|sums| sums.into_iter().map(|sum| sum as f32).collect())
    }

    /// `1 / σ · (w · g − Σ(w · g) / n − x̂ · Σ(w · g · x̂) / n)`, the sums being those of a group.
    pub fn of_input(&self, weight: &[f32]) -> Vec<f32> {
        let mut out = Output::<f32>::new(self.input.len());
        if !self.input.is_empty() {
            let (image, block) = (self.plan.image(), block(self.plan));
            let values = self.input.par_chunks(image).zip(self.gradient.par_chunks(image));
            let images = out.places().par_chunks_mut(image).zip(values).enumerate();
            images.for_each(|(image, (out, (input, gradient)))| {
                let factors = &self.factors(image, weight);
                let values = input.par_chunks(block).zip(gradient.par_chunks(block));
                out.par_chunks_mut(block).zip(values).for_each(|(out, (input, gradient))| {
                    Isa::preferred().run(Back { input, gradient, factors, out });
                });
            });
        }
        // SAFETY: the output is as long as the input, and blocks of whole rows cover both.
        unsafe { out.finish() }
    }

    fn factors(&self, image: usize, weight: &[f32]) -> Factors {
        let Plan { rows, channels, groups, .. } = *self.plan;
        let of_group = self.plan.of_group();
        let n = (rows * of_group) as f64;
        let inverse = &self.statistics.inverse[image * groups..][..groups];
        let mean = &self.statistics.mean[image * groups..][..groups];
        let [products, sums] =
            self.sums.each_ref().map(|sums| &sums[image * channels..][..channels]);
        let weighted = |sums: &[f64], group: usize| -> f64 {
            let channels = group * of_group..(group + 1) * of_group;
            sums[channels.clone()]
                .iter()
                .zip(&weight[channels])
                .map(|(s, w)| s * f64::from(*w))
                .sum()
        };
        let of_groups = |factor: &dyn Fn(usize, f64) -> f64| -> Vec<f32> {
            let factors = inverse.iter().enumerate();
            let factors: Vec<f32> =
                factors.map(|(group, i)| factor(group, f64::from(*i)) as f32).collect();
            spread(&factors, of_group).collect()
        };
        Factors {
            by_gradient: spread(inverse, of_group).zip(weight).map(|(i, w)| i * w).collect(),
            by_input: of_groups(&|group, i| -i * i * i * weighted(products, group) / n),
            constant: of_groups(&|group, i| -i * weighted(sums, group) / n),
            mean: spread(mean, of_group).collect(),
        }
    }
}

fn add(totals: &mut [f64], values: &[f32]) {
    totals.iter_mut().zip(values).for_each(|(total, value)| *total += f64::from(*value));
}
