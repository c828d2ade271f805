//! Keypoints, their targets and their loss: what the CPU finds, the GPU finds.

use candle_core::{DType, Device, Tensor, Var};
use candle_detection::ops::{
    IGNORED_LABEL, heatmaps_to_keypoints, keypoint_loss, keypoint_targets,
};

use super::common::{largest_difference, largest_value};
use super::counters::alone;
use super::support::{Random, assert_equal, assert_launches, cuda, quiet, upload, values};

/// Boxes of an image, some of them tiny, without sides, beyond the image or not finite.
fn boxes(random: &mut Random, images: usize, slots: usize) -> Tensor {
    let mut corners = Vec::new();
    for slot in 0..images * slots {
        let (x, y) = (random.range(-3.0, 60.0), random.range(-3.0, 40.0));
        corners.extend(match slot % 7 {
            0 => [x, y, x + 0.4, y + 0.2],
            1 => [x, y, x, y - 4.0],
            2 => [x, y, x + 300.7, y + 3.1],
            3 => [f32::NAN, y, x, y + 8.0],
            _ => [x, y, x + random.range(1.0, 50.0), y + random.range(1.0, 70.0)],
        });
    }
    Tensor::from_vec(corners, (images, slots, 4), &Device::Cpu).unwrap()
}

#[test]
fn keypoints_are_those_of_the_cpu() {
    let _alone = alone();
    let mut random = Random::new(71);
    // The second has more cells than a block keeps at hand, the third more images than a launch takes.
    for (images, slots, [height, width, points]) in
        [(2, 9, [56, 56, 3]), (1, 2, [65, 64, 2]), (33, 1, [5, 7, 1]), (2, 8, [1, 1, 2])]
    {
        let maps = random.tensor(&[images * slots, height, width, points]);
        let boxes = boxes(&mut random, images, slots);
        let counts: Vec<u32> = (0..images).map(|image| (slots - image % 2) as u32).collect();
        let counts = Tensor::new(counts, &Device::Cpu).unwrap();
        let factors: Vec<_> = (0..images).map(|i| (0.5 + i as f32, 1.25 + i as f32)).collect();
        let expected = heatmaps_to_keypoints(&maps, &boxes, &counts, &factors).unwrap();
        let [maps, boxes, counts] = [&maps, &boxes, &counts].map(upload);
        let found = assert_launches(images.div_ceil(32) as u64, || {
            heatmaps_to_keypoints(&maps, &boxes, &counts, &factors).unwrap()
        });
        assert_equal(&found, &expected);
    }
}

#[test]
fn equal_values_and_nan_have_the_same_place() {
    let _alone = alone();
    let mut random = Random::new(73);
    let mut numbers: Vec<f32> = (0..6 * 20 * 20).map(|_| random.below(3) as f32).collect();
    numbers[2400 - 400..].fill(f32::NAN);
    numbers[17] = f32::NAN;
    let maps = Tensor::from_vec(numbers, (6, 20, 20, 1), &Device::Cpu).unwrap();
    let corners = [[3f32, 4.0, 23.0, 24.0], [1.0, 1.0, 11.0, 31.0]].concat().repeat(3);
    let boxes = Tensor::from_vec(corners, (1, 6, 4), &Device::Cpu).unwrap();
    let counts = Tensor::new(&[6u32], &Device::Cpu).unwrap();
    let expected = heatmaps_to_keypoints(&maps, &boxes, &counts, &[(1.0, 1.0)]).unwrap();
    let [maps, boxes, counts] = [&maps, &boxes, &counts].map(upload);
    let found = heatmaps_to_keypoints(&maps, &boxes, &counts, &[(1.0, 1.0)]).unwrap();
    assert_equal(&found, &expected);
}

#[test]
fn there_may_be_no_heatmaps() {
    let _alone = alone();
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, &cuda()).unwrap();
    for (images, slots, points) in [(2, 0, 17), (0, 3, 17), (2, 3, 0)] {
        let maps = zeros(&[images * slots, 4, 4, points], DType::F32);
        let boxes = zeros(&[images, slots, 4], DType::F32);
        let factors = vec![(1.0, 1.0); images];
        let counts = zeros(&[images], DType::U32);
        let found = heatmaps_to_keypoints(&maps, &boxes, &counts, &factors).unwrap();
        assert_eq!(found.dims(), [images, slots, points, 3]);
    }
}

