//! Ops on the features and masks of boxes: every one on the CPU against CUDA, in all compute dtypes.

use candle_core::{DType, Device, Tensor};
use candle_detection::ops::{
    PasteMasksParams, RoiAlignParams, class_masks, paste_masks, roi_align,
};

use super::counters::alone;
use super::support::{
    DTYPES, Random, assert_agrees, assert_close, assert_equal, cuda, misaligned, quiet, rounded,
    tolerance, upload, values,
};

/// Boxes of all sizes in and around an image of 100×130 pixels, and those that have no features.
fn rois(random: &mut Random, n: usize) -> Tensor {
    let hard: [[f32; 4]; 10] = [
        [10.0, 10.0, 10.0, 10.0],
        [-40.0, -30.0, 20.0, 15.0],
        [90.0, 120.0, 300.0, 400.0],
        [500.0, 500.0, 600.0, 640.0],
        [30.0, 40.0, 20.0, 60.0],
        [60.0, 50.0, 20.0, 10.0],
        [f32::NAN, 0.0, 5.0, 5.0],
        [0.0, 0.0, f32::INFINITY, 5.0],
        [0.0, 0.0, 3e38, 3e38],
        [0.0, 0.0, 130.0, 100.0],
    ];
    let ordinary: Vec<f32> = values(&random.boxes(n - hard.len(), 130.0, 100.0));
    let all = [hard.as_flattened(), &ordinary].concat();
    Tensor::from_vec(all, (n, 4), &Device::Cpu).unwrap()
}

#[test]
fn pooled_regions_agree() {
    let _alone = alone();
    let mut random = Random::new(23);
    let boxes = Tensor::stack(&[rois(&mut random, 16), rois(&mut random, 16)], 0).unwrap();
    let boxes_on_gpu = upload(&boxes);
    let params = |output, sampling| RoiAlignParams {
        canonical_size: 40.0,
        ..RoiAlignParams::new(output, sampling, vec![0.25, 0.125, 0.0625])
    };
    for (channels, params) in [(8, params(7, 2)), (3, params(2, 3)), (4, params(1, 1))] {
        for dtype in DTYPES {
            let level = |height, width| [2, height, width, channels];
            let maps: Vec<(Tensor, Tensor)> = [level(26, 34), level(13, 17), level(7, 9)]
                .iter()
                .map(|dims| rounded(&random.tensor(dims), dtype))
                .collect();
            let on_cpu: Vec<&Tensor> = maps.iter().map(|(cpu, _)| cpu).collect();
            let on_gpu: Vec<&Tensor> = maps.iter().map(|(_, gpu)| gpu).collect();
            for counts in [[16u32, 11], [0, 16], [0, 0]] {
                let counts = Tensor::new(&counts, &Device::Cpu).unwrap();
                let expected = roi_align(&on_cpu, &boxes, &counts, &params).unwrap();
                let counts = upload(&counts);
                let found =
                    quiet(0, || roi_align(&on_gpu, &boxes_on_gpu, &counts, &params).unwrap());
                assert_eq!(found.dtype(), dtype);
                assert_agrees(&found, &expected, tolerance(dtype));
            }
        }
    }
}

/// Every level is filled with its number, so that results tell which one served a box: those one, two and three floats
/// around the sides at which the level changes.
#[test]
fn boxes_keep_their_level() {
    let _alone = alone();
    let scales = vec![0.25, 0.125, 0.0625, 0.03125];
    let maps: Vec<Tensor> = (1..=4)
        .map(|level| Tensor::full(level as f32, (1, 8, 8, 4), &Device::Cpu).unwrap())
        .collect();
    let on_gpu: Vec<Tensor> = maps.iter().map(upload).collect();
    let mut boxes = Vec::new();
    for side in [56f32, 111.9999, 112.0, 223.9997, 224.0, 447.9995, 448.0, 896.0, 1e-30, 0.0] {
        for step in -3i32..=3 {
            let side = f32::from_bits(side.to_bits().saturating_add_signed(step));
            boxes.push([0.0, 0.0, side, side]);
        }
    }
    let n = boxes.len();
    let boxes = Tensor::from_slice(boxes.as_flattened(), (1, n, 4), &Device::Cpu).unwrap();
    let counts = Tensor::new(&[n as u32], &Device::Cpu).unwrap();
    let params = RoiAlignParams::new(1, 1, scales);
    let on_cpu: Vec<&Tensor> = maps.iter().collect();
    let expected = roi_align(&on_cpu, &boxes, &counts, &params).unwrap();
    let on_gpu: Vec<&Tensor> = on_gpu.iter().collect();
    let found = roi_align(&on_gpu, &upload(&boxes), &upload(&counts), &params).unwrap();
    assert_equal(&found, &expected);
    let served: Vec<f32> = values(&expected);
    assert!((1..=3).all(|level| served.contains(&(level as f32))), "{served:?}");
}

