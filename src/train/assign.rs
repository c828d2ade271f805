//! Which object each box has found.

use rayon::prelude::*;

use crate::ops::support::geometry::iou;

/// Boxes per task. Results don't depend on it.
const CHUNK: usize = 4096;

/// What a box is to learn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match {
    /// It has found the object of this index.
    Object(u32),
    /// It shows no object.
    Background,
    /// It is neither near enough to an object nor far enough from all: nothing is learned from it.
    Ignored,
}

/// Thresholds of [`assign`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AssignParams {
    /// A box has found the object it overlaps most when their IoU is at least this.
    pub positive_iou: f32,
    /// It is background when that IoU is less than this.
    pub negative_iou: f32,
    /// What becomes of objects that no box has found.
    pub unfound: Unfound,
}

/// What becomes of objects that no box overlaps enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfound {
    /// Nothing is learned about them.
    Dropped,
    /// The boxes that overlap an object most, all of them if several do equally, have found something, however little
    /// they overlap: not necessarily that object, but the one that they themselves overlap most.
    GivenToBestBoxes,
}

/// Compares every box with every object.
///
/// Of objects that a box overlaps equally, the first counts. An object that no box overlaps at all is never given to
/// boxes; the reference then gives it to *every* box with an IoU of 0. Without objects every box is background.
///
/// `boxes` and `objects` are xyxy in one unit; objects have an area. O(boxes · objects) time; memory for one entry per
/// box and one per object and task, never for a matrix of all pairs.
///
/// Reference: torchvision `models/detection/_utils.py`, `Matcher`; Ren et al., arXiv:1506.01497, section 3.1.2.
pub fn assign(boxes: &[[f32; 4]], objects: &[[f32; 4]], params: &AssignParams) -> Vec<Match> {
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
    if params.unfound == Unfound::GivenToBestBoxes {
        give_to_best_boxes(&mut matches, boxes, objects, &nearest);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::support::testing::Random;

    const RPN: AssignParams =
        AssignParams { positive_iou: 0.7, negative_iou: 0.3, unfound: Unfound::GivenToBestBoxes };
    const ROI: AssignParams =
        AssignParams { positive_iou: 0.5, negative_iou: 0.5, unfound: Unfound::Dropped };

    /// A box of height 1 whose IoU with `[0, 0, 1000, 1]` is `overlap` thousandths.
    fn overlapping(overlap: f32) -> [f32; 4] {
        [0.0, 0.0, overlap, 1.0]
    }

    const WIDE: [f32; 4] = [0.0, 0.0, 1000.0, 1.0];

    #[test]
    fn thresholds_are_inclusive_from_below() {
        let dropped = AssignParams { unfound: Unfound::Dropped, ..RPN };
        for (width, expected) in [
            (700.0, Match::Object(0)),
            (699.9, Match::Ignored),
            (300.1, Match::Ignored),
            (299.9, Match::Background),
        ] {
            assert_eq!(assign(&[overlapping(width)], &[WIDE], &dropped), [expected], "{width}");
        }
        assert_eq!(assign(&[overlapping(500.0)], &[WIDE], &ROI), [Match::Object(0)]);
        assert_eq!(assign(&[overlapping(499.9)], &[WIDE], &ROI), [Match::Background]);
        let exact = AssignParams { negative_iou: 0.25, ..dropped };
        assert_eq!(assign(&[overlapping(250.0)], &[WIDE], &exact), [Match::Ignored]);
    }

    #[test]
    fn all_best_boxes_of_an_object_find_something() {
        // Two boxes tie for the first object; the second object's best box overlaps the first object more.
        let objects = [WIDE, [0.0, 0.0, 100.0, 1.0]];
        let boxes = [
            overlapping(200.0),
            [800.0, 0.0, 1000.0, 1.0],
            overlapping(1.0),
            [500.0, 0.0, 510.0, 1.0],
        ];
        let found = assign(&boxes, &objects, &RPN);
        // Box 0: IoU 0.2 with object 0 and 0.5 with object 1, whose best it is. Box 1 has 0.2 with object 0 and ties.
        assert_eq!(
            found,
            [Match::Object(1), Match::Object(0), Match::Background, Match::Background]
        );
        // The box that is best for object 1 is given the object that it overlaps more itself.
        let objects = [[0.0, 0.0, 10.0, 1.0], [8.0, 0.0, 30.0, 1.0]];
        let found = assign(&[[0.0, 0.0, 12.0, 1.0]], &objects, &RPN);
        assert_eq!(found, [Match::Object(0)]);
    }

    #[test]
    fn an_object_far_from_all_boxes_is_given_to_none() {
        let far = [5000.0, 5000.0, 5010.0, 5010.0];
        let boxes = [overlapping(200.0), overlapping(900.0)];
        assert_eq!(assign(&boxes, &[far], &RPN), [Match::Background; 2]);
        assert_eq!(assign(&boxes, &[far, WIDE], &RPN), [Match::Background, Match::Object(1)]);
    }

    #[test]
    fn without_objects_all_is_background() {
        assert_eq!(assign(&[WIDE], &[], &RPN), [Match::Background]);
        assert_eq!(assign(&[], &[WIDE], &RPN), []);
        assert_eq!(assign(&[[3.0; 4], [f32::NAN; 4]], &[WIDE], &ROI), [Match::Background; 2]);
    }

    /// The definition, on a matrix of all pairs.
    fn by_matrix(boxes: &[[f32; 4]], objects: &[[f32; 4]], params: &AssignParams) -> Vec<Match> {
        let matrix: Vec<Vec<f32>> =
            objects.iter().map(|o| boxes.iter().map(|b| iou(*o, *b)).collect()).collect();
        let best_of = |row: &Vec<f32>| row.iter().copied().fold(0f32, f32::max);
        (0..boxes.len())
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
            .collect()
    }

    #[test]
    fn tasks_agree_with_the_matrix() {
        let mut random = Random::new(5);
        for params in [RPN, ROI] {
            let boxes = random.boxes(3 * CHUNK + 77, 300.0, 200.0);
            let objects = random.boxes(9, 300.0, 200.0);
            let found = assign(&boxes, &objects, &params);
            assert_eq!(found, by_matrix(&boxes, &objects, &params));
            let kinds = [Match::Background, Match::Object(3)];
            assert!(kinds.iter().all(|kind| found.contains(kind)));
        }
    }
}
