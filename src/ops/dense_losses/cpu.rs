//! On the CPU: slices in, slices out. Sums have the order of levels, images and rows, whatever the number of threads.

use candle_core::Tensor;

use super::compared::Compared;
use super::given::{Given, shares};
use super::{BoxCost, Loss, cpu_focal, cpu_hard_negatives};
use crate::error::Result;
use crate::ops::support::box_coding::{BoxCoding, distances};
use crate::ops::support::check::{cpu_slice, lend, with_optional_slice};
use crate::ops::support::geometry::giou_loss;

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
