use candle_core::{DType, Device, Tensor};
use proptest::prelude::*;

use super::{SelectCandidatesParams, select_candidates};
use crate::ops::support::testing::{Random, values};

fn params(score_threshold: f32) -> SelectCandidatesParams {
    SelectCandidatesParams {
        image_sizes: vec![(80, 120)],
        box_weights: [10.0, 10.0, 5.0, 5.0],
        score_threshold,
        min_side: 1e-2,
    }
}

/// Candidates of one proposal without deltas, as (label, score).
fn of_logits(
    logits: &[f32],
    proposal: [f32; 4],
    params: &SelectCandidatesParams,
) -> Vec<(u32, f32)> {
    let device = &Device::Cpu;
    let classes = logits.len();
    let found = select_candidates(
        &Tensor::new(logits, device).unwrap().unsqueeze(0).unwrap(),
        &Tensor::zeros((1, 4 * classes), DType::F32, device).unwrap(),
        &Tensor::new(&[[proposal]], device).unwrap(),
        &Tensor::new(&[1u32], device).unwrap(),
        params,
    )
    .unwrap();
    let labels: Vec<u32> = found.labels.flatten_all().unwrap().to_vec1().unwrap();
    let valid: Vec<u8> = found.valid.flatten_all().unwrap().to_vec1().unwrap();
    labels
        .into_iter()
        .zip(values(&found.scores))
        .zip(valid)
        .filter_map(|(pair, valid)| (valid == 1).then_some(pair))
        .collect()
}

const PROPOSAL: [f32; 4] = [10.0, 10.0, 50.0, 40.0];

#[test]
fn the_threshold_is_strict_and_background_never_a_candidate() {
    let half = [5.0, 5.0];
    assert_eq!(of_logits(&half, PROPOSAL, &params(0.5)), []);
    assert_eq!(of_logits(&half, PROPOSAL, &params(0.5f32.next_down())), [(1, 0.5)]);
    assert_eq!(of_logits(&[9.0, 0.0, 0.0], PROPOSAL, &params(0.05)), []);
    let third = of_logits(&[1.0, 1.0, 1.0], PROPOSAL, &params(0.05));
    assert_eq!(third.iter().map(|(label, _)| *label).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn sides_at_the_limit_stay() {
    let logits = [0.0, 9.0];
    assert_eq!(of_logits(&logits, [0.0, 0.0, 0.0099, 5.0], &params(0.05)).len(), 0);
    assert_eq!(
        of_logits(
            &logits,
            [0.0, 0.0, 0.5, 0.5],
            &SelectCandidatesParams { min_side: 0.5, ..params(0.05) }
        )
        .len(),
        1
    );
    assert_eq!(of_logits(&logits, [0.0, 0.0, f32::INFINITY, 5.0], &params(0.05)).len(), 0);
    assert_eq!(of_logits(&[f32::NAN, 1.0], PROPOSAL, &params(0.05)).len(), 0);
}

#[test]
fn deltas_are_those_of_the_class() {
    let device = &Device::Cpu;
    // Class 2 moves right by 10 % of the width: dx = 1 with weight 10.
    let deltas = [[0f32; 4], [0.0; 4], [1.0, 0.0, 0.0, 0.0]].concat();
    let found = select_candidates(
        &Tensor::new(&[[0f32, 4.0, 4.0]], device).unwrap(),
        &Tensor::new(deltas, device).unwrap().unsqueeze(0).unwrap(),
        &Tensor::new(&[[PROPOSAL]], device).unwrap(),
        &Tensor::new(&[1u32], device).unwrap(),
        &params(0.3),
    )
    .unwrap();
    let boxes = values(&found.boxes);
    assert_eq!(boxes[..4], [10.0, 10.0, 50.0, 40.0]);
    assert_eq!(boxes[4..8], [14.0, 10.0, 54.0, 40.0]);
}

#[test]
fn proposals_above_the_count_are_inert() {
    let device = &Device::Cpu;
    let found = select_candidates(
        &Tensor::new(&[[0f32, 9.0], [0.0, 9.0]], device).unwrap(),
        &Tensor::zeros((2, 8), DType::F32, device).unwrap(),
        &Tensor::new(&[[PROPOSAL, PROPOSAL]], device).unwrap(),
        &Tensor::new(&[1u32], device).unwrap(),
        &params(0.05),
    )
    .unwrap();
    assert_eq!(found.valid.to_vec2::<u8>().unwrap(), [[1, 0]]);
    assert_eq!(values(&found.boxes)[4..], [0.0; 4]);
}

#[test]
fn wrong_arguments_are_named() {
    let device = &Device::Cpu;
    let message = select_candidates(
        &Tensor::zeros((2, 3), DType::F32, device).unwrap(),
        &Tensor::zeros((2, 8), DType::F32, device).unwrap(),
        &Tensor::zeros((1, 2, 4), DType::F32, device).unwrap(),
        &Tensor::zeros(1, DType::U32, device).unwrap(),
        &params(0.05),
    )
    .unwrap_err()
    .to_string();
    assert!(
        message.contains("`box_regression` has shape [2, 8], expected [N·K, 4·C] = [2, 12]"),
        "{message}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    /// The derived capacity is never too small: every class above the threshold has a slot.
    #[test]
    fn no_candidate_is_lost(seed in 1u64.., classes in 2usize..40, threshold in 0.0f32..0.6) {
        let mut random = Random::new(seed);
        let logits: Vec<f32> = (0..classes).map(|_| random.range(-2.0, 2.0)).collect();
        let sum: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
        let expected = logits.iter().skip(1).filter(|l| f64::from(**l).exp() / sum > f64::from(threshold) + 1e-6).count();
        let found = of_logits(&logits, PROPOSAL, &params(threshold));
        prop_assert!(found.len() >= expected && found.len() <= expected + 1);
    }
}
