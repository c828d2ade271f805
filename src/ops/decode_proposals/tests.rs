use candle_core::{DType, Device, Tensor};

use super::{DecodeProposalsParams, decode_proposals};
use crate::ops::support::testing::values;

fn params(min_side: f32, score_threshold: f32) -> DecodeProposalsParams {
    DecodeProposalsParams { image_sizes: vec![(60, 100)], score_threshold, min_side }
}

fn decode_one(
    anchor: [f32; 4],
    deltas: [f32; 4],
    logit: f32,
    params: &DecodeProposalsParams,
) -> (Vec<f32>, f32, u8) {
    let device = &Device::Cpu;
    let decoded = decode_proposals(
        &Tensor::new(&[anchor], device).unwrap(),
        &[&Tensor::new(&[[deltas]], device).unwrap()],
        &Tensor::zeros((1, 1), DType::U32, device).unwrap(),
        &Tensor::new(&[[logit]], device).unwrap(),
        params,
    )
    .unwrap();
    let valid: Vec<u8> = decoded.valid.flatten_all().unwrap().to_vec1().unwrap();
    (values(&decoded.boxes), values(&decoded.scores)[0], valid[0])
}

#[test]
fn boxes_are_clipped_to_the_resized_image() {
    let (found, score, valid) =
        decode_one([-10.0, 50.0, 120.0, 80.0], [0.0; 4], 0.0, &params(1e-3, 0.0));
    assert_eq!((found, score, valid), (vec![0.0, 50.0, 100.0, 60.0], 0.5, 1));
}

#[test]
fn short_sides_low_scores_and_nan_are_invalid() {
    let anchor = [1.0, 1.0, 1.5, 9.0];
    assert_eq!(decode_one(anchor, [0.0; 4], 0.0, &params(0.5, 0.5)).2, 1);
    assert_eq!(decode_one(anchor, [0.0; 4], 0.0, &params(0.51, 0.0)).2, 0);
    assert_eq!(decode_one(anchor, [0.0; 4], -0.1, &params(0.1, 0.5)).2, 0);
    assert_eq!(decode_one(anchor, [f32::NAN, 0.0, 0.0, 0.0], 0.0, &params(0.1, 0.0)).2, 0);
    assert_eq!(decode_one(anchor, [0.0, f32::INFINITY, 0.0, 0.0], 0.0, &params(0.0, 0.0)).2, 0);
    assert_eq!(decode_one(anchor, [0.0; 4], f32::NAN, &params(0.1, 0.0)).2, 0);
}

/// Each slot must take the deltas of its own anchor, from the right level and the right image.
#[test]
fn slots_find_their_anchor_in_its_level() {
    let device = &Device::Cpu;
    let anchors: Vec<[f32; 4]> = (0..5).map(|_| [20.0, 20.0, 30.0, 30.0]).collect();
    let shift =
        |values: &[f32]| values.iter().flat_map(|dx| [*dx, 0.0, 0.0, 0.0]).collect::<Vec<_>>();
    let fine = Tensor::from_vec(shift(&[0.0, 0.1, 0.2, 0.5, 0.6, 0.7]), (2, 3, 4), device).unwrap();
    let coarse = Tensor::from_vec(shift(&[0.3, 0.4, 0.8, 0.9]), (2, 2, 4), device).unwrap();
    let index = Tensor::new(&[[2u32, 3], [4, 0]], device).unwrap();
    let decoded = decode_proposals(
        &Tensor::from_slice(anchors.as_flattened(), (5, 4), device).unwrap(),
        &[&fine, &coarse],
        &index,
        &Tensor::zeros((2, 2), DType::F32, device).unwrap(),
        &DecodeProposalsParams {
            image_sizes: vec![(60, 100); 2],
            score_threshold: 0.0,
            min_side: 1e-3,
        },
    )
    .unwrap();
    let lefts: Vec<f32> = values(&decoded.boxes).chunks(4).map(|b| (b[0] - 20.0) / 10.0).collect();
    for (found, expected) in lefts.iter().zip([0.2, 0.3, 0.9, 0.5]) {
        assert!((found - expected).abs() < 1e-5, "{lefts:?}");
    }
}

#[test]
fn levels_that_do_not_add_up_are_named() {
    let device = &Device::Cpu;
    let message = decode_proposals(
        &Tensor::zeros((7, 4), DType::F32, device).unwrap(),
        &[&Tensor::zeros((1, 5, 4), DType::F32, device).unwrap()],
        &Tensor::zeros((1, 2), DType::U32, device).unwrap(),
        &Tensor::zeros((1, 2), DType::F32, device).unwrap(),
        &params(0.0, 0.0),
    )
    .unwrap_err()
    .to_string();
    assert!(message.contains("`anchors` has shape [7, 4]") && message.contains("[5]"), "{message}");
}
