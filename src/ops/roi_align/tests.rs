use candle_core::{DType, Device, Tensor};

use super::{RoiAlignParams, infer_spatial_scales, reference, roi_align};
use crate::error::Error;
use crate::ops::support::testing::{
    BOX_TOLERANCE, PRODUCT_TOLERANCE, Random, assert_close, assert_close_relative,
    assert_gradients, exact, fixture, rounded, values,
};

/// A map of one channel with the values 1, 2, 3 … row by row.
fn counting_map(side: usize) -> Tensor {
    let cells = (side * side) as f32;
    Tensor::arange(1f32, cells + 1.0, &Device::Cpu).unwrap().reshape((1, side, side, 1)).unwrap()
}

fn boxes_tensor(boxes: &[[f32; 4]], shape: (usize, usize, usize)) -> Tensor {
    Tensor::from_slice(boxes.as_flattened(), shape, &Device::Cpu).unwrap()
}

fn one_image(boxes: &[[f32; 4]]) -> (Tensor, Tensor) {
    let counts = Tensor::new(&[boxes.len() as u32], &Device::Cpu).unwrap();
    (boxes_tensor(boxes, (1, boxes.len(), 4)), counts)
}

/// Pools 2×2 cells of one box from a map at scale 1.
fn pool_one(map: &Tensor, corners: [f32; 4], sampling: usize) -> Vec<f32> {
    let (boxes, counts) = one_image(&[corners]);
    let params = RoiAlignParams::new(2, sampling, vec![1.0]);
    values(&roi_align(&[map], &boxes, &counts, &params).unwrap())
}

#[track_caller]
fn assert_near(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() < 1e-5, "found {found:?}, expected {expected:?}");
    }
}

/// The arguments as plain numbers, for the naive twin.
fn run_reference(
    levels: &[Tensor],
    boxes: &Tensor,
    counts: &Tensor,
    params: &RoiAlignParams,
) -> Tensor {
    let maps: Vec<Vec<f32>> = levels.iter().map(values).collect();
    let twins: Vec<reference::Level<'_>> = maps
        .iter()
        .zip(levels)
        .map(|(values, level)| reference::Level { values, dims: level.dims().try_into().unwrap() })
        .collect();
    let corners: Vec<f32> = values(boxes);
    let (n, k, _) = boxes.dims3().unwrap();
    let counts = counts.to_vec1::<u32>().unwrap();
    let pooled = reference::run(&twins, corners.as_chunks().0, k, &counts, params);
    let shape = (n * k, params.output, params.output, levels[0].dim(3).unwrap());
    Tensor::from_vec(pooled, shape, &Device::Cpu).unwrap()
}

fn pyramid(
    random: &mut Random,
    n: usize,
    (height, width): (usize, usize),
    c: usize,
) -> Vec<Tensor> {
    (0..4).map(|l| random.tensor(&[n, height >> l, width >> l, c])).collect()
}

const SCALES: [f32; 4] = [0.25, 0.125, 0.0625, 0.03125];

#[test]
fn agrees_with_the_definition() {
    let mut random = Random::new(1);
    // 37 channels: one block and a rest. Images of 96×160 pixels, boxes up to 600.
    let levels = pyramid(&mut random, 2, (24, 40), 37);
    let mut boxes = random.boxes(20, 160.0, 96.0);
    boxes.extend(random.boxes(10, 600.0, 500.0));
    boxes.extend([
        [0.0; 4],
        [50.0, 40.0, 50.0, 60.0],
        [-40.0, -30.0, 20.0, 10.0],
        [150.0, 90.0, 300.0, 200.0],
        [-900.0, -900.0, -800.0, -850.0],
        [30.0, 20.0, 10.0, 5.0],
        [30.0, 20.0, 10.0, 50.0],
        [f32::NAN, 0.0, 10.0, 10.0],
        [0.0, 0.0, f32::INFINITY, 10.0],
        [-3e38, -3e38, 3e38, 3e38],
    ]);
    let boxes = boxes_tensor(&boxes, (2, 20, 4));
    let refs: Vec<&Tensor> = levels.iter().collect();
    for (output, sampling, counts) in
        [(7, 2, [20u32, 20]), (14, 2, [3, 17]), (3, 3, [20, 0]), (1, 1, [0, 0])]
    {
        let counts = Tensor::new(&counts, &Device::Cpu).unwrap();
        let params = RoiAlignParams::new(output, sampling, SCALES.to_vec());
        let found = roi_align(&refs, &boxes, &counts, &params).unwrap();
        let expected = run_reference(&levels, &boxes, &counts, &params);
        // Sample positions are computed in f32, and features change by up to 2 per cell.
        assert_close(&found, &expected, 2.0 * BOX_TOLERANCE);
    }
}

