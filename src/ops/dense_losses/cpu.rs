//! On the CPU: slices in, slices out. Sums have the order of levels, images and rows, whatever the number of threads.

use candle_core::Tensor;

use super::evaluate::Compared;
use super::{BoxCost, Loss, Normalization, cpu_focal, cpu_hard_negatives};
use crate::error::{Error, Result};
use crate::ops::support::box_coding::{BoxCoding, distances};
use crate::ops::support::check::{cpu_slice, lend, with_optional_slice};
use crate::ops::support::geometry::giou_loss;
use crate::ops::support::levels::Levels;
use crate::ops::support::matches::Match;

/// Predictions and what they should be, as slices.
pub(super) struct Given<'a> {
    pub op: &'static str,
    pub plan: &'a Levels,
    pub n_objects: usize,
    pub levels: &'a [&'a [f32]],
    pub anchors: &'a [[f32; 4]],
    pub matches: &'a [u32],
    pub boxes: &'a [[f32; 4]],
    pub labels: &'a [u32],
    /// What an image's costs are multiplied by.
    pub shares: Vec<f64>,
}

/// A place that has found an object.
pub(super) struct Positive {
    pub image: usize,
    /// Among the places of the image.
    pub row: usize,
    /// Among the objects of the batch.
    pub object: usize,
}

/// The loss, and the derivatives by all predictions if they are wanted.
pub(super) fn evaluate(compared: &Compared, learns: bool) -> Result<(f32, Vec<Vec<f32>>)> {
    let Compared { loss, normalization, plan, n_objects, .. } = compared;
    let Compared { levels, anchors, matches, boxes, labels, .. } = compared;
    let locked: Vec<_> = levels.iter().map(Tensor::storage_and_layout).collect();
    let slices = locked.iter().map(cpu_slice::<f32, _>).collect::<Result<Vec<_>>>()?;
    lend!(matches: u32, boxes: f32, labels: u32);
    with_optional_slice(anchors.as_ref(), |anchors: Option<&[f32]>| {
        let given = Given {
            op: loss.op(),
            plan,
            n_objects: *n_objects,
            levels: &slices,
            anchors: anchors.unwrap_or_default().as_chunks::<4>().0,
            matches,
            boxes: boxes.as_chunks::<4>().0,
            labels,
            shares: shares(matches, plan, *normalization),
        };
        given.check_matches(loss.has_classes())?;
        let zeros = |level: &&[f32]| if learns { vec![0f32; level.len()] } else { Vec::new() };
        let mut slopes: Vec<Vec<f32>> = slices.iter().map(zeros).collect();
        let value = match *loss {
            Loss::Focal => cpu_focal::cost(&given, &mut slopes),
            Loss::Boxes { coding, cost } => given.of_positives(&mut slopes, |positive, values| {
                let reference = given.anchors[positive.row];
                box_cost(coding, cost, values, reference, given.boxes[positive.object])
            }),
            Loss::Centerness => given.of_positives(&mut slopes, |positive, values: [f32; 1]| {
                let reference = given.anchors[positive.row];
                centerness_cost(values[0], centerness(given.boxes[positive.object], reference))
            }),
            Loss::HardNegatives { per_positive } => {
                cpu_hard_negatives::cost(&given, per_positive, &mut slopes)
            }
        };
        Ok((value as f32, slopes))
    })?
}

/// What costs of each image are multiplied by.
fn shares(matches: &[u32], plan: &Levels, normalization: Normalization) -> Vec<f64> {
    let is_positive = |code: &&u32| matches!(Match::from_code(**code), Match::Object(_));
    let rows = plan.rows();
    let of_image =
        |image: usize| matches[image * rows..][..rows].iter().filter(is_positive).count();
    let positives: Vec<usize> = (0..plan.images).map(of_image).collect();
    match normalization {
        Normalization::PerImage => {
            let images = plan.images as f64;
            positives.iter().map(|count| 1.0 / (*count).max(1) as f64 / images).collect()
        }
        Normalization::PerBatch => {
            let all = positives.iter().sum::<usize>().max(1) as f64;
            vec![1.0 / all; plan.images]
        }
    }
}

