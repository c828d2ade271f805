use super::cpu::CHUNK;
use super::*;
use crate::ops::support::testing::{Random, fixture, values};

const RPN: AssignParams =
    AssignParams { positive_iou: 0.7, negative_iou: 0.3, unfound: Unfound::GivenToBestBoxes };
const ROI: AssignParams =
    AssignParams { positive_iou: 0.5, negative_iou: 0.5, unfound: Unfound::Dropped };

const RETINANET: AssignParams =
    AssignParams { positive_iou: 0.5, negative_iou: 0.4, unfound: Unfound::GivenToBestBoxes };
const SSD: AssignParams = AssignParams { unfound: Unfound::EachToItsBestBox, ..ROI };

fn corners(boxes: &[[f32; 4]], dims: &[usize]) -> Tensor {
    Tensor::from_vec(boxes.as_flattened().to_vec(), dims, &Device::Cpu).unwrap()
}

fn counts(counts: &[u32]) -> Tensor {
    Tensor::new(counts, &Device::Cpu).unwrap()
}

/// Of one image.
fn assigned(boxes: &[[f32; 4]], objects: &[[f32; 4]], params: &AssignParams) -> Vec<Match> {
    let boxes = corners(boxes, &[boxes.len(), 4]);
    let count = counts(&[objects.len() as u32]);
    let objects = corners(objects, &[1, objects.len(), 4]);
    let codes = assign(BoxSet::Shared(&boxes), &objects, &count, params).unwrap();
    decoded(&codes.get(0).unwrap())
}

fn decoded(codes: &Tensor) -> Vec<Match> {
    codes.to_vec1().unwrap().into_iter().map(Match::from_code).collect()
}

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
        assert_eq!(assigned(&[overlapping(width)], &[WIDE], &dropped), [expected], "{width}");
    }
    assert_eq!(assigned(&[overlapping(500.0)], &[WIDE], &ROI), [Match::Object(0)]);
    assert_eq!(assigned(&[overlapping(499.9)], &[WIDE], &ROI), [Match::Background]);
    let exact = AssignParams { negative_iou: 0.25, ..dropped };
    assert_eq!(assigned(&[overlapping(250.0)], &[WIDE], &exact), [Match::Ignored]);
}

#[test]
fn all_best_boxes_of_an_object_find_something() {
    // Two boxes tie for the first object; the second object's best box overlaps the first object more.
    let objects = [WIDE, [0.0, 0.0, 100.0, 1.0]];
    let boxes =
        [overlapping(200.0), [800.0, 0.0, 1000.0, 1.0], overlapping(1.0), [500.0, 0.0, 510.0, 1.0]];
    let found = assigned(&boxes, &objects, &RPN);
    // Box 0: IoU 0.2 with object 0 and 0.5 with object 1, whose best it is. Box 1 has 0.2 with object 0 and ties.
    assert_eq!(found, [Match::Object(1), Match::Object(0), Match::Background, Match::Background]);
    // The box that is best for object 1 is given the object that it overlaps more itself.
    let objects = [[0.0, 0.0, 10.0, 1.0], [8.0, 0.0, 30.0, 1.0]];
    let found = assigned(&[[0.0, 0.0, 12.0, 1.0]], &objects, &RPN);
    assert_eq!(found, [Match::Object(0)]);
}

#[test]
fn each_object_is_given_to_its_best_box() {
    let objects = [WIDE, [0.0, 0.0, 300.0, 1.0], [0.0, 0.0, 1.0, 1.0]];
    let boxes =
        [overlapping(200.0), [800.0, 0.0, 1000.0, 1.0], overlapping(290.0), overlapping(280.0)];
    let found = assigned(&boxes, &objects, &SSD);
    // Object 0 has its largest IoU with box 2, as object 1 does, which comes later; object 2's best is box 0.
    let expected = [Match::Object(2), Match::Background, Match::Object(1), Match::Object(1)];
    assert_eq!(found, expected);
    let far = [5000.0, 5000.0, 5010.0, 5010.0];
    assert_eq!(assigned(&boxes, &[far], &SSD), [Match::Background; 4]);
}

#[test]
fn an_object_far_from_all_boxes_is_given_to_none() {
    let far = [5000.0, 5000.0, 5010.0, 5010.0];
    let boxes = [overlapping(200.0), overlapping(900.0)];
    assert_eq!(assigned(&boxes, &[far], &RPN), [Match::Background; 2]);
    assert_eq!(assigned(&boxes, &[far, WIDE], &RPN), [Match::Background, Match::Object(1)]);
}

