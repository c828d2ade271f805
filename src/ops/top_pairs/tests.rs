use candle_core::{DType, Device, Tensor};
use proptest::prelude::*;

use super::{TopPairsParams, reference, top_pairs};
use crate::ops::support::pairs::Pairs;
use crate::ops::support::testing::{Random, values};

fn level(random: &mut Random, images: usize, anchors: usize, classes: usize) -> Tensor {
    // A coarse grid, so that equal scores are common; some values are not finite.
    let values: Vec<f32> = (0..images * anchors * classes)
        .map(|_| match random.below(50) {
            0 => f32::NAN,
            1 => f32::INFINITY,
            2 => f32::NEG_INFINITY,
            _ => random.below(60) as f32 / 8.0 - 5.0,
        })
        .collect();
    Tensor::from_vec(values, (images, anchors, classes), &Device::Cpu).unwrap()
}

/// (anchor, class, score) of the valid slots of one image.
fn rows(pairs: &Pairs, image: usize) -> Vec<(u32, u32, f32)> {
    let index = pairs.index.get(image).unwrap().to_vec1::<u32>().unwrap();
    let labels = pairs.labels.get(image).unwrap().to_vec1::<u32>().unwrap();
    let scores = values(&pairs.scores.get(image).unwrap());
    let valid = pairs.valid.get(image).unwrap().to_vec1::<u8>().unwrap();
    (0..index.len())
        .filter(|&slot| {
            let empty = (index[slot], labels[slot], scores[slot]) == (0, 0, 0.0);
            assert!(valid[slot] == 1 || empty, "slot {slot} is invalid, but not zero");
            valid[slot] == 1
        })
        .map(|slot| (index[slot], labels[slot], scores[slot]))
        .collect()
}

