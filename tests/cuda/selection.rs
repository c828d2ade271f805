//! Selection of one-stage detectors: what the CPU finds, the GPU finds.

use candle_core::{DType, Device, Tensor};
use candle_detection::ops::{
    BoxCoding, DecodeBoxesParams, DefaultBoxLevel, DefaultBoxesParams, NmsParams, Pairs,
    TopPairsParams, TopPerClassParams, decode_boxes, default_boxes, nms, top_pairs, top_per_class,
};

use super::counters::alone;
use super::support::{Random, assert_close, assert_equal, assert_launches, cuda, upload};

/// Logits on a coarse grid, so that ties abound; some NaN and infinite.
fn level(random: &mut Random, shape: &[usize]) -> Tensor {
    let values: Vec<f32> = (0..shape.iter().product())
        .map(|_| match random.below(60) {
            0 => f32::NAN,
            1 => f32::NEG_INFINITY,
            2 => f32::INFINITY,
            _ => random.below(80) as f32 / 8.0 - 6.0,
        })
        .collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// Of scores: exponentials differ in their last bits from device to device.
const SCORES: f32 = 1e-6;

#[track_caller]
fn assert_same_pairs(found: &Pairs, expected: &Pairs) {
    assert_equal(&found.valid, &expected.valid);
    assert_close(&found.scores, &expected.scores, SCORES);
    assert_equal(&found.index, &expected.index);
    assert_equal(&found.labels, &expected.labels);
}

#[track_caller]
fn assert_same_top_pairs(levels: &[Tensor], quality: Option<&[Tensor]>, params: &TopPairsParams) {
    let run = |levels: &[Tensor], quality: Option<&[Tensor]>| {
        let levels: Vec<&Tensor> = levels.iter().collect();
        let quality: Option<Vec<&Tensor>> = quality.map(|quality| quality.iter().collect());
        top_pairs(&levels, quality.as_deref(), params).unwrap()
    };
    let on_gpu: Vec<Tensor> = levels.iter().map(upload).collect();
    let beside: Option<Vec<Tensor>> = quality.map(|quality| quality.iter().map(upload).collect());
    assert_same_pairs(&run(&on_gpu, beside.as_deref()), &run(levels, quality));
}

#[test]
fn pairs_are_those_of_the_cpu() {
    let _alone = alone();
    let mut random = Random::new(5);
    for (lengths, classes, per_level, score_threshold) in [
        (vec![40, 10], 7, 30, 0.05),
        (vec![400, 0, 3], 11, 1000, 0.3),
        (vec![1500], 5, 100, 0.01),
        (vec![30, 20], 3, 0, 0.1),
        (vec![0], 3, 4, 0.1),
        (vec![64], 9, 50, -1.0),
        (vec![64], 9, 50, 0.9999),
    ] {
        let levels: Vec<Tensor> =
            lengths.iter().map(|length| level(&mut random, &[2, *length, classes])).collect();
        let quality: Vec<Tensor> =
            lengths.iter().map(|length| level(&mut random, &[2, *length])).collect();
        let params = TopPairsParams { score_threshold, per_level };
        assert_same_top_pairs(&levels, None, &params);
        assert_same_top_pairs(&levels, Some(&quality), &params);
    }
}

#[test]
fn of_equal_scores_the_first_pairs_are_best() {
    let _alone = alone();
    let level = Tensor::zeros((2, 900, 10), DType::F32, &Device::Cpu).unwrap();
    let params = TopPairsParams { score_threshold: 0.2, per_level: 137 };
    assert_same_top_pairs(&[level], None, &params);
}

#[test]
fn pairs_of_a_large_level_take_no_copy() {
    let _alone = alone();
    // All different, and by more than the last bits of their scores.
    let values: Vec<f32> = (0..200_000).map(|i| (i * 7919 % 200_000) as f32 * 6e-5 - 9.0).collect();
    let level = Tensor::from_vec(values, (1, 4000, 50), &Device::Cpu).unwrap();
    let params = TopPairsParams { score_threshold: 0.05, per_level: 1000 };
    assert_same_top_pairs(std::slice::from_ref(&level), None, &params);
    let level = upload(&level);
    assert_launches(15, || top_pairs(&[&level], None, &params).unwrap());
}

#[test]
fn anchors_per_class_are_those_of_the_cpu() {
    let _alone = alone();
    let mut random = Random::new(7);
    for (lengths, classes, per_class, score_threshold) in [
        (vec![40, 10], 7, 30, 0.05),
        (vec![700, 0, 3], 35, 20, 0.01),
        (vec![30], 3, 100, 0.2),
        (vec![30], 1, 4, 0.1),
        (vec![0], 4, 4, 0.1),
    ] {
        // Whole numbers make sums of exponentials whose order does not matter rare, so the scores are few and far apart.
        let levels: Vec<Tensor> = lengths
            .iter()
            .map(|length| {
                let values: Vec<f32> = (0..2 * length * classes)
                    .map(|_| if random.below(90) == 0 { f32::NAN } else { random.range(-2.0, 5.0) })
                    .collect();
                Tensor::from_vec(values, (2, *length, classes), &Device::Cpu).unwrap()
            })
            .collect();
        let params = TopPerClassParams { score_threshold, per_class };
        let run =
            |levels: &[Tensor]| top_per_class(&levels.iter().collect::<Vec<_>>(), &params).unwrap();
        let on_gpu: Vec<Tensor> = levels.iter().map(upload).collect();
        let found = run(&on_gpu);
        let expected = run(&levels);
        assert_equal(&found.index, &expected.index);
        assert_equal(&found.labels, &expected.labels);
        assert_equal(&found.valid, &expected.valid);
        assert_close(&found.scores, &expected.scores, SCORES);
    }
    let level = upload(&level(&mut random, &[1, 100, 9]));
    let params = TopPerClassParams { score_threshold: 0.1, per_class: 20 };
    assert_launches(3, || top_per_class(&[&level], &params).unwrap());
}

#[test]
fn boxes_are_those_of_the_cpu() {
    let _alone = alone();
    let mut random = Random::new(8);
    let lengths = [60, 25];
    let anchors = random.boxes(85, 90.0, 70.0);
    let regression: Vec<Tensor> = lengths
        .iter()
        .map(|length| {
            let values: Vec<f32> = (0..34 * length * 4)
                .map(|_| if random.below(70) == 0 { f32::NAN } else { random.range(-1.0, 2.0) })
                .collect();
            Tensor::from_vec(values, (34, *length, 4), &Device::Cpu).unwrap()
        })
        .collect();
    let index: Vec<u32> = (0..34 * 40).map(|_| random.below(85) as u32).collect();
    let index = Tensor::from_vec(index, (34, 40), &Device::Cpu).unwrap();
    let valid: Vec<u8> = (0..34 * 40).map(|_| (random.below(5) > 0).into()).collect();
    let valid = Tensor::from_vec(valid, (34, 40), &Device::Cpu).unwrap();
    for coding in [BoxCoding::Deltas { weights: [10.0, 10.0, 5.0, 5.0] }, BoxCoding::Distances] {
        let params = DecodeBoxesParams { image_sizes: vec![(60, 80); 34], coding };
        let run = |to: &dyn Fn(&Tensor) -> Tensor| {
            let regression: Vec<Tensor> = regression.iter().map(to).collect();
            let levels: Vec<&Tensor> = regression.iter().collect();
            decode_boxes(&to(&anchors), &levels, &to(&index), &to(&valid), &params).unwrap()
        };
        let (found, expected) = (run(&|tensor| upload(tensor)), run(&Tensor::clone));
        assert_equal(&found.valid, &expected.valid);
        assert_close(&found.boxes, &expected.boxes, 1e-4);
    }
}

#[test]
fn default_boxes_are_made_in_one_launch_without_a_copy() {
    let _alone = alone();
    let level = |height: usize, width: usize, sides: &[[f32; 2]]| DefaultBoxLevel {
        height,
        width,
        cells_y: height as f32 * 1.03,
        cells_x: width as f32,
        sides: sides.to_vec(),
    };
    let levels = vec![
        level(11, 17, &[[0.1, 0.1], [0.07, 0.3], [0.3, 0.07]]),
        level(0, 5, &[[0.1, 0.1]]),
        level(3, 4, &[[0.9, 1.0]]),
    ];
    let params = DefaultBoxesParams { levels, image_size: (301, 257) };
    let found = assert_launches(1, || default_boxes(&params, &cuda()).unwrap());
    assert_equal(&found, &default_boxes(&params, &Device::Cpu).unwrap());
    let empty = DefaultBoxesParams { levels: Vec::new(), ..params };
    assert_eq!(default_boxes(&empty, &cuda()).unwrap().dims(), [0, 4]);
}

/// As many slots as a detector with 90 classes and 400 candidates of each has, a part of them filled.
#[test]
fn suppression_of_many_candidates() {
    let _alone = alone();
    let mut random = Random::new(9);
    let slots = 36_000;
    let boxes = random.boxes(slots, 300.0, 300.0).reshape((1, slots, 4)).unwrap();
    let scores: Vec<f32> = (0..slots).map(|_| random.unit()).collect();
    let scores = Tensor::from_vec(scores, (1, slots), &Device::Cpu).unwrap();
    let groups: Vec<u32> = (0..slots).map(|slot| (slot / 400) as u32).collect();
    let groups = Tensor::from_vec(groups, (1, slots), &Device::Cpu).unwrap();
    let valid: Vec<u8> = (0..slots).map(|_| (random.below(20) == 0).into()).collect();
    let valid = Tensor::from_vec(valid, (1, slots), &Device::Cpu).unwrap();
    let params = NmsParams { iou_threshold: 0.45, capacity: 200 };
    let expected = nms(&boxes, &scores, &groups, &valid, &params).unwrap();
    let found =
        nms(&upload(&boxes), &upload(&scores), &upload(&groups), &upload(&valid), &params).unwrap();
    assert_equal(&found.index, &expected.index);
    assert_equal(&found.counts, &expected.counts);
}
