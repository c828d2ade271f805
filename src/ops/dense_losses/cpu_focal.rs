//! The focal loss, of tens of millions of logits of which nearly all want 0.

use rayon::prelude::*;

use super::FOCAL_ALPHA;
use super::given::Given;
use crate::ops::support::cpu::simd::{Job, Simd};
use crate::ops::support::isa::Isa;
use crate::ops::support::matches::Match;

/// Logits per task, about. Sums depend on it.
const CHUNK: usize = 1 << 14;
/// Terms that are added up side by side.
const LANES: usize = 16;

/// The loss. Slopes of a level are computed where there is room for them.
pub(super) fn cost(given: &Given<'_>, slopes: &mut [Vec<f32>]) -> f64 {
    let mut start = 0;
    let mut sum = 0.0;
    for ((level, length), slopes) in given.levels.iter().zip(&given.plan.lengths).zip(slopes) {
        sum += level_cost(given, start, *length, level, slopes);
        start += length;
    }
    sum
}

/// A task's rows of an image of a level.
struct Rows<'a> {
    image: usize,
    /// What the rows have found.
    codes: &'a [u32],
    logits: &'a [f32],
}

fn level_cost(
    given: &Given<'_>,
    start: usize,
    length: usize,
    level: &[f32],
    slopes: &mut [f32],
) -> f64 {
    let classes = given.plan.width;
    let rows = given.plan.rows();
    let per_task = (CHUNK / classes).clamp(1, length.max(1));
    let mut tasks = Vec::new();
    let images = level.chunks(length.max(1) * classes).enumerate();
    for (image, logits) in images {
        let codes = &given.matches[image * rows + start..][..length];
        let parts = codes.chunks(per_task).zip(logits.chunks(per_task * classes));
        tasks.extend(parts.map(|(codes, logits)| Rows { image, codes, logits }));
    }
    let costs: Vec<f64> = if slopes.is_empty() {
        let work = |rows: &Rows<'_>| {
            let mut unread = vec![0.0; rows.logits.len()];
            rows_cost(given, rows, &mut unread)
        };
        tasks.par_iter().map(work).collect()
    } else {
        let mut places = Vec::with_capacity(tasks.len());
        let mut rest = slopes;
        for rows in &tasks {
            let (own, others) = rest.split_at_mut(rows.logits.len());
            places.push(own);
            rest = others;
        }
        let work = |(rows, slopes): (&Rows<'_>, &mut [f32])| rows_cost(given, rows, slopes);
        tasks.par_iter().zip(places).map(work).collect()
    };
    costs.iter().sum()
}

/// The share of the loss that is these rows', and the derivatives by their logits.
fn rows_cost(given: &Given<'_>, rows: &Rows<'_>, slopes: &mut [f32]) -> f64 {
    let classes = given.plan.width;
    let share = given.shares[rows.image];
    let isa = Isa::preferred();
    let mut sum = 0.0;
    let mut from = 0;
    let mut background = |from: usize, to: usize, slopes: &mut [f32]| {
        let (logits, slopes) = (&rows.logits[from..to], &mut slopes[from..to]);
        sum += isa.run(Unwanted { logits, slopes, factor: share as f32 });
    };
    let mut of_wanted = 0.0;
    for (row, code) in rows.codes.iter().enumerate() {
        match Match::from_code(*code) {
            Match::Background => {}
            Match::Ignored => {
                background(from, row * classes, slopes);
                from = (row + 1) * classes;
            }
            Match::Object(object) => {
                let label = given.labels[given.object(rows.image, object)] as usize;
                let at = row * classes + label;
                background(from, at, slopes);
                let (cost, slope) = wanted(rows.logits[at]);
                of_wanted += cost;
                slopes[at] = (slope * share) as f32;
                from = at + 1;
            }
        }
    }
    background(from, rows.logits.len(), slopes);
    (sum + of_wanted) * share
}

/// Cost and derivative of a logit of which 1 is wanted.
fn wanted(logit: f32) -> (f64, f64) {
    let (logit, alpha) = (f64::from(logit), f64::from(FOCAL_ALPHA));
    // −ln p, without an exponential that overflows.
    let surprise = (-logit).max(0.0) + (-logit.abs()).exp().ln_1p();
    let rest = 1.0 / (1.0 + logit.exp());
    let square = alpha * rest * rest;
    (square * surprise, -square * (2.0 * (1.0 - rest) * surprise + rest))
}