#[test]
fn targets_are_those_of_the_cpu() {
    let _alone = alone();
    let mut random = Random::new(79);
    for (images, slots, objects, points) in [(2, 40, 3, 17), (1, 1, 1, 1), (3, 9, 2, 300)] {
        let boxes = boxes(&mut random, images, slots);
        let corners = values(&boxes);
        let keypoints: Vec<f32> = (0..images * objects * points)
            .flat_map(|i| {
                // Some lie on the border of a box.
                let bbox = &corners[i % (images * slots) * 4..][..4];
                let x = if i % 5 == 0 { bbox[2] } else { random.range(0.0, 90.0) };
                let y = if i % 3 == 0 { bbox[3] } else { random.range(0.0, 90.0) };
                [x, y, random.below(3) as f32]
            })
            .collect();
        let shape = (images, objects, points, 3);
        let keypoints = Tensor::from_vec(keypoints, shape, &Device::Cpu).unwrap();
        let chosen: Vec<u32> = (0..images * slots).map(|_| random.below(objects) as u32).collect();
        let chosen = Tensor::from_vec(chosen, (images, slots), &Device::Cpu).unwrap();
        let counts: Vec<u32> = (0..images).map(|image| (slots - image) as u32).collect();
        let counts = Tensor::new(counts, &Device::Cpu).unwrap();
        let expected = keypoint_targets(&keypoints, &boxes, &chosen, &counts, 56).unwrap();
        let [keypoints, boxes, chosen, counts] = [&keypoints, &boxes, &chosen, &counts].map(upload);
        let found = assert_launches(1, || {
            keypoint_targets(&keypoints, &boxes, &chosen, &counts, 56).unwrap()
        });
        let list = |tensor: &Tensor| {
            let host = tensor.to_device(&Device::Cpu).unwrap();
            host.flatten_all().unwrap().to_vec1::<u32>().unwrap()
        };
        assert_eq!(list(&found), list(&expected));
    }
}

/// Value and gradient on a device.
fn differentiate(logits: &Tensor, targets: &Tensor, device: &Device) -> (f32, Tensor) {
    let targets = targets.to_device(device).unwrap();
    let variable = Var::from_tensor(&logits.to_device(device).unwrap()).unwrap();
    let loss = quiet(0, || keypoint_loss(&variable, &targets).unwrap());
    let gradients = loss.backward().unwrap();
    (values(&loss)[0], gradients.get(&variable).unwrap().to_device(&Device::Cpu).unwrap())
}

#[test]
fn losses_and_their_gradients_are_those_of_the_cpu() {
    let _alone = alone();
    let mut random = Random::new(83);
    for [rows, height, width, points] in [[5, 56, 56, 3], [1, 1, 1, 1], [700, 3, 5, 17]] {
        let logits = random.tensor(&[rows, height, width, points]).affine(6.0, 0.0).unwrap();
        for ignored in [1, 2, 4] {
            let targets: Vec<u32> = (0..rows * points)
                .map(|i| match i % ignored {
                    0 if ignored > 1 || rows == 1 => IGNORED_LABEL,
                    _ => random.below(height * width) as u32,
                })
                .collect();
            let targets = Tensor::from_vec(targets, (rows, points), &Device::Cpu).unwrap();
            let (expected, of_cpu) = differentiate(&logits, &targets, &Device::Cpu);
            let (found, of_gpu) = differentiate(&logits, &targets, &cuda());
            assert!((found - expected).abs() <= 1e-6 * expected, "{found} {expected}");
            let difference = largest_difference(&of_gpu, &of_cpu);
            assert!(difference <= 1e-6 * largest_value(&of_cpu), "{difference}");
        }
    }
}

#[test]
fn what_counts_shows_and_what_does_not_is_not_looked_at() {
    let _alone = alone();
    let logits = Tensor::full(f32::NAN, (2, 2, 3, 2), &Device::Cpu).unwrap();
    let run = |targets: [[u32; 2]; 2], logits: &Tensor| {
        differentiate(logits, &Tensor::new(&targets, &Device::Cpu).unwrap(), &cuda())
    };
    let (value, gradient) = run([[IGNORED_LABEL; 2]; 2], &logits);
    assert_eq!((value, largest_value(&gradient)), (0.0, 0.0));
    assert!(run([[0, IGNORED_LABEL]; 2], &logits).0.is_nan());
    // A target that is no cell.
    let zeros = logits.zeros_like().unwrap();
    assert!(run([[6, IGNORED_LABEL]; 2], &zeros).0.is_nan());
}