fn assert_equals_twin(levels: &[Tensor], quality: Option<&[Tensor]>, params: &TopPairsParams) {
    let borrowed: Vec<&Tensor> = levels.iter().collect();
    let beside: Option<Vec<&Tensor>> = quality.map(|quality| quality.iter().collect());
    let found = top_pairs(&borrowed, beside.as_deref(), params).unwrap();
    let classes = levels[0].dims()[2];
    for image in 0..levels[0].dims()[0] {
        let mut expected = Vec::new();
        let mut first = 0;
        for (place, level) in levels.iter().enumerate() {
            let quality = quality.map(|quality| values(&quality[place].get(image).unwrap()));
            let logits = values(&level.get(image).unwrap());
            let best = reference::top_pairs(
                &logits,
                quality.as_deref(),
                classes,
                params.score_threshold,
                params.per_level,
            );
            expected.extend(
                best.into_iter().map(|(anchor, class, score)| (anchor + first, class, score)),
            );
            first += level.dims()[1] as u32;
        }
        assert_eq!(rows(&found, image), expected, "image {image}, {params:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn equals_the_naive_twin(
        seed in 1u64..,
        lengths in prop::collection::vec(0usize..30, 1..4),
        classes in 1usize..40,
        per_level in 0usize..40,
        score_threshold in -0.1f32..1.0,
        with_quality: bool,
    ) {
        let mut random = Random::new(seed);
        let levels: Vec<Tensor> =
            lengths.iter().map(|length| level(&mut random, 2, *length, classes)).collect();
        let quality: Vec<Tensor> = lengths
            .iter()
            .map(|length| level(&mut random, 2, *length, 1).squeeze(2).unwrap())
            .collect();
        let params = TopPairsParams { score_threshold, per_level };
        assert_equals_twin(&levels, with_quality.then_some(&quality[..]), &params);
    }
}

/// Scores next to the threshold are decided by the score as computed, not by the bound that spares computing it.
#[test]
fn scores_at_the_threshold_are_decided_exactly() {
    for threshold in [0.05f32, 0.2, 0.5, 0.999, 1e-6] {
        let near = (f64::from(threshold) / (1.0 - f64::from(threshold))).ln() as f32;
        let mut logits = Vec::new();
        let mut logit = near - 40.0 * (near.abs() * f32::EPSILON).max(1e-7);
        for _ in 0..80 {
            logits.push(logit);
            logit = logit.next_up();
        }
        let level = Tensor::from_vec(logits, (1, 8, 10), &Device::Cpu).unwrap();
        let params = TopPairsParams { score_threshold: threshold, per_level: 100 };
        assert_equals_twin(std::slice::from_ref(&level), None, &params);
        let quality = Tensor::from_vec(
            [-30.0, -1.0, 0.0, 1.0, 5.0, 20.0, f32::NAN, f32::NEG_INFINITY].to_vec(),
            (1, 8),
            &Device::Cpu,
        );
        let level = (level + 2.0).unwrap();
        assert_equals_twin(&[level], Some(&[quality.unwrap()]), &params);
    }
}

#[test]
fn the_threshold_is_strict_and_background_is_a_class() {
    let level = Tensor::new(&[[[0f32, 1.0], [-1.0, 0.0]]], &Device::Cpu).unwrap();
    let params = TopPairsParams { score_threshold: 0.5, per_level: 4 };
    assert_eq!(rows(&top_pairs(&[&level], None, &params).unwrap(), 0).len(), 1);
    let params = TopPairsParams { score_threshold: 0.5f32.next_down(), ..params };
    let found = rows(&top_pairs(&[&level], None, &params).unwrap(), 0);
    assert_eq!(
        found.iter().map(|pair| (pair.0, pair.1)).collect::<Vec<_>>(),
        [(0, 1), (0, 0), (1, 1)]
    );
}

/// More pairs than are kept between two prunings, all of them equal.
#[test]
fn of_equal_scores_the_first_are_best() {
    let level = Tensor::zeros((1, 3000, 7), DType::F32, &Device::Cpu).unwrap();
    let params = TopPairsParams { score_threshold: 0.1, per_level: 50 };
    let found = rows(&top_pairs(&[&level], None, &params).unwrap(), 0);
    let expected: Vec<(u32, u32, f32)> = (0..50).map(|i| (i / 7, i % 7, 0.5)).collect();
    assert_eq!(found, expected);
}

#[test]
fn levels_without_anchors_images_and_classes() {
    let device = &Device::Cpu;
    let params = TopPairsParams { score_threshold: 0.1, per_level: 5 };
    for shape in [(2, 0, 3), (0, 4, 3), (2, 4, 0)] {
        let level = Tensor::zeros(shape, DType::F32, device).unwrap();
        let found = top_pairs(&[&level, &level], None, &params).unwrap();
        assert_eq!(found.index.dims()[0], shape.0);
        assert_eq!(
            found.valid.elem_count(),
            if shape.0 == 0 { 0 } else { found.valid.dims()[1] * 2 }
        );
    }
}

#[test]
fn wrong_arguments_are_named() {
    let device = &Device::Cpu;
    let level = Tensor::zeros((1, 4, 3), DType::F32, device).unwrap();
    let other = Tensor::zeros((1, 4, 2), DType::F32, device).unwrap();
    let params = TopPairsParams { score_threshold: 0.1, per_level: 5 };
    let message = top_pairs(&[&level, &other], None, &params).unwrap_err().to_string();
    assert!(message.contains("`logits` has shape [1, 4, 2]"), "{message}");
    let message = top_pairs(&[&level], Some(&[&other]), &params).unwrap_err().to_string();
    assert!(message.contains("`quality` has shape [1, 4, 2]"), "{message}");
    let message = top_pairs(&[&level], Some(&[]), &params).unwrap_err().to_string();
    assert!(message.contains("quality"), "{message}");
    let message = top_pairs(&[], None, &params).unwrap_err().to_string();
    assert!(message.contains("at least one level"), "{message}");
}