impl Given<'_> {
    /// Requires that matches are objects, and their labels classes where predictions are.
    fn check_matches(&self, has_classes: bool) -> Result<()> {
        let fault = |argument, expected, found: usize| {
            Err(Error::Shape { op: self.op, argument, expected, found: vec![found] })
        };
        let classes = self.plan.width;
        for (place, code) in self.matches.iter().enumerate() {
            let Match::Object(object) = Match::from_code(*code) else { continue };
            if object as usize >= self.n_objects {
                let expected = format!("objects below {}", self.n_objects);
                return fault("matches", expected, object as usize);
            }
            let label = self.labels[self.object(place / self.plan.rows(), object)] as usize;
            if has_classes && label >= classes {
                return fault("objects.labels", format!("classes below {classes}"), label);
            }
        }
        Ok(())
    }

    /// The place of an object of an image among those of the batch.
    pub fn object(&self, image: usize, object: u32) -> usize {
        image * self.n_objects + object as usize
    }

    /// All places that have found an object, in order.
    fn positives(&self) -> impl Iterator<Item = Positive> {
        let rows = self.plan.rows().max(1);
        self.matches.iter().enumerate().filter_map(move |(place, code)| {
            let Match::Object(object) = Match::from_code(*code) else { return None };
            let image = place / rows;
            Some(Positive { image, row: place % rows, object: self.object(image, object) })
        })
    }

    /// Adds up what positives cost, from the values of a place to its cost and the derivatives by them.
    fn of_positives<const WIDTH: usize>(
        &self,
        slopes: &mut [Vec<f32>],
        cost: impl Fn(Positive, [f32; WIDTH]) -> (f64, [f64; WIDTH]),
    ) -> f64 {
        let mut sum = 0.0;
        for positive in self.positives() {
            let share = self.shares[positive.image];
            let Some((level, row)) = self.plan.place(positive.image, positive.row) else {
                continue;
            };
            let values = self.levels[level].as_chunks::<WIDTH>().0[row];
            let (value, by_value) = cost(positive, values);
            sum += value * share;
            if let Some(slopes) = slopes[level].as_chunks_mut::<WIDTH>().0.get_mut(row) {
                *slopes = by_value.map(|slope| (slope * share) as f32);
            }
        }
        sum
    }
}

/// Of a predicted box and its object.
fn box_cost(
    coding: BoxCoding,
    cost: BoxCost,
    values: [f32; 4],
    reference: [f32; 4],
    object: [f32; 4],
) -> (f64, [f64; 4]) {
    let beta = match cost {
        BoxCost::Giou => {
            let predicted = coding.decode(values, reference);
            let (loss, by_corner) = giou_loss(predicted, object.map(f64::from));
            return (loss, coding.slopes(values, reference, by_corner));
        }
        BoxCost::L1 => 0.0,
        BoxCost::SmoothL1 { beta } => f64::from(beta),
    };
    let wanted = coding.encode(object, reference);
    let (mut sum, mut slopes) = (0.0, [0.0; 4]);
    for side in 0..4 {
        let difference = f64::from(values[side]) - f64::from(wanted[side]);
        let size = difference.abs();
        if size < beta {
            sum += 0.5 * difference * difference / beta;
            slopes[side] = difference / beta;
        } else {
            sum += size - 0.5 * beta;
            slopes[side] = if difference == 0.0 { 0.0 } else { difference.signum() };
        }
    }
    (sum, slopes)
}

/// What the centerness of a point should be: 1 at the center of its object, 0 on a side.
fn centerness(object: [f32; 4], reference: [f32; 4]) -> f64 {
    let [left, top, right, bottom] = distances(object, reference);
    let ratio = |a: f32, b: f32| f64::from(a.min(b) / a.max(b));
    (ratio(left, right) * ratio(top, bottom)).sqrt()
}

/// Binary cross-entropy of the sigmoid of a logit.
fn centerness_cost(logit: f32, target: f64) -> (f64, [f64; 1]) {
    let logit = f64::from(logit);
    // No exponential overflows. The maximum drops NaN, the others don't.
    let value = logit.max(0.0) - logit * target + (-logit.abs()).exp().ln_1p();
    (value, [1.0 / (1.0 + (-logit).exp()) - target])
}
