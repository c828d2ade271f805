use candle_core::{DType, Device, Tensor};

use super::{DecodeBoxesParams, DecodedBoxes, decode_boxes};
use crate::ops::support::box_coding::BoxCoding;
use crate::ops::support::testing::values;

const ANCHORS: [[f32; 4]; 3] =
    [[0.0, 0.0, 10.0, 20.0], [10.0, 10.0, 30.0, 30.0], [-8.0, -8.0, 8.0, 8.0]];

/// Anchors 0 and 1 are on the first level, 2 on the second.
fn run(codes: [[f32; 4]; 3], slots: &[(u32, u8)], coding: BoxCoding) -> DecodedBoxes {
    let device = &Device::Cpu;
    let fine = Tensor::new(&[[codes[0], codes[1]]], device).unwrap();
    let coarse = Tensor::new(&[[codes[2]]], device).unwrap();
    let (index, valid): (Vec<u32>, Vec<u8>) = slots.iter().copied().unzip();
    decode_boxes(
        &Tensor::new(&ANCHORS, device).unwrap(),
        &[&fine, &coarse],
        &Tensor::from_vec(index, (1, slots.len()), device).unwrap(),
        &Tensor::from_vec(valid, (1, slots.len()), device).unwrap(),
        &DecodeBoxesParams { image_sizes: vec![(40, 50)], coding },
    )
    .unwrap()
}

#[test]
fn deltas_are_divided_by_their_weights() {
    let codes = [[10.0, 0.0, 0.0, 0.0], [0.0, 5.0, 0.0, 0.0], [0.0; 4]];
    let found = run(
        codes,
        &[(1, 1), (0, 1), (2, 1)],
        BoxCoding::Deltas { weights: [10.0, 10.0, 5.0, 5.0] },
    );
    let expected = [[10.0, 20.0, 30.0, 40.0], [10.0, 0.0, 20.0, 20.0], [0.0, 0.0, 8.0, 8.0]];
    assert_eq!(values(&found.boxes), expected.as_flattened());
}

#[test]
fn distances_are_measured_from_the_center() {
    let codes = [[0.5, 0.25, 1.0, 0.0], [0.1, 0.2, 0.3, 0.4], [0.0; 4]];
    let found = run(codes, &[(0, 1), (1, 1), (2, 1)], BoxCoding::Distances);
    let expected = [[0.0, 5.0, 15.0, 10.0], [18.0, 16.0, 26.0, 28.0], [0.0; 4]];
    for (found, expected) in values(&found.boxes).iter().zip(expected.as_flattened()) {
        assert!((found - expected).abs() < 1e-5, "{found} {expected}");
    }
    // A box without area is a box all the same.
    assert_eq!(found.valid.to_vec2::<u8>().unwrap(), [[1, 1, 1]]);
}

#[test]
fn empty_slots_and_infinite_corners_are_invalid_and_zero() {
    let codes = [[f32::NAN, 0.0, 0.0, 0.0], [f32::INFINITY, 0.0, 0.0, 0.0], [0.0; 4]];
    let found =
        run(codes, &[(0, 1), (1, 1), (2, 0), (2, 1)], BoxCoding::Deltas { weights: [1.0; 4] });
    assert_eq!(found.valid.to_vec2::<u8>().unwrap(), [[0, 0, 0, 1]]);
    assert_eq!(values(&found.boxes)[..12], [0.0; 12]);
}

#[test]
fn wrong_arguments_are_named() {
    let device = &Device::Cpu;
    let anchors = Tensor::new(&ANCHORS, device).unwrap();
    let level = Tensor::zeros((1, 2, 4), DType::F32, device).unwrap();
    let index = Tensor::zeros((1, 1), DType::U32, device).unwrap();
    let valid = Tensor::zeros((1, 1), DType::U8, device).unwrap();
    let params = DecodeBoxesParams { image_sizes: vec![(40, 50)], coding: BoxCoding::Distances };
    let message =
        decode_boxes(&anchors, &[&level], &index, &valid, &params).unwrap_err().to_string();
    assert!(message.contains("`anchors` has shape [3, 4]") && message.contains("[2]"), "{message}");
    let params = DecodeBoxesParams { image_sizes: Vec::new(), ..params };
    let level = Tensor::zeros((1, 3, 4), DType::F32, device).unwrap();
    let message =
        decode_boxes(&anchors, &[&level], &index, &valid, &params).unwrap_err().to_string();
    assert!(message.contains("N = 0 image sizes"), "{message}");
}
