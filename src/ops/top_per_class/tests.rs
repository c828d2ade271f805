use candle_core::{DType, Device, Tensor};
use proptest::prelude::*;

use super::{TopPerClassParams, reference, top_per_class};
use crate::ops::support::pairs::Pairs;
use crate::ops::support::testing::{Random, values};

/// (anchor, class, score) of the valid slots of one image.
fn rows(pairs: &Pairs, image: usize) -> Vec<(u32, u32, f32)> {
    let index = pairs.index.get(image).unwrap().to_vec1::<u32>().unwrap();
    let labels = pairs.labels.get(image).unwrap().to_vec1::<u32>().unwrap();
    let scores = values(&pairs.scores.get(image).unwrap());
    let valid = pairs.valid.get(image).unwrap().to_vec1::<u8>().unwrap();
    let filled = (0..index.len()).filter(|slot| valid[*slot] == 1);
    filled.map(|slot| (index[slot], labels[slot], scores[slot])).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn equals_the_naive_twin(
        seed in 1u64..,
        lengths in prop::collection::vec(0usize..30, 1..4),
        classes in 1usize..12,
        per_class in 0usize..40,
        score_threshold in -0.1f32..0.6,
    ) {
        let mut random = Random::new(seed);
        let levels: Vec<Tensor> = lengths
            .iter()
            .map(|length| {
                let values: Vec<f32> = (0..2 * length * classes)
                    .map(|_| if random.below(40) == 0 { f32::NAN } else { random.below(9) as f32 })
                    .collect();
                Tensor::from_vec(values, (2, *length, classes), &Device::Cpu).unwrap()
            })
            .collect();
        let params = TopPerClassParams { score_threshold, per_class };
        let found = top_per_class(&levels.iter().collect::<Vec<_>>(), &params).unwrap();
        for image in 0..2 {
            let logits: Vec<f32> =
                levels.iter().flat_map(|level| values(&level.get(image).unwrap())).collect();
            let expected = reference::top_per_class(&logits, classes, score_threshold, per_class);
            prop_assert_eq!(rows(&found, image), expected);
        }
    }
}

#[test]
fn each_class_has_slots_of_its_own() {
    let logits =
        Tensor::new(&[[[0f32, 9., 0.], [0., 8., 0.], [0., 0., 9.]]], &Device::Cpu).unwrap();
    let params = TopPerClassParams { score_threshold: 0.5, per_class: 5 };
    let found = top_per_class(&[&logits], &params).unwrap();
    assert_eq!(found.index.to_vec2::<u32>().unwrap(), [[0, 1, 0, 2, 0, 0]]);
    assert_eq!(found.labels.to_vec2::<u32>().unwrap(), [[1, 1, 0, 2, 0, 0]]);
    assert_eq!(found.valid.to_vec2::<u8>().unwrap(), [[1, 1, 0, 1, 0, 0]]);
}

#[test]
fn nothing_but_background() {
    let logits = Tensor::zeros((2, 5, 1), DType::F32, &Device::Cpu).unwrap();
    let params = TopPerClassParams { score_threshold: 0.0, per_class: 5 };
    assert_eq!(top_per_class(&[&logits], &params).unwrap().scores.dims(), [2, 0]);
}

#[test]
fn wrong_arguments_are_named() {
    let level = Tensor::zeros((1, 4, 3), DType::F32, &Device::Cpu).unwrap();
    let other = Tensor::zeros((1, 4, 2), DType::F32, &Device::Cpu).unwrap();
    let params = TopPerClassParams { score_threshold: 0.1, per_class: 5 };
    let message = top_per_class(&[&level, &other], &params).unwrap_err().to_string();
    assert!(message.contains("`logits` has shape [1, 4, 2]"), "{message}");
    let message = top_per_class(&[], &params).unwrap_err().to_string();
    assert!(message.contains("at least one level"), "{message}");
}
