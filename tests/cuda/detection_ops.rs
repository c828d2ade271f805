//! Ops on anchors, scores and boxes: what the CPU finds, the GPU finds.

use candle_core::{DType, Device, Tensor};
use candle_detection::ops::{
    AnchorGridParams, AnchorLevel, DecodeProposalsParams, Kept, NmsParams, SelectCandidatesParams,
    anchor_grid, decode_proposals, gather_slots, nms, pack_results, scale_boxes, select_candidates,
    top_k,
};

use super::counters::alone;
use super::support::{Random, assert_close, assert_equal, assert_launches, cuda, upload, values};

fn pyramid() -> AnchorGridParams {
    let level = |height, width, stride, size| AnchorLevel {
        height,
        width,
        stride_y: stride,
        stride_x: stride + 1,
        sizes: vec![size],
        aspect_ratios: vec![0.5, 1.0, 2.0],
    };
    AnchorGridParams {
        levels: vec![level(25, 42, 8, 32.0), level(13, 21, 16, 64.0), level(1, 2, 100, 512.0)],
    }
}

#[test]
fn anchors_are_made_in_one_launch_without_a_copy() {
    let _alone = alone();
    let params = pyramid();
    let anchors = assert_launches(1, || anchor_grid(&params, &cuda()).unwrap());
    assert_equal(&anchors, &anchor_grid(&params, &Device::Cpu).unwrap());
}

#[test]
fn several_sizes_a_level_and_no_anchors_at_all() {
    let _alone = alone();
    let sizes = vec![8.0, 11.3, 200.0];
    let aspect_ratios = vec![0.37, 1.9];
    let level = AnchorLevel { height: 3, width: 5, stride_y: 7, stride_x: 9, sizes, aspect_ratios };
    let empty = AnchorLevel { height: 0, aspect_ratios: vec![1.0], ..level.clone() };
    for levels in
        [vec![level.clone(), level.clone()], vec![empty.clone(), level], vec![empty], vec![]]
    {
        let params = AnchorGridParams { levels };
        let expected = anchor_grid(&params, &Device::Cpu).unwrap();
        assert_equal(&anchor_grid(&params, &cuda()).unwrap(), &expected);
    }
}

#[test]
fn a_table_too_long_for_a_launch_is_named() {
    let _alone = alone();
    let level = &pyramid().levels[0];
    let params = AnchorGridParams { levels: vec![level.clone(); 9] };
    let message = anchor_grid(&params, &cuda()).unwrap_err().to_string();
    assert!(message.contains("levels") && message.contains("at most 8"), "{message}");
}

#[track_caller]
fn assert_same_top_k(segments: &[Tensor], k: usize) {
    let on_gpu: Vec<Tensor> = segments.iter().map(upload).collect();
    let expected = top_k(&segments.iter().collect::<Vec<_>>(), k).unwrap();
    let found = top_k(&on_gpu.iter().collect::<Vec<_>>(), k).unwrap();
    assert_equal(&found.index, &expected.index);
    assert_equal(&found.values, &expected.values);
    assert_equal(&found.segment, &expected.segment);
}

/// Values on a coarse grid, so that ties abound; some NaN, infinite and negative zero.
fn coarse(random: &mut Random, images: usize, length: usize) -> Tensor {
    let values: Vec<f32> = (0..images * length)
        .map(|_| match random.below(60) {
            0 => f32::NAN,
            1 => f32::NEG_INFINITY,
            2 => f32::INFINITY,
            3 => -0.0,
            _ => random.below(40) as f32 / 8.0 - 2.0,
        })
        .collect();
    Tensor::from_vec(values, (images, length), &Device::Cpu).unwrap()
}

