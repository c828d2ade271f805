//! Losses on the CPU: slices in, slices out. Sums have the order of the rows, whatever the number of threads.

use rayon::prelude::*;

use super::{Loss, SMOOTH_L1_BETA};

/// Rows of predictions and what they should be. Labels are classes where predictions are of classes.
pub(super) struct Rows<'a> {
    pub loss: Loss,
    /// Predictions of a row.
    pub width: usize,
    /// `[R, width]`.
    pub predictions: &'a [f32],
    /// `[R]`.
    pub labels: &'a [u32],
    /// `[R, 4]` of boxes, `[R, width]` of masks, else empty.
    pub targets: &'a [f32],
}

/// What a prediction costs, and the derivative by it.
struct Term {
    value: f64,
    slope: f64,
}

impl Rows<'_> {
    /// The loss, and one over the number of terms that it is averaged over, or 0.
    pub fn cost(&self) -> (f32, f64) {
        let rows = self.labels.iter().filter(|label| self.loss.counts(**label)).count();
        let terms = rows * self.loss.terms(self.width);
        if terms == 0 {
            return (0.0, 0.0);
        }
        let costs: Vec<f64> = (0..self.labels.len())
            .into_par_iter()
            .map(|row| {
                let mut cost = 0.0;
                self.for_each_term(row, |_, term| cost += term.value);
                cost
            })
            .collect();
        let share = 1.0 / terms as f64;
        ((costs.iter().sum::<f64>() * share) as f32, share)
    }

    /// The derivative of each term by its prediction, times a factor.
    pub fn slopes(&self, factor: f64) -> Vec<f32> {
        let mut slopes = vec![0f32; self.predictions.len()];
        slopes.par_chunks_mut(self.width.max(1)).enumerate().for_each(|(row, slopes)| {
            self.for_each_term(row, |column, term| slopes[column] = (term.slope * factor) as f32);
        });
        slopes
    }

    /// The columns of a row whose predictions cost something, in order.
    fn for_each_term(&self, row: usize, mut work: impl FnMut(usize, Term)) {
        let label = self.labels[row];
        if !self.loss.counts(label) {
            return;
        }
        let predictions = &self.predictions[row * self.width..][..self.width];
        match self.loss {
            Loss::Objectness => {
                let target = if label > 0 { 1.0 } else { 0.0 };
                work(0, cross_entropy_with_logit(predictions[0], target));
            }
            Loss::Classifier => cross_entropy(predictions, label as usize, work),
            Loss::Boxes if label == 0 => {}
            Loss::Boxes => {
                let first = if self.width == 4 { 0 } else { 4 * label as usize };
                let targets = &self.targets[4 * row..][..4];
                for (column, (delta, target)) in
                    (first..).zip(predictions[first..].iter().zip(targets))
                {
                    work(column, smooth_l1(f64::from(*delta) - f64::from(*target)));
                }
            }
            Loss::Masks => {
                let targets = &self.targets[row * self.width..][..self.width];
                for (column, (logit, target)) in predictions.iter().zip(targets).enumerate() {
                    work(column, cross_entropy_with_logit(*logit, f64::from(*target)));
                }
            }
        }
    }
}

/// Of the logits of a row, whose cost is that of its label.
fn cross_entropy(logits: &[f32], label: usize, mut work: impl FnMut(usize, Term)) {
    // No exponential overflows.
    let largest = logits.iter().fold(f64::NEG_INFINITY, |largest, x| largest.max(f64::from(*x)));
    let total: f64 = logits.iter().map(|x| (f64::from(*x) - largest).exp()).sum();
    let normaliser = largest + total.ln();
    for (class, logit) in logits.iter().enumerate() {
        let log_probability = f64::from(*logit) - normaliser;
        let probability = log_probability.exp();
        work(
            class,
            if class == label {
                Term { value: -log_probability, slope: probability - 1.0 }
            } else {
                Term { value: 0.0, slope: probability }
            },
        );
    }
}

/// Binary cross-entropy of the sigmoid of a logit.
fn cross_entropy_with_logit(logit: f32, target: f64) -> Term {
    let logit = f64::from(logit);
    Term {
        // max(x, 0) − x·t + ln(1 + e^−|x|): no exponential overflows. The maximum drops NaN, the others don't.
        value: logit.max(0.0) - logit * target + (-logit.abs()).exp().ln_1p(),
        slope: 1.0 / (1.0 + (-logit).exp()) - target,
    }
}

/// `½ d² / β` for `|d| < β`, else `|d| − ½ β`.
fn smooth_l1(difference: f64) -> Term {
    let beta = f64::from(SMOOTH_L1_BETA);
    let size = difference.abs();
    if size < beta {
        Term { value: 0.5 * difference * difference / beta, slope: difference / beta }
    } else {
        Term { value: size - 0.5 * beta, slope: difference.signum() }
    }
}