#[test]
fn without_objects_all_is_background() {
    assert_eq!(assigned(&[WIDE], &[], &RPN), [Match::Background]);
    assert_eq!(assigned(&[], &[WIDE], &RPN), []);
    assert_eq!(assigned(&[[3.0; 4], [f32::NAN; 4]], &[WIDE], &ROI), [Match::Background; 2]);
}

#[test]
fn tasks_agree_with_the_matrix() {
    let mut random = Random::new(5);
    for params in [RPN, ROI, SSD] {
        let boxes = random.boxes(3 * CHUNK + 77, 300.0, 200.0);
        let objects = random.boxes(9, 300.0, 200.0);
        let found = assigned(&boxes, &objects, &params);
        assert_eq!(found, reference::assign(&boxes, &objects, &params));
        let kinds = [Match::Background, Match::Object(3)];
        assert!(kinds.iter().all(|kind| found.contains(kind)));
    }
}

/// Each image has its own objects and valid boxes; what lies above the counts is not looked at.
#[test]
fn images_are_apart() {
    let mut random = Random::new(6);
    let boxes = random.boxes(3 * 40, 100.0, 80.0);
    let objects = random.boxes(3 * 5, 100.0, 80.0);
    let (valid, present) = ([40, 17, 0], [5, 0, 3]);
    let set = BoxSet::PerImage { boxes: &corners(&boxes, &[3, 40, 4]), counts: &counts(&valid) };
    let objects_tensor = corners(&objects, &[3, 5, 4]);
    for params in [RPN, ROI, SSD] {
        let found = assign(set, &objects_tensor, &counts(&present), &params).unwrap();
        for image in 0..3 {
            let boxes = &boxes[40 * image..][..valid[image] as usize];
            let objects = &objects[5 * image..][..present[image] as usize];
            let mut expected = reference::assign(boxes, objects, &params);
            expected.resize(40, Match::Ignored);
            assert_eq!(decoded(&found.get(image).unwrap()), expected, "{image}");
        }
    }
}

#[test]
fn matches_are_the_references() {
    let tensors = fixture("train_losses.safetensors");
    let rows = |key: &str| values(&tensors[key]).as_chunks::<4>().0.to_vec();
    let (boxes, objects) = (rows("match/boxes"), rows("match/objects"));
    for (name, params) in [("rpn", RPN), ("roi", ROI)] {
        let found: Vec<u32> =
            assigned(&boxes, &objects, &params).into_iter().map(Match::code).collect();
        let expected: Vec<u32> =
            tensors[&format!("match/{name}")].flatten_all().unwrap().to_vec1().unwrap();
        assert_eq!(found, expected, "{name}");
        assert!(expected.contains(&1) && expected.iter().any(|found| *found > 1));
        assert_eq!(expected.contains(&0), name == "rpn");
    }
}

#[test]
fn matches_of_one_stage_detectors_are_the_references() {
    let tensors = fixture("dense_losses.safetensors");
    let rows = |key: &str| values(&tensors[key]).as_chunks::<4>().0.to_vec();
    for (name, params) in [("retinanet", RETINANET), ("ssd", SSD)] {
        let boxes = rows(&format!("{name}/anchors"));
        for image in 0..3 {
            let objects = rows(&format!("objects/boxes.{image}"));
            let found: Vec<u32> =
                assigned(&boxes, &objects, &params).into_iter().map(Match::code).collect();
            let expected = tensors[&format!("{name}/matches")].get(image).unwrap();
            assert_eq!(found, expected.to_vec1::<u32>().unwrap(), "{name} {image}");
        }
    }
}

#[test]
fn wrong_arguments_are_named() {
    let boxes = corners(&[WIDE], &[1, 4]);
    let objects = corners(&[WIDE; 2], &[2, 1, 4]);
    let message = |boxes, given: &[u32]| {
        assign(boxes, &objects, &counts(given), &ROI).unwrap_err().to_string()
    };
    assert!(message(BoxSet::Shared(&boxes), &[1]).contains("`counts`"));
    let one = corners(&[WIDE], &[1, 1, 4]);
    let given = counts(&[1, 1]);
    let set = BoxSet::PerImage { boxes: &one, counts: &given };
    assert!(message(set, &[1, 1]).contains("`boxes`"));
}