#[test]
fn top_k_orders_ties_and_nan_as_the_cpu_does() {
    let _alone = alone();
    let mut random = Random::new(1);
    for (lengths, k) in [
        (vec![7, 3], 5),
        (vec![1025, 64, 1], 100),
        (vec![300, 0, 257], 257),
        (vec![5000], 1500),
        (vec![4], 0),
        (vec![0], 3),
        (vec![12], 12),
    ] {
        let segments: Vec<Tensor> =
            lengths.iter().map(|length| coarse(&mut random, 2, *length)).collect();
        assert_same_top_k(&segments, k);
    }
}

#[test]
fn top_k_of_equal_values_is_the_first_ones() {
    let _alone = alone();
    let all_equal = Tensor::full(0.25f32, (1, 4097), &Device::Cpu).unwrap();
    assert_same_top_k(&[all_equal], 1000);
    let all_nan = Tensor::full(f32::NAN, (1, 300), &Device::Cpu).unwrap();
    assert_same_top_k(&[all_nan], 17);
}

#[test]
fn top_k_of_a_full_pyramid_level() {
    let _alone = alone();
    let values: Vec<f32> = (0..163_200).map(|i| ((i * 7919) % 163_200) as f32).collect();
    let level = Tensor::from_vec(values, (1, 163_200), &Device::Cpu).unwrap();
    assert_same_top_k(std::slice::from_ref(&level), 1000);
    let level = upload(&level);
    assert_launches(2, || top_k(&[&level], 1000).unwrap());
}

struct Scene {
    boxes: Tensor,
    scores: Tensor,
    groups: Tensor,
    valid: Tensor,
}

impl Scene {
    /// Whole numbers and few score levels, so that equal overlaps and equal scores are common.
    fn random(random: &mut Random, images: usize, slots: usize, n_groups: usize) -> Self {
        let device = &Device::Cpu;
        let n = images * slots;
        let boxes = random.boxes(n, 120.0, 90.0).round().unwrap();
        let scores: Vec<f32> = (0..n)
            .map(|_| if random.below(40) == 0 { f32::NAN } else { random.below(30) as f32 / 30.0 })
            .collect();
        let groups: Vec<u32> = (0..n).map(|_| random.below(n_groups) as u32).collect();
        let valid: Vec<u8> = (0..n).map(|_| (random.below(8) > 0).into()).collect();
        Self {
            boxes: boxes.reshape((images, slots, 4)).unwrap(),
            scores: Tensor::from_vec(scores, (images, slots), device).unwrap(),
            groups: Tensor::from_vec(groups, (images, slots), device).unwrap(),
            valid: Tensor::from_vec(valid, (images, slots), device).unwrap(),
        }
    }

    fn run(&self, iou_threshold: f64, capacity: usize) -> Kept {
        let params = NmsParams { iou_threshold, capacity };
        nms(&self.boxes, &self.scores, &self.groups, &self.valid, &params).unwrap()
    }

    fn on_gpu(&self) -> Self {
        Self {
            boxes: upload(&self.boxes),
            scores: upload(&self.scores),
            groups: upload(&self.groups),
            valid: upload(&self.valid),
        }
    }

    #[track_caller]
    fn assert_same(&self, iou_threshold: f64, capacity: usize) {
        let (found, expected) =
            (self.on_gpu().run(iou_threshold, capacity), self.run(iou_threshold, capacity));
        assert_equal(&found.counts, &expected.counts);
        assert_equal(&found.index, &expected.index);
    }
}

#[test]
fn nms_keeps_the_same_boxes_in_the_same_order() {
    let _alone = alone();
    let mut random = Random::new(3);
    for (images, slots, groups) in [(1, 1, 1), (2, 63, 1), (1, 64, 2), (3, 65, 3), (2, 700, 4)] {
        let scene = Scene::random(&mut random, images, slots, groups);
        for (threshold, capacity) in [(0.5, slots), (0.3, 20), (0.0, 7), (1.0, slots), (0.7, 0)] {
            scene.assert_same(threshold, capacity);
        }
    }
}

