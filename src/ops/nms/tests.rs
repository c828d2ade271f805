use candle_core::{DType, Device, Tensor};
use proptest::prelude::*;

use super::{NmsParams, nms, reference};
use crate::ops::support::testing::{Random, fixture, values};

struct Case {
    boxes: Vec<[f32; 4]>,
    scores: Vec<f32>,
    groups: Vec<u32>,
}

impl Case {
    fn run(&self, iou_threshold: f64) -> Vec<u32> {
        self.run_as(DType::F32, iou_threshold, self.boxes.len())
    }

    fn run_as(&self, dtype: DType, iou_threshold: f64, capacity: usize) -> Vec<u32> {
        let device = &Device::Cpu;
        let n = self.boxes.len();
        let tensor = |t: Tensor| t.unsqueeze(0).unwrap();
        let kept = nms(
            &tensor(Tensor::from_slice(self.boxes.as_flattened(), (n, 4), device).unwrap())
                .to_dtype(dtype)
                .unwrap(),
            &tensor(Tensor::new(self.scores.clone(), device).unwrap()).to_dtype(dtype).unwrap(),
            &tensor(Tensor::new(self.groups.clone(), device).unwrap()),
            &Tensor::ones((1, n), DType::U8, device).unwrap(),
            &NmsParams { iou_threshold, capacity },
        )
        .unwrap();
        let count = kept.counts.to_vec1::<u32>().unwrap()[0] as usize;
        let index: Vec<u32> = kept.index.flatten_all().unwrap().to_vec1().unwrap();
        assert!(index[count..].iter().all(|slot| *slot == 0), "slots above the count are zero");
        index[..count].to_vec()
    }
}

fn one_group(boxes: &[[f32; 4]], scores: &[f32]) -> Case {
    Case { boxes: boxes.to_vec(), scores: scores.to_vec(), groups: vec![0; boxes.len()] }
}

#[test]
fn half_precision_does_not_overflow_areas() {
    let case = one_group(
        &[[0.0, 0.0, 500.0, 500.0], [10.0, 10.0, 500.0, 500.0], [600.0, 600.0, 1100.0, 1100.0]],
        &[0.9, 0.8, 0.7],
    );
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        assert_eq!(case.run_as(dtype, 0.5, 3), [0, 2], "{dtype:?}");
    }
}

#[test]
fn scores_need_not_be_sorted() {
    let case = one_group(&[[7.0, 0.0, 12.0, 63.0], [7.0, 0.0, 12.0, 65.0]], &[0.0, 1.0]);
    assert_eq!(case.run(0.3), [1]);
}

#[test]
fn an_iou_at_the_threshold_does_not_suppress() {
    let case = one_group(&[[0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 10.0, 5.0]], &[0.9, 0.8]);
    assert_eq!(case.run(0.5), [0, 1]);
    assert_eq!(case.run(0.5f64.next_down()), [0]);
}

#[test]
fn empty_boxes_suppress_nothing() {
    let case = one_group(&[[5.0; 4], [5.0; 4], [0.0, 0.0, 10.0, 10.0]], &[0.9, 0.8, 0.7]);
    assert_eq!(case.run(0.5), [0, 1, 2]);
}

#[test]
fn boxes_that_are_not_finite_vanish() {
    let boxes = [[0.0, 0.0, f32::INFINITY, 10.0], [f32::NAN; 4], [0.0, 0.0, 10.0, 10.0]];
    assert_eq!(one_group(&boxes, &[0.9, 0.8, 0.7]).run(0.5), [2]);
    let boxes = [[0.0, 0.0, 10.0, 10.0], [20.0, 0.0, 30.0, 10.0]];
    assert_eq!(one_group(&boxes, &[f32::NAN, 0.1]).run(0.5), [1]);
}

#[test]
fn groups_do_not_meet() {
    let mut case = one_group(&[[0.0, 0.0, 10.0, 10.0]; 2], &[0.9, 0.8]);
    assert_eq!(case.run(0.5), [0]);
    case.groups = vec![1, 2];
    assert_eq!(case.run(0.5), [0, 1]);
}

#[test]
fn equal_scores_keep_their_order_and_capacity_cuts_the_worst() {
    let boxes: Vec<[f32; 4]> =
        (0..40).map(|i| [20.0 * i as f32, 0.0, 20.0 * i as f32 + 10.0, 10.0]).collect();
    let case = one_group(&boxes, &[0.5; 40]);
    assert_eq!(case.run_as(DType::F32, 0.5, 17), (0..17).collect::<Vec<u32>>());
    assert_eq!(case.run_as(DType::F32, 0.5, 0), [0u32; 0]);
}

#[test]
fn many_boxes_pass() {
    let mut random = Random::new(5);
    let boxes = random.boxes(30_000, 4000.0, 3000.0);
    let scores = (0..boxes.len()).map(|_| random.unit()).collect();
    let groups = vec![0; boxes.len()];
    assert!(Case { boxes, scores, groups }.run(0.5).len() > 100);
}

#[test]
fn invalid_slots_and_images_without_boxes() {
    let device = &Device::Cpu;
    let boxes = Tensor::new(&[[[0f32, 0.0, 10.0, 10.0]; 2]; 2], device).unwrap();
    let kept = nms(
        &boxes,
        &Tensor::new(&[[0.1f32, 0.2], [0.3, 0.4]], device).unwrap(),
        &Tensor::zeros((2, 2), DType::U32, device).unwrap(),
        &Tensor::new(&[[1u8, 0], [0, 0]], device).unwrap(),
        &NmsParams { iou_threshold: 0.5, capacity: 2 },
    )
    .unwrap();
    assert_eq!(kept.counts.to_vec1::<u32>().unwrap(), [1, 0]);
    assert_eq!(kept.index.to_vec2::<u32>().unwrap(), [[0, 0], [0, 0]]);
}