#[test]
fn agrees_with_torchvision() {
    let file = fixture("ops.safetensors");
    let get = |name: &str| file[&format!("roi_align/multi_scale/{name}")].clone();
    let levels: Vec<Tensor> = (0..4)
        .map(|l| get(&format!("features.{l}")).permute((0, 2, 3, 1)).unwrap().contiguous().unwrap())
        .collect();
    let heights: Vec<usize> = levels.iter().map(|level| level.dim(1).unwrap()).collect();
    let sizes = get("image_sizes").to_vec2::<u32>().unwrap();
    let scales = infer_spatial_scales(&heights, sizes.iter().map(|s| s[0]).max().unwrap() as usize);
    assert_eq!(scales, values(&get("scales")));
    let refs: Vec<&Tensor> = levels.iter().collect();
    for output in [7, 14] {
        let params = RoiAlignParams::new(output, 2, scales.clone());
        let found = roi_align(&refs, &get("boxes"), &get("counts"), &params).unwrap();
        let expected = get(&format!("pooled_{output}")).permute((0, 2, 3, 1)).unwrap();
        assert_close_relative(&found, &expected, PRODUCT_TOLERANCE);
        let params = RoiAlignParams { canonical_size: 225.0, ..params };
        let other = roi_align(&refs, &get("boxes"), &get("counts"), &params).unwrap();
        assert!(values(&other) != values(&found), "the boxes do not reach the edges of levels");
    }
    let boxes = values(&get("boxes"));
    let params = RoiAlignParams::new(7, 2, scales);
    let levels = get("levels").to_vec2::<u32>().unwrap();
    for (image, count) in get("counts").to_vec1::<u32>().unwrap().into_iter().enumerate() {
        for slot in 0..count as usize {
            let b = &boxes[(image * levels[0].len() + slot) * 4..][..4];
            let found = params.level_index((b[2] - b[0]) * (b[3] - b[1]));
            assert_eq!(found, Some(levels[image][slot] as usize), "level of {b:?}");
        }
    }
}

#[test]
fn levels_change_at_the_published_sizes() {
    let params = RoiAlignParams::new(7, 2, SCALES.to_vec());
    let cases = [
        (0.0, 2),
        (1e-6, 2),
        (111.99, 2),
        (112.0, 3),
        (223.999, 3),
        (224.0, 4),
        (447.9, 4),
        (448.0, 5),
        (1e6, 5),
    ];
    for (side, level) in cases {
        assert_eq!(params.level_index(side * side), Some(level - 2), "side {side}");
    }
    assert_eq!(params.level_index(224.0 * 223.9999), Some(2));
    assert_eq!(params.level_index(f32::INFINITY), Some(3));
    assert_eq!(params.level_index(f32::NAN), None);
    assert_eq!(params.level_index(-1.0), None);
    // One level takes all boxes, whatever its scale.
    let single = RoiAlignParams::new(7, 2, vec![1.0]);
    assert_eq!(single.level_index(1e6), Some(0));
}

#[test]
fn scales_are_powers_of_two_of_heights() {
    assert_eq!(infer_spatial_scales(&[200, 100, 50, 25], 800), SCALES);
    // 1060 rows are padded to 1088.
    assert_eq!(infer_spatial_scales(&[272, 136, 68, 34], 1060), SCALES);
    // 33 rows are padded to 64: the quotient is nearer to a half.
    assert_eq!(infer_spatial_scales(&[16, 8, 4, 2], 33), [0.5, 0.25, 0.125, 0.0625]);
}

#[test]
fn corners_are_not_shifted_by_half_a_pixel() {
    assert_eq!(pool_one(&counting_map(3), [0.0, 0.0, 2.0, 2.0], 1), [3.0, 4.0, 6.0, 7.0]);
}

#[test]
fn a_box_without_area_has_a_side_of_one_cell() {
    assert_near(&pool_one(&counting_map(5), [0.0; 4], 2), &[2.5, 3.0, 5.0, 5.5]);
}

#[test]
fn samples_outside_are_zero() {
    let map = (counting_map(5) - 1.0).unwrap();
    assert_near(&pool_one(&map, [4.0, 4.0, 8.0, 8.0], 2), &[6.0, 0.0, 0.0, 0.0]);
    assert_near(&pool_one(&map, [10.0, 10.0, 12.0, 12.0], 2), &[0.0; 4]);
    assert_near(&pool_one(&map, [-2.0, -2.0, 1.0, 1.0], 2), &[0.0, 0.15625, 0.78125, 1.875]);
}