#[test]
fn nms_fills_its_capacity_exactly_and_handles_the_unusual() {
    let _alone = alone();
    let device = &Device::Cpu;
    let mut random = Random::new(5);
    let mut scene = Scene::random(&mut random, 1, 130, 2);
    let everything = scene.run(0.5, 130).counts.to_vec1::<u32>().unwrap()[0] as usize;
    for capacity in [everything - 1, everything, everything + 1] {
        scene.assert_same(0.5, capacity);
    }
    // All suppressed but one, none valid, boxes without area, corners that are not finite.
    scene.boxes = Tensor::new(&[3f32, 4.0, 50.0, 60.0], device)
        .unwrap()
        .broadcast_as((1, 130, 4))
        .unwrap()
        .contiguous()
        .unwrap();
    scene.assert_same(0.5, 130);
    scene.boxes = Tensor::full(5f32, (1, 130, 4), device).unwrap();
    scene.assert_same(0.5, 130);
    scene.boxes = Tensor::full(f32::INFINITY, (1, 130, 4), device).unwrap();
    scene.assert_same(0.5, 130);
    scene.valid = Tensor::zeros((1, 130), DType::U8, device).unwrap();
    scene.assert_same(0.5, 130);
}

#[test]
fn nms_takes_three_launches_whatever_it_finds() {
    let _alone = alone();
    let scene = Scene::random(&mut Random::new(7), 2, 300, 2).on_gpu();
    assert_launches(3, || scene.run(0.5, 100));
}

#[test]
fn decoded_proposals_are_those_of_the_cpu() {
    let _alone = alone();
    let mut random = Random::new(11);
    let device = &Device::Cpu;
    let lengths = [40, 9, 1];
    let (images, slots, total) = (2, 31, 50);
    let anchors = random.boxes(total, 100.0, 80.0);
    let mut levels: Vec<Tensor> = lengths
        .iter()
        .map(|length| (random.tensor(&[images, *length, 4]) * 3.0).unwrap())
        .collect();
    // Deltas that overflow, and NaN.
    levels[1] = Tensor::full(f32::NAN, (images, 9, 4), device).unwrap();
    levels[2] = Tensor::full(1e30f32, (images, 1, 4), device).unwrap();
    let index: Vec<u32> = (0..images * slots).map(|_| random.below(total) as u32).collect();
    let index = Tensor::from_vec(index, (images, slots), device).unwrap();
    let logits = (random.tensor(&[images, slots]) * 8.0).unwrap();
    let params = DecodeProposalsParams {
        image_sizes: vec![(80, 100), (61, 73)],
        score_threshold: 0.1,
        min_side: 1e-3,
    };
    let run = |anchors: &Tensor, levels: &[Tensor], index: &Tensor, logits: &Tensor| {
        let levels: Vec<&Tensor> = levels.iter().collect();
        decode_proposals(anchors, &levels, index, logits, &params).unwrap()
    };
    let expected = run(&anchors, &levels, &index, &logits);
    let levels: Vec<Tensor> = levels.iter().map(upload).collect();
    let (anchors, index, logits) = (upload(&anchors), upload(&index), upload(&logits));
    let found = assert_launches(1, || run(&anchors, &levels, &index, &logits));
    assert_equal(&found.valid, &expected.valid);
    assert_close(&found.scores, &expected.scores, 1e-6);
    assert_close(&found.boxes, &expected.boxes, 1e-4);
    assert!(values(&expected.valid).contains(&0.0));
}

#[test]
fn gathered_slots_are_zero_above_the_count() {
    let _alone = alone();
    let mut random = Random::new(13);
    let device = &Device::Cpu;
    let index: Vec<u32> = (0..2 * 5).map(|_| random.below(9) as u32).collect();
    let index = Tensor::from_vec(index, (2, 5), device).unwrap();
    let counts = Tensor::new(&[5u32, 2], device).unwrap();
    let whole = Tensor::arange(0u32, 18, device).unwrap().reshape((2, 9)).unwrap();
    for source in [random.tensor(&[2, 9, 4]), random.tensor(&[2, 9]), whole] {
        let expected = gather_slots(&source, &index, &counts).unwrap();
        let (source, index, counts) = (upload(&source), upload(&index), upload(&counts));
        let found = assert_launches(1, || gather_slots(&source, &index, &counts).unwrap());
        assert_equal(&found, &expected);
    }
}