#[test]
fn wrong_arguments_are_named() {
    let device = &Device::Cpu;
    let scores = Tensor::zeros((1, 2), DType::F32, device).unwrap();
    let groups = Tensor::zeros((1, 2), DType::U32, device).unwrap();
    let valid = Tensor::ones((1, 2), DType::U8, device).unwrap();
    let params = NmsParams { iou_threshold: 0.5, capacity: 2 };
    let boxes = Tensor::zeros((1, 3, 4), DType::F32, device).unwrap();
    let message = nms(&boxes, &scores, &groups, &valid, &params).unwrap_err().to_string();
    assert!(message.contains("nms: `boxes` has shape [1, 3, 4]"), "{message}");
    let boxes = Tensor::zeros((1, 2, 4), DType::F64, device).unwrap();
    let message = nms(&boxes, &scores, &groups, &valid, &params).unwrap_err().to_string();
    assert!(message.contains("F64"), "{message}");
}

/// As many slots as a detector with 90 classes and 400 candidates of each has.
#[test]
fn thousands_of_candidates_in_many_groups() {
    let mut random = Random::new(3);
    let boxes = random.boxes(36_000, 300.0, 300.0);
    let scores: Vec<f32> = (0..boxes.len()).map(|_| random.unit()).collect();
    let groups: Vec<u32> = (0..boxes.len()).map(|slot| (slot / 400) as u32).collect();
    let device = &Device::Cpu;
    let params = NmsParams { iou_threshold: 0.45, capacity: 200 };
    let kept = nms(
        &Tensor::from_vec(boxes.as_flattened().to_vec(), (1, 36_000, 4), device).unwrap(),
        &Tensor::from_vec(scores.clone(), (1, 36_000), device).unwrap(),
        &Tensor::from_vec(groups.clone(), (1, 36_000), device).unwrap(),
        &Tensor::ones((1, 36_000), DType::U8, device).unwrap(),
        &params,
    )
    .unwrap();
    assert_eq!(kept.counts.to_vec1::<u32>().unwrap(), [200]);
    // What is among the best 200 depends on the best few thousand alone.
    let mut order: Vec<usize> = (0..boxes.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    order.truncate(1000);
    let best = Case {
        boxes: order.iter().map(|slot| boxes[*slot]).collect(),
        scores: order.iter().map(|slot| scores[*slot]).collect(),
        groups: order.iter().map(|slot| groups[*slot]).collect(),
    };
    let expected = reference::nms(&best.boxes, &best.scores, &best.groups, 0.45);
    let expected: Vec<u32> =
        expected.iter().take(200).map(|place| order[*place as usize] as u32).collect();
    assert_eq!(kept.index.to_vec2::<u32>().unwrap()[0], expected);
}

#[test]
fn equals_torchvision() {
    let tensors = fixture("ops.safetensors");
    for name in ["half", "rpn"] {
        let get = |what: &str| &tensors[&format!("nms/{name}/{what}")];
        let whole = |what: &str| -> Vec<u32> { get(what).to_vec1().unwrap() };
        let threshold = get("threshold").to_vec1::<f64>().unwrap()[0];
        let boxes = values(get("boxes")).as_chunks::<4>().0.to_vec();
        let mut case = one_group(&boxes, &values(get("scores")));
        assert_eq!(case.run(threshold), whole("keep"), "{name}");
        case.groups = whole("groups");
        assert_eq!(case.run(threshold), whole("keep_batched"), "{name}, by group");
    }
}

fn arbitrary_case() -> impl Strategy<Value = Case> {
    (1u64.., 1usize..90).prop_map(|(seed, n)| {
        let mut random = Random::new(seed);
        let boxes = random.boxes(n, 60.0, 40.0);
        // Whole numbers and few score levels, so that equal IoUs and equal scores are common.
        let boxes = boxes.iter().map(|b| b.map(f32::round)).collect();
        let scores = (0..n).map(|_| random.below(20) as f32 / 20.0).collect();
        let groups = (0..n).map(|_| random.below(3) as u32).collect();
        Case { boxes, scores, groups }
    })
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {:?} {:?}", self.boxes, self.scores, self.groups)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn equals_the_naive_twin(case in arbitrary_case(), threshold in 0.0f64..1.0) {
        let expected = reference::nms(&case.boxes, &case.scores, &case.groups, threshold);
        prop_assert_eq!(case.run(threshold), expected);
    }

    #[test]
    fn running_it_on_its_result_changes_nothing(case in arbitrary_case(), threshold in 0.0f64..1.0) {
        let kept = case.run(threshold);
        let pick = |i: &u32| *i as usize;
        let again = Case {
            boxes: kept.iter().map(|i| case.boxes[pick(i)]).collect(),
            scores: kept.iter().map(|i| case.scores[pick(i)]).collect(),
            groups: kept.iter().map(|i| case.groups[pick(i)]).collect(),
        };
        prop_assert_eq!(again.run(threshold), (0..kept.len() as u32).collect::<Vec<_>>());
    }
}
