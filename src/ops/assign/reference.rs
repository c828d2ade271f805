//! The definition, on a matrix of all pairs.

use super::{AssignParams, Match, Unfound};
use crate::ops::support::geometry::iou;

pub(super) fn assign(
    boxes: &[[f32; 4]],
    objects: &[[f32; 4]],
    params: &AssignParams,
) -> Vec<Match> {
    let matrix: Vec<Vec<f32>> =
        objects.iter().map(|o| boxes.iter().map(|b| iou(*o, *b)).collect()).collect();
    let best_of = |row: &Vec<f32>| row.iter().copied().fold(0f32, f32::max);
    let mut matches: Vec<Match> = (0..boxes.len())
        .map(|b| {
            let (mut object, mut overlap) = (0, -1f32);
            for (o, row) in matrix.iter().enumerate() {
                if row[b] > overlap {
                    (object, overlap) = (o, row[b]);
                }
            }
            let best = matrix.iter().any(|row| row[b] > 0.0 && row[b] == best_of(row));
            if overlap >= params.positive_iou
                || (best && params.unfound == Unfound::GivenToBestBoxes)
            {
                Match::Object(object as u32)
            } else if overlap < params.negative_iou {
                Match::Background
            } else {
                Match::Ignored
            }
        })
        .collect();
    if params.unfound == Unfound::EachToItsBestBox {
        for (o, row) in matrix.iter().enumerate().filter(|(_, row)| best_of(row) > 0.0) {
            let best = row.iter().position(|overlap| *overlap == best_of(row)).unwrap();
            matches[best] = Match::Object(o as u32);
        }
    }
    matches
}