#[test]
fn candidates_are_those_of_the_cpu() {
    let _alone = alone();
    let mut random = Random::new(17);
    let device = &Device::Cpu;
    for (classes, threshold) in [(91, 0.05f32), (2, 0.5), (33, 0.0), (32, 0.2), (5, 0.05)] {
        let (images, k) = (2, 7);
        let rows = images * k;
        let mut logits = values(&(random.tensor(&[rows, classes]) * 6.0).unwrap());
        // A diverged row has no candidates.
        logits[classes..2 * classes].fill(f32::NAN);
        let logits = Tensor::from_vec(logits, (rows, classes), device).unwrap();
        let deltas = (random.tensor(&[rows, 4 * classes]) * 4.0).unwrap();
        let proposals = random.boxes(rows, 90.0, 70.0).reshape((images, k, 4)).unwrap();
        let counts = Tensor::new(&[7u32, 3], device).unwrap();
        let params = SelectCandidatesParams {
            image_sizes: vec![(70, 90), (33, 44)],
            box_weights: [10.0, 10.0, 5.0, 5.0],
            score_threshold: threshold,
            min_side: 1e-2,
        };
        let run = |logits: &Tensor, deltas: &Tensor, proposals: &Tensor, counts: &Tensor| {
            select_candidates(logits, deltas, proposals, counts, &params).unwrap()
        };
        let expected = run(&logits, &deltas, &proposals, &counts);
        let (logits, deltas) = (upload(&logits), upload(&deltas));
        let (proposals, counts) = (upload(&proposals), upload(&counts));
        let found = assert_launches(1, || run(&logits, &deltas, &proposals, &counts));
        assert_equal(&found.valid, &expected.valid);
        assert_equal(&found.labels, &expected.labels);
        assert_close(&found.scores, &expected.scores, 1e-6);
        assert_close(&found.boxes, &expected.boxes, 1e-4);
    }
}

#[test]
fn boxes_are_scaled_image_by_image_beyond_one_launch() {
    let _alone = alone();
    let mut random = Random::new(19);
    let images = 70;
    let boxes = random.boxes(images * 3, 90.0, 70.0).reshape((images, 3, 4)).unwrap();
    let factors: Vec<(f32, f32)> =
        (0..images).map(|i| (0.5 + i as f32, 1.0 / (1.0 + i as f32))).collect();
    let expected = scale_boxes(&boxes, &factors).unwrap();
    let boxes = upload(&boxes);
    assert_equal(&assert_launches(3, || scale_boxes(&boxes, &factors).unwrap()), &expected);
}

#[test]
fn results_are_packed_in_one_launch_and_wrong_ones_named() {
    let _alone = alone();
    let mut random = Random::new(23);
    let device = &Device::Cpu;
    let parts = [
        Tensor::new(&[3u32, 0, 16_777_215], device).unwrap(),
        random.tensor(&[2, 3, 4]),
        Tensor::zeros((0, 4), DType::F32, device).unwrap(),
        random.tensor(&[300]),
    ];
    let expected = pack_results(&parts.iter().collect::<Vec<_>>()).unwrap();
    let parts: Vec<Tensor> = parts.iter().map(upload).collect();
    let parts: Vec<&Tensor> = parts.iter().collect();
    assert_equal(&assert_launches(1, || pack_results(&parts).unwrap()), &expected);
    let bytes = Tensor::zeros(3, DType::U8, &cuda()).unwrap();
    assert!(pack_results(&[parts[0], &bytes]).unwrap_err().to_string().contains("U8"));
}
