use candle_core::{DType, Device, Tensor};

use super::*;
use crate::ops::support::testing::{Random, fixture, values};

/// Of a value that is the largest, and of its place: values are sums of sixteen terms in another order.
const TOLERANCE: f32 = 1e-4;

fn boxes(corners: &[[f32; 4]], images: usize) -> Tensor {
    let shape = (images, corners.len() / images, 4);
    Tensor::from_slice(corners.as_flattened(), shape, &Device::Cpu).unwrap()
}

fn find(heatmaps: &Tensor, corners: &[[f32; 4]]) -> Vec<f32> {
    let counts = Tensor::new(&[corners.len() as u32], &Device::Cpu).unwrap();
    let boxes = boxes(corners, 1);
    values(&heatmaps_to_keypoints(heatmaps, &boxes, &counts, &[(1.0, 1.0)]).unwrap())
}

#[track_caller]
fn assert_found(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= TOLERANCE, "at {i}: found {a}, expected {b}");
    }
}

#[test]
fn agrees_with_torchvision() {
    let file = fixture("keypoints.safetensors");
    let get = |name: &str| &file[&format!("heatmaps/{name}")];
    let counts = Tensor::new(&[get("boxes").dim(0).unwrap() as u32], &Device::Cpu).unwrap();
    let boxes = get("boxes").unsqueeze(0).unwrap();
    let found = heatmaps_to_keypoints(get("maps"), &boxes, &counts, &[(1.0, 1.0)]).unwrap();
    assert_found(&values(&found), &values(get("keypoints")));
}

#[test]
fn agrees_with_the_definition() {
    let mut random = Random::new(3);
    for [height, width, keypoints] in [[56, 56, 3], [7, 5, 2], [1, 1, 1], [2, 3, 17]] {
        let mut corners = random.boxes(8, 90.0, 70.0);
        corners.push([3.0, 4.0, 3.2, 50.7]);
        corners.push([-5.5, 2.0, -5.5, 2.0]);
        let maps = random.tensor(&[corners.len(), height, width, keypoints]);
        let found = find(&maps, &corners);
        let all = values(&maps);
        let size = height * width;
        let mut expected = Vec::new();
        for (bbox, maps) in corners.iter().zip(all.chunks_exact(size * keypoints)) {
            for keypoint in 0..keypoints {
                let map: Vec<f32> = maps[keypoint..].iter().step_by(keypoints).copied().collect();
                expected.extend(reference::find(&map, width, *bbox));
            }
        }
        assert_found(&found, &expected);
    }
}

/// Entries at equal distances from the border have equal values when a map is shrunk to them.
#[test]
fn the_first_of_equal_values_counts() {
    let mut map = vec![0f32; 36];
    for place in [14, 15, 20, 21] {
        map[place] = 1.0;
    }
    let map = Tensor::from_vec(map, (1, 6, 6, 1), &Device::Cpu).unwrap();
    let found = find(&map, &[[10.0, 20.0, 16.0, 26.0]]);
    assert_eq!(found, [12.5, 22.5, 1.0]);
    // One place only.
    assert_eq!(find(&map, &[[10.0, 20.0, 10.0, 20.5]])[..2], [10.5, 20.5]);
}

#[test]
fn images_have_counts_and_factors_of_their_own() {
    let mut random = Random::new(5);
    let corners = random.boxes(6, 40.0, 30.0);
    let maps = random.tensor(&[6, 8, 8, 2]);
    let plain = find(&maps, &corners);
    let counts = Tensor::new(&[2u32, 9, 0], &Device::Cpu).unwrap();
    let factors = [(2.0, 3.0), (0.5, 0.25), (1.0, 1.0)];
    let found = heatmaps_to_keypoints(&maps, &boxes(&corners, 3), &counts, &factors).unwrap();
    assert_eq!(found.dims(), [3, 2, 2, 3]);
    for (i, (found, plain)) in values(&found).chunks(3).zip(plain.chunks(3)).enumerate() {
        let expected = match i / 4 {
            2 => [0.0; 3],
            image => {
                let (y, x) = factors[image];
                [plain[0] * x, plain[1] * y, plain[2]]
            }
        };
        assert_eq!(found, expected);
    }
}

#[test]
fn nan_is_never_the_largest() {
    let mut map = Random::new(7).tensor(&[1, 8, 8, 1]);
    let corners = [[0.0, 0.0, 31.0, 17.0]];
    let mut holes = values(&map);
    holes[0] = f32::NAN;
    holes[30] = 9.0;
    map = Tensor::from_vec(holes, (1, 8, 8, 1), &Device::Cpu).unwrap();
    let found = find(&map, &corners);
    assert!(found[2] > 8.0 && found[2] < 11.0, "{found:?}");
    let nothing = Tensor::full(f32::NAN, (1, 8, 8, 1), &Device::Cpu).unwrap();
    let found = find(&nothing, &corners);
    assert_eq!(found[..2], [0.5, 0.5]);
    assert!(found[2].is_nan());
}

#[test]
fn boxes_that_are_not_finite_end() {
    let map = Random::new(9).tensor(&[1, 3, 3, 1]);
    for bbox in [[f32::NAN, 0.0, 4.0, 4.0], [0.0, 0.0, f32::INFINITY, 3.0], [0.0, 0.0, 1e30, 2.0]] {
        assert_eq!(find(&map, &[bbox]).len(), 3);
    }
}

#[test]
fn there_may_be_nothing() {
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, &Device::Cpu).unwrap();
    for (images, slots, keypoints) in [(2, 0, 17), (0, 3, 17), (2, 3, 0)] {
        let maps = zeros(&[images * slots, 4, 4, keypoints], DType::F32);
        let boxes = zeros(&[images, slots, 4], DType::F32);
        let counts = zeros(&[images], DType::U32);
        let factors = vec![(1.0, 1.0); images];
        let found = heatmaps_to_keypoints(&maps, &boxes, &counts, &factors).unwrap();
        assert_eq!(found.dims(), [images, slots, keypoints, 3]);
    }
}

#[test]
fn misfits_are_named() {
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, &Device::Cpu).unwrap();
    let (maps, boxes) = (zeros(&[2, 4, 4, 3], DType::F32), zeros(&[1, 2, 4], DType::F32));
    let counts = zeros(&[1], DType::U32);
    let one = [(1.0, 1.0)];
    let cases = [
        ("boxes", heatmaps_to_keypoints(&maps, &boxes, &counts, &[])),
        ("boxes", heatmaps_to_keypoints(&maps, &zeros(&[1, 2, 5], DType::F32), &counts, &one)),
        ("counts", heatmaps_to_keypoints(&maps, &boxes, &zeros(&[2], DType::U32), &one)),
        ("counts", heatmaps_to_keypoints(&maps, &boxes, &zeros(&[1], DType::F32), &one)),
        (
            "heatmaps",
            heatmaps_to_keypoints(&zeros(&[3, 4, 4, 3], DType::F32), &boxes, &counts, &one),
        ),
        (
            "heatmaps",
            heatmaps_to_keypoints(&zeros(&[2, 0, 4, 3], DType::F32), &boxes, &counts, &one),
        ),
        ("heatmaps", heatmaps_to_keypoints(&zeros(&[2, 4, 4], DType::F32), &boxes, &counts, &one)),
    ];
    for (name, result) in cases {
        let message = result.unwrap_err().to_string();
        assert!(message.contains(name), "{message}");
    }
}