/// Logits of which 0 is wanted: their cost, added up, and derivatives times a factor.
struct Unwanted<'a> {
    logits: &'a [f32],
    slopes: &'a mut [f32],
    factor: f32,
}

impl Job for Unwanted<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> f64 {
        let mut sums = [0f64; LANES];
        let (logits, last) = self.logits.as_chunks::<LANES>();
        let (slopes, last_slopes) = self.slopes.as_chunks_mut::<LANES>();
        // Plain loops over arrays, which the compiler makes vectors of.
        for (logits, slopes) in logits.iter().zip(slopes) {
            for lane in 0..LANES {
                let (cost, slope) = unwanted(logits[lane]);
                sums[lane] += f64::from(cost);
                slopes[lane] = slope * self.factor;
            }
        }
        let mut sum = sums.iter().sum();
        for (logit, out) in last.iter().zip(last_slopes) {
            let (cost, slope) = unwanted(*logit);
            sum += f64::from(cost);
            *out = slope * self.factor;
        }
        sum
    }
}

/// Cost and derivative of a logit of which 0 is wanted.
#[inline(always)]
fn unwanted(logit: f32) -> (f32, f32) {
    let small = exp_below_zero(-logit.abs());
    let inverse = 1.0 / (1.0 + small);
    let below = small * inverse;
    let (probability, rest) = if logit >= 0.0 { (inverse, below) } else { (below, inverse) };
    let surprise = (if logit >= 0.0 { logit } else { 0.0 }) + ln_1p(small);
    let square = (1.0 - FOCAL_ALPHA) * probability * probability;
    (square * surprise, square * (2.0 * rest * surprise + probability))
}

/// e^x of x ≤ 0, to a few units in the last place; NaN stays NaN.
///
/// As Cephes' `expf`: the power of two that is nearest, times a polynomial.
#[inline(always)]
fn exp_below_zero(x: f32) -> f32 {
    /// Adding it rounds to a whole number, which is then in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    // Below, powers of two leave the range of normal numbers. NaN passes.
    let x = if x < -87.0 { -87.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let whole = shifted - ROUND;
    let rest = x - whole * 0.693_359_4 + whole * 2.121_944_4e-4;
    let mut series = 1.987_569_1e-4;
    series = series * rest + 1.398_2e-3;
    series = series * rest + 8.333_452e-3;
    series = series * rest + 4.166_579_6e-2;
    series = series * rest + 1.666_666_5e-1;
    series = series * rest + 0.5;
    let value = series * rest * rest + rest + 1.0;
    let power = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    value * f32::from_bits(power)
}

/// ln(1 + x) of x from 0 to 1, to a few units in the last place: the series of the inverse hyperbolic tangent.
#[inline(always)]
fn ln_1p(x: f32) -> f32 {
    let ratio = x / (2.0 + x);
    let square = ratio * ratio;
    let mut series = 1.0 / 15.0;
    series = series * square + 1.0 / 13.0;
    series = series * square + 1.0 / 11.0;
    series = series * square + 1.0 / 9.0;
    series = series * square + 1.0 / 7.0;
    series = series * square + 1.0 / 5.0;
    series = series * square + 1.0 / 3.0;
    2.0 * ratio * (series * square + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_those_of_the_standard_library() {
        // Quotient, denominator and products are rounded once each, by at most 6e-8.
        const TOLERANCE: f64 = 3e-7;
        for step in 0..=90_000 {
            let x = -(step as f32) / 1000.0;
            let exact = f64::from(x.max(-87.0)).exp();
            let found = f64::from(exp_below_zero(x));
            assert!((found - exact).abs() <= TOLERANCE * exact, "exp {x}: {found} {exact}");
            let small = exact as f32;
            let exact = f64::from(small).ln_1p();
            let found = f64::from(ln_1p(small));
            assert!((found - exact).abs() <= TOLERANCE * exact, "ln_1p {small}: {found} {exact}");
        }
        assert!(exp_below_zero(f32::NAN).is_nan() && ln_1p(f32::NAN).is_nan());
        assert_eq!((exp_below_zero(0.0), ln_1p(0.0)), (1.0, 0.0));
    }
}