#[test]
fn infinite_and_nan_boxes_pool_zeros() {
    let map = counting_map(5);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for i in 0..4 {
            let mut corners = [0.0, 0.0, 3.0, 3.0];
            corners[i] = bad;
            assert_eq!(pool_one(&map, corners, 2), [0.0; 4], "{corners:?}");
        }
    }
    assert_eq!(pool_one(&map, [f32::MAX, f32::MAX, f32::MAX, f32::MAX], 2), [0.0; 4]);
    assert_eq!(pool_one(&map, [f32::MIN, f32::MIN, f32::MAX, f32::MAX], 2), [0.0; 4]);
}

#[test]
fn a_constant_map_gives_its_constant_inside() {
    let map = Tensor::full(2.5f32, (1, 12, 20, 5), &Device::Cpu).unwrap();
    let boxes = Random::new(2).boxes(30, 19.0, 11.0);
    let (boxes, counts) = one_image(&boxes);
    let params = RoiAlignParams::new(7, 2, vec![1.0]);
    let pooled = roi_align(&[&map], &boxes, &counts, &params).unwrap();
    assert_close(&pooled, &pooled.ones_like().unwrap().affine(2.5, 0.0).unwrap(), 1e-5);
}

#[test]
fn is_linear_in_the_features_and_reads_strided_input() {
    let mut random = Random::new(3);
    let (a, b) = (random.tensor(&[1, 9, 13, 4]), random.tensor(&[1, 9, 13, 4]));
    let (boxes, counts) = one_image(&random.boxes(8, 26.0, 18.0));
    let params = RoiAlignParams::new(3, 2, vec![0.5]);
    let pool = |map: &Tensor| roi_align(&[map], &boxes, &counts, &params).unwrap();
    let mixed = ((&a * 2.0).unwrap() - &b).unwrap();
    let expected = ((pool(&a) * 2.0).unwrap() - pool(&b)).unwrap();
    assert_close(&pool(&mixed), &expected, 1e-5);
    let strided =
        a.permute((0, 3, 1, 2)).unwrap().contiguous().unwrap().permute((0, 2, 3, 1)).unwrap();
    assert!(!strided.is_contiguous());
    assert_eq!(values(&pool(&strided)), values(&pool(&a)));
    // A view that starts in the middle of its storage.
    let padded = Tensor::cat(&[&b, &a], 0).unwrap();
    assert_eq!(values(&pool(&padded.narrow(0, 1, 1).unwrap())), values(&pool(&a)));
}

#[test]
fn capacities_and_images_of_zero_are_fine() {
    let params = RoiAlignParams::new(7, 2, vec![0.25]);
    for (n, k) in [(1, 0), (0, 5), (0, 0)] {
        let map = Tensor::zeros((n, 6, 8, 3), DType::F32, &Device::Cpu).unwrap();
        let boxes = Tensor::zeros((n, k, 4), DType::F32, &Device::Cpu).unwrap();
        let counts = Tensor::zeros(n, DType::U32, &Device::Cpu).unwrap();
        let pooled = roi_align(&[&map], &boxes, &counts, &params).unwrap();
        assert_eq!(pooled.dims(), [0, 7, 7, 3]);
    }
}

