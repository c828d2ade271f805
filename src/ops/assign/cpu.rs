use candle_core::{Device, Tensor};
use rayon::prelude::*;

use super::{AssignParams, Plan, Unfound};
use crate::error::Result;
use crate::ops::support::box_set::BoxSet;
use crate::ops::support::check::{lend, with_optional_slice};
use crate::ops::support::geometry::iou;
use crate::ops::support::matches::Match;

/// Boxes per task. Results don't depend on it.
pub(super) const CHUNK: usize = 4096;

pub(super) fn run(
    boxes: BoxSet<'_>,
    objects: &Tensor,
    counts: &Tensor,
    params: &AssignParams,
    plan: Plan,
) -> Result<Tensor> {
    let stride = boxes.image_stride(plan.boxes);
    let valid = with_optional_slice(boxes.counts(), |counts: Option<&[u32]>| {
        let valid = |image| counts.map_or(plan.boxes, |counts| counts[image] as usize);
        (0..plan.images).map(|image| valid(image).min(plan.boxes)).collect::<Vec<usize>>()
    })?;
    let corners = boxes.boxes();
    lend!(corners: f32, objects: f32, counts: u32);
    let (corners, objects) = (corners.as_chunks::<4>().0, objects.as_chunks::<4>().0);
    let mut codes = Vec::with_capacity(plan.images * plan.boxes);
    for image in 0..plan.images {
        let boxes = &corners[image * stride..][..valid[image]];
        let count = (counts[image] as usize).min(plan.objects);
        let objects = &objects[image * plan.objects..][..count];
        codes.extend(assign(boxes, objects, params).into_iter().map(Match::code));
        codes.resize((image + 1) * plan.boxes, Match::Ignored.code());
    }
    Ok(Tensor::from_vec(codes, (plan.images, plan.boxes), &Device::Cpu)?)
}

/// The boxes and objects of an image.
fn assign(boxes: &[[f32; 4]], objects: &[[f32; 4]], params: &AssignParams) -> Vec<Match> {
    if objects.is_empty() {
        return vec![Match::Background; boxes.len()];
    }
    let nearest: Vec<(u32, f32)> =
        boxes.par_iter().with_min_len(CHUNK).map(|corners| nearest(*corners, objects)).collect();
    let mut matches: Vec<Match> = nearest
        .iter()
        .map(|&(object, overlap)| {
            // In this order, so that NaN of a box without an area is background.
            if overlap >= params.positive_iou {
                Match::Object(object)
            } else if overlap >= params.negative_iou {
                Match::Ignored
            } else {
                Match::Background
            }
        })
        .collect();
    match params.unfound {
        Unfound::Dropped => {}
        Unfound::GivenToBestBoxes => give_to_best_boxes(&mut matches, boxes, objects, &nearest),
        Unfound::EachToItsBestBox => give_each_to_its_best_box(&mut matches, boxes, objects),
    }
    matches
}

/// The object that a box overlaps most, and their IoU.
fn nearest(corners: [f32; 4], objects: &[[f32; 4]]) -> (u32, f32) {
    let mut best = (0, f32::NEG_INFINITY);
    for (index, object) in (0..).zip(objects) {
        let overlap = iou(*object, corners);
        if overlap > best.1 {
            best = (index, overlap);
        }
    }
    best
}

fn give_to_best_boxes(
    matches: &mut [Match],
    boxes: &[[f32; 4]],
    objects: &[[f32; 4]],
    nearest: &[(u32, f32)],
) {
    let best_of_objects = best_of_objects(boxes, objects);
    let least = best_of_objects.iter().copied().filter(|best| *best > 0.0).reduce(f32::min);
    let Some(least) = least else { return };
    let places = matches.par_iter_mut().zip(boxes).zip(nearest).with_min_len(CHUNK);
    places.for_each(|((found, corners), (object, overlap))| {
        // A box is some object's best only if its own best is at least that much.
        let is_best = *overlap >= least
            && objects
                .iter()
                .zip(&best_of_objects)
                .any(|(object, best)| *best > 0.0 && iou(*object, *corners) == *best);
        if is_best {
            *found = Match::Object(*object);
        }
    });
}

/// The largest IoU that each object has with any box.
fn best_of_objects(boxes: &[[f32; 4]], objects: &[[f32; 4]]) -> Vec<f32> {
    let larger = |mut a: Vec<f32>, b: Vec<f32>| {
        for (a, b) in a.iter_mut().zip(b) {
            *a = a.max(b);
        }
        a
    };
    boxes
        .par_chunks(CHUNK)
        .map(|boxes| {
            let best = |object: &[f32; 4]| {
                boxes.iter().fold(0f32, |best, corners| best.max(iou(*object, *corners)))
            };
            objects.iter().map(best).collect()
        })
        .reduce(|| vec![0.0; objects.len()], larger)
}

fn give_each_to_its_best_box(matches: &mut [Match], boxes: &[[f32; 4]], objects: &[[f32; 4]]) {
    let best_box = |object: &[f32; 4]| {
        let mut best = (None, 0f32);
        for (index, corners) in boxes.iter().enumerate() {
            let overlap = iou(*object, *corners);
            if overlap > best.1 {
                best = (Some(index), overlap);
            }
        }
        best.0
    };
    let best: Vec<Option<usize>> = objects.par_iter().map(best_box).collect();
    for (object, index) in (0..).zip(best) {
        if let Some(index) = index {
            matches[index] = Match::Object(object);
        }
    }
}
