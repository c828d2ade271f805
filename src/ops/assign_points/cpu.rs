use candle_core::{Device, Tensor};
use rayon::prelude::*;

use super::{AssignPointsParams, MAX_AREA, Plan};
use crate::error::Result;
use crate::ops::support::check::lend;
use crate::ops::support::geometry::area;
use crate::ops::support::matches::Match;

/// Points per task. Results don't depend on it.
const CHUNK: usize = 1024;

pub(super) fn run(
    squares: &Tensor,
    objects: &Tensor,
    counts: &Tensor,
    params: &AssignPointsParams,
    plan: Plan,
) -> Result<Tensor> {
    lend!(squares: f32, objects: f32, counts: u32);
    let (squares, objects) = (squares.as_chunks::<4>().0, objects.as_chunks::<4>().0);
    let mut codes = Vec::with_capacity(plan.images * plan.points);
    for (image, count) in counts.iter().enumerate() {
        let count = (*count as usize).min(plan.objects);
        let objects = &objects[image * plan.objects..][..count];
        let indexed = squares.par_iter().enumerate().with_min_len(CHUNK);
        codes.par_extend(indexed.map(|(index, square)| {
            let limits = limits(index, *square, params, plan);
            smallest(*square, objects, limits, params.center_radius).code()
        }));
    }
    Ok(Tensor::from_vec(codes, (plan.images, plan.points), &Device::Cpu)?)
}

/// Between which numbers the largest distance of a point to a side lies, neither included.
fn limits(index: usize, square: [f32; 4], params: &AssignPointsParams, plan: Plan) -> (f32, f32) {
    let stride = square[2] - square[0];
    let lower = if index < plan.first { 0.0 } else { stride * params.side_range.0 };
    let is_last = index >= plan.before_last;
    (lower, if is_last { f32::INFINITY } else { stride * params.side_range.1 })
}

/// The smallest of the objects that suit a point.
fn smallest(square: [f32; 4], objects: &[[f32; 4]], limits: (f32, f32), radius: f32) -> Match {
    let [x1, y1, x2, y2] = square;
    let (x, y) = ((x1 + x2) / 2.0, (y1 + y2) / 2.0);
    let reach = radius * (x2 - x1);
    // Less is no object, or one that is too large.
    let (mut found, mut best) = (Match::Background, 1e-5);
    for (index, object) in (0..).zip(objects) {
        let (center_x, center_y) = ((object[0] + object[2]) / 2.0, (object[1] + object[3]) / 2.0);
        let sides = [x - object[0], y - object[1], object[2] - x, object[3] - y];
        let nearest = sides.iter().copied().fold(f32::INFINITY, f32::min);
        let farthest = sides.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let suits = (x - center_x).abs().max((y - center_y).abs()) < reach
            && nearest > 0.0
            && farthest > limits.0
            && farthest < limits.1;
        let value = MAX_AREA - area(*object);
        // The first of equal ones; the smallest value that counts is included.
        let first = found == Match::Background;
        if suits && (value > best || (first && value == best)) {
            (found, best) = (Match::Object(index), value);
        }
    }
    found
}