#[test]
fn wrong_arguments_are_named() {
    let map = counting_map(5);
    let (boxes, counts) = one_image(&[[0.0, 0.0, 2.0, 2.0]]);
    let params = RoiAlignParams::new(2, 2, vec![1.0]);
    let shape_fault = |result: crate::Result<Tensor>, name: &str| {
        let error = result.unwrap_err();
        let Error::Shape { argument, .. } = &error else { panic!("{error}") };
        assert_eq!(*argument, name);
    };
    shape_fault(roi_align(&[&map], &boxes.squeeze(0).unwrap(), &counts, &params), "boxes");
    shape_fault(roi_align(&[&map], &boxes.narrow(2, 0, 3).unwrap(), &counts, &params), "boxes");
    let two = Tensor::new(&[1u32, 1], &Device::Cpu).unwrap();
    shape_fault(roi_align(&[&map], &boxes, &two, &params), "counts");
    let two_maps = Tensor::cat(&[&map, &map], 0).unwrap();
    shape_fault(roi_align(&[&two_maps], &boxes, &counts, &params), "levels");
    let wide = Tensor::cat(&[&map, &map], 3).unwrap();
    let both = RoiAlignParams::new(2, 2, vec![1.0, 0.5]);
    shape_fault(roi_align(&[&map, &wide], &boxes, &counts, &both), "levels");
    let empty = map.narrow(1, 0, 0).unwrap();
    shape_fault(roi_align(&[&empty], &boxes, &counts, &params), "levels");
    let float_counts = counts.to_dtype(DType::F32).unwrap();
    let error = roi_align(&[&map], &boxes, &float_counts, &params).unwrap_err();
    assert!(matches!(error, Error::DType { argument: "counts", .. }), "{error}");
    for (field, params) in [
        ("spatial_scales", both),
        ("spatial_scales", RoiAlignParams::new(2, 2, vec![0.0])),
        ("spatial_scales", RoiAlignParams::new(2, 2, vec![f32::NAN])),
        ("output", RoiAlignParams::new(0, 2, vec![1.0])),
        ("sampling", RoiAlignParams::new(2, 0, vec![1.0])),
    ] {
        let message = roi_align(&[&map], &boxes, &counts, &params).unwrap_err().to_string();
        assert!(message.starts_with(&format!("roi_align: `{field}` is ")), "{message}");
    }
    assert!(roi_align(&[], &boxes, &counts, &RoiAlignParams::new(2, 2, vec![])).is_err());
}
#[test]
fn bf16_features_are_rounded_once() {
    let mut random = Random::new(71);
    // 37 channels: a whole block of sums and a rest.
    let map = random.tensor(&[1, 20, 30, 37]).to_dtype(DType::BF16).unwrap();
    let boxes = random.boxes(9, 30.0, 20.0);
    let boxes = boxes_tensor(&boxes, (1, 9, 4));
    let counts = Tensor::new(&[9u32], &Device::Cpu).unwrap();
    let params = RoiAlignParams::new(7, 2, vec![1.0]);
    let found = roi_align(&[&map], &boxes, &counts, &params).unwrap();
    let wide = map.to_dtype(DType::F32).unwrap();
    let expected = roi_align(&[&wide], &boxes, &counts, &params).unwrap();
    assert_eq!(found.dtype(), DType::BF16);
    assert_eq!(values(&found), values(&expected.to_dtype(DType::BF16).unwrap()));
}

/// Pooling is linear in the features. Boxes: inside, across borders and levels, outside, without area, not finite, unused.
#[test]
fn gradients_are_those_of_the_definition() {
    let mut random = Random::new(83);
    let levels = pyramid(&mut random, 2, (24, 40), 3);
    let mut boxes = random.boxes(4, 160.0, 96.0);
    boxes.extend(random.boxes(4, 900.0, 700.0));
    boxes.extend([
        [-40.0, -30.0, 20.0, 10.0],
        [-900.0, -900.0, -800.0, -850.0],
        [50.0, 40.0, 50.0, 60.0],
        [f32::NAN, 0.0, 10.0, 10.0],
    ]);
    let boxes = boxes_tensor(&boxes, (2, 6, 4));
    for (output, sampling, counts) in [(3, 2, [6u32, 4]), (1, 1, [2, 6]), (2, 2, [0, 5])] {
        let counts = Tensor::new(&counts, &Device::Cpu).unwrap();
        let params = RoiAlignParams::new(output, sampling, SCALES.to_vec());
        assert_gradients(
            &levels,
            1.0,
            |levels| {
                let refs: Vec<&Tensor> = levels.iter().collect();
                roi_align(&refs, &boxes, &counts, &params).unwrap()
            },
            |maps| {
                let levels: Vec<Tensor> = maps
                    .iter()
                    .zip(&levels)
                    .map(|(map, level)| {
                        Tensor::from_vec(rounded(map), level.shape(), &Device::Cpu).unwrap()
                    })
                    .collect();
                exact(&values(&run_reference(&levels, &boxes, &counts, &params)))
            },
        );
    }
}

#[test]
fn no_boxes_give_gradients_of_zeros() {
    let level = candle_core::Var::ones((1, 4, 4, 2), DType::F32, &Device::Cpu).unwrap();
    let boxes = Tensor::zeros((1, 3, 4), DType::F32, &Device::Cpu).unwrap();
    let counts = Tensor::new(&[0u32], &Device::Cpu).unwrap();
    for boxes in [boxes.clone(), boxes.narrow(1, 0, 0).unwrap()] {
        let params = RoiAlignParams::new(2, 1, vec![1.0]);
        let pooled = roi_align(&[&level], &boxes, &counts, &params).unwrap();
        let gradients = pooled.sum_all().unwrap().backward().unwrap();
        assert_eq!(values(gradients.get(level.as_tensor()).unwrap()), [0.0; 32]);
    }
}
