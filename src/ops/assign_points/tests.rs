use super::*;
use crate::ops::support::matches::Match;
use crate::ops::support::testing::{Random, fixture, values};

const FCOS: AssignPointsParams = AssignPointsParams { center_radius: 1.5, side_range: (4.0, 8.0) };

fn corners(boxes: &[[f32; 4]], dims: &[usize]) -> Tensor {
    Tensor::from_vec(boxes.as_flattened().to_vec(), dims, &Device::Cpu).unwrap()
}

fn counts(counts: &[u32]) -> Tensor {
    Tensor::new(counts, &Device::Cpu).unwrap()
}

/// Squares around the points of levels of these strides, row by row, and the number of each level.
fn pyramid(strides: &[usize], height: usize, width: usize) -> (Vec<[f32; 4]>, Vec<usize>) {
    let mut squares = Vec::new();
    let mut lengths = Vec::new();
    for stride in strides {
        let (rows, columns) = (height.div_ceil(*stride), width.div_ceil(*stride));
        let half = *stride as f32 / 2.0;
        for place in 0..rows * columns {
            let (x, y) = ((place % columns * stride) as f32, (place / columns * stride) as f32);
            squares.push([x - half, y - half, x + half, y + half]);
        }
        lengths.push(rows * columns);
    }
    (squares, lengths)
}

/// Of one image.
fn assigned(squares: &[[f32; 4]], lengths: &[usize], objects: &[[f32; 4]]) -> Vec<Match> {
    let squares = corners(squares, &[squares.len(), 4]);
    let count = counts(&[objects.len() as u32]);
    let objects = corners(objects, &[1, objects.len(), 4]);
    let codes = assign_points(&squares, lengths, &objects, &count, &FCOS).unwrap();
    decoded(&codes.get(0).unwrap())
}

fn decoded(codes: &Tensor) -> Vec<Match> {
    codes.to_vec1().unwrap().into_iter().map(Match::from_code).collect()
}

/// The match of one point at the origin on a middle level of stride 8.
fn at_origin(objects: &[[f32; 4]]) -> Match {
    let far = [1e6, 1e6, 1e6 + 8.0, 1e6 + 8.0];
    assigned(&[far, [-4.0, -4.0, 4.0, 4.0], far], &[1; 3], objects)[1]
}

#[test]
fn limits_are_strict() {
    for (object, found) in [
        ([-33.0, -33.0, 33.0, 33.0], true),
        ([-32.0, -32.0, 32.0, 32.0], false),
        ([-63.0, -40.0, 63.0, 40.0], true),
        ([-64.0, -40.0, 64.0, 40.0], false),
        // The center is near enough.
        ([-30.0, -40.0, 53.0, 40.0], true),
        ([-20.0, -40.0, 44.0, 40.0], false),
        // A side goes through the point.
        ([0.0, -40.0, 22.0, 40.0], false),
        ([-0.5, -40.0, 22.0, 40.0], true),
    ] {
        let expected = if found { Match::Object(0) } else { Match::Background };
        assert_eq!(at_origin(&[object]), expected, "{object:?}");
    }
}

#[test]
fn the_smallest_object_is_found_and_of_equal_ones_the_first() {
    let large = [-40.0, -40.0, 40.0, 40.0];
    let small = [-40.0, -30.0, 40.0, 30.0];
    assert_eq!(at_origin(&[large, small, small]), Match::Object(1));
    // 1e8 − 4800 and 1e8 − 4801 are the same number.
    let smaller = [-40.0, -30.0, 40.0, 29.9875];
    assert_eq!(at_origin(&[small, smaller]), Match::Object(0));
}

#[test]
fn an_area_of_1e8_is_too_large() {
    let origin = [-4.0, -4.0, 4.0, 4.0];
    let square = |side: f32| [-side / 2.0, -side / 2.0, side / 2.0, side / 2.0];
    assert_eq!(assigned(&[origin], &[1], &[square(10_000.0)]), [Match::Background]);
    assert_eq!(assigned(&[origin], &[1], &[square(9_990.0)]), [Match::Object(0)]);
}

#[test]
fn points_agree_with_the_matrix() {
    let mut random = Random::new(1);
    let (squares, lengths) = pyramid(&[4, 8, 16, 32], 150, 230);
    for n in [0, 1, 12] {
        let objects = random.boxes(n, 230.0, 150.0);
        let found = assigned(&squares, &lengths, &objects);
        assert_eq!(found, reference::assign(&squares, &lengths, &objects, &FCOS));
        assert_eq!(n > 0, found.iter().any(|found| *found != Match::Background));
    }
}

#[test]
fn images_are_apart() {
    let mut random = Random::new(2);
    let (squares, lengths) = pyramid(&[4, 8], 60, 90);
    let objects = random.boxes(3 * 5, 90.0, 60.0);
    let present = [5u32, 0, 3];
    let points = corners(&squares, &[squares.len(), 4]);
    let all = corners(&objects, &[3, 5, 4]);
    let found = assign_points(&points, &lengths, &all, &counts(&present), &FCOS).unwrap();
    for image in 0..3 {
        let objects = &objects[5 * image..][..present[image] as usize];
        let expected = reference::assign(&squares, &lengths, objects, &FCOS);
        assert_eq!(decoded(&found.get(image).unwrap()), expected, "{image}");
    }
}

#[test]
fn matches_are_the_references() {
    let tensors = fixture("dense_losses.safetensors");
    let rows = |key: &str| values(&tensors[key]).as_chunks::<4>().0.to_vec();
    let squares = rows("fcos/anchors");
    let lengths = tensors["fcos/lengths"].to_vec1::<u32>().unwrap();
    let lengths: Vec<usize> = lengths.into_iter().map(|length| length as usize).collect();
    for image in 0..3 {
        let objects = rows(&format!("objects/boxes.{image}"));
        let found: Vec<u32> =
            assigned(&squares, &lengths, &objects).into_iter().map(Match::code).collect();
        let expected: Vec<u32> = tensors["fcos/matches"].get(image).unwrap().to_vec1().unwrap();
        assert_eq!(found, expected, "{image}");
    }
}

#[test]
fn wrong_arguments_are_named() {
    let (squares, lengths) = pyramid(&[8], 16, 16);
    let points = corners(&squares, &[4, 4]);
    let objects = corners(&[[0.0; 4]; 2], &[2, 1, 4]);
    let message = |lengths: &[usize], given: &[u32]| {
        assign_points(&points, lengths, &objects, &counts(given), &FCOS).unwrap_err().to_string()
    };
    assert!(message(&lengths, &[1]).contains("`counts`"));
    assert!(message(&[5], &[1, 1]).contains("`squares`"));
    assert!(message(&[], &[1, 1]).contains("squares"));
}