#[test]
fn more_levels_than_a_launch_takes_are_named() {
    let _alone = alone();
    let map = Tensor::zeros((1, 2, 2, 4), DType::F32, &cuda()).unwrap();
    let boxes = Tensor::zeros((1, 1, 4), DType::F32, &cuda()).unwrap();
    let counts = Tensor::zeros(1, DType::U32, &cuda()).unwrap();
    let params = RoiAlignParams::new(1, 1, vec![1.0; 9]);
    let message = roi_align(&[&map; 9], &boxes, &counts, &params).unwrap_err().to_string();
    assert!(message.contains("levels") && message.contains("at most 8"), "{message}");
}

#[test]
fn masks_of_the_own_class_agree() {
    let _alone = alone();
    let mut random = Random::new(29);
    for (dims, classes) in
        [([6, 3, 5, 32], 7), ([5, 4, 4, 256], 91), ([3, 1, 1, 5], 2), ([0, 4, 4, 8], 3)]
    {
        let weight = random.tensor(&[classes, dims[3]]);
        let bias = random.tensor(&[classes]);
        let labels: Vec<u32> = (0..dims[0])
            .map(|i| [0, 1, classes as u32 - 1, classes as u32, u32::MAX][i % 5])
            .collect();
        let labels = Tensor::from_vec(labels, dims[0], &Device::Cpu).unwrap();
        let (weight_gpu, bias_gpu, labels_gpu) = (upload(&weight), upload(&bias), upload(&labels));
        for dtype in DTYPES {
            let (on_cpu, on_gpu) = rounded(&random.tensor(&dims), dtype);
            let expected = class_masks(&on_cpu, &weight, &bias, &labels).unwrap();
            let found =
                quiet(0, || class_masks(&on_gpu, &weight_gpu, &bias_gpu, &labels_gpu).unwrap());
            assert_close(&found, &expected, 2e-6);
            let found = class_masks(&misaligned(&on_gpu), &weight_gpu, &bias_gpu, &labels_gpu);
            assert_close(&found.unwrap(), &expected, 2e-6);
        }
    }
}

#[test]
fn pasted_masks_are_the_same() {
    let _alone = alone();
    let mut random = Random::new(31);
    let mut boxes = values(&rois(&mut random, 24));
    boxes.extend([-1e30, -1e30, 1e30, 1e30, -1e19, 5.0, 3.0, 9e18]);
    let n = boxes.len() / 4;
    let boxes = Tensor::from_vec(boxes, (n, 4), &Device::Cpu).unwrap();
    let boxes_on_gpu = upload(&boxes);
    for (side, height, width, threshold) in
        [(28, 60, 70, 0.5), (1, 31, 47, 0.0), (5, 1, 3, -1.0), (2, 0, 9, 0.5)]
    {
        let probabilities = random.tensor(&[n, side, side]).abs().unwrap();
        let on_gpu = upload(&probabilities);
        let params = PasteMasksParams { height, width, threshold };
        let expected = paste_masks(&probabilities, &boxes, &params).unwrap();
        let found = quiet(0, || paste_masks(&on_gpu, &boxes_on_gpu, &params).unwrap());
        assert_equal(&found, &expected);
    }
}
