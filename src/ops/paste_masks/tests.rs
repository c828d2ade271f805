use std::sync::Arc;

use candle_core::{Device, Tensor};

use super::*;
use crate::ops::support::testing::{Random, values};
use crate::structures::{BoxXyxy, ImageSize, Mask};

/// Boxes inside, across the edges of, and outside a 23×30 image, and ones that cover nothing.
fn boxes() -> Vec<[f32; 4]> {
    vec![
        [3.2, 4.7, 20.1, 15.0],
        [0.0, 0.0, 30.0, 23.0],
        [-7.5, -3.0, 4.0, 5.5],
        [25.0, 18.0, 44.0, 60.0],
        [40.0, 2.0, 50.0, 9.0],
        [9.0, 9.0, 9.0, 9.0],
        [20.0, 15.0, 3.0, 4.0],
        [f32::NAN, 1.0, 5.0, 5.0],
        [1.0, 1.0, f32::INFINITY, 5.0],
        [-1e30, -1e30, 1e30, 1e30],
    ]
}

#[test]
fn agrees_with_masks_on_the_host() {
    let mut random = Random::new(3);
    let boxes = boxes();
    for (side, threshold) in [(28, 0.5), (1, 0.2), (3, -1.0), (2, 0.0)] {
        let probabilities: Vec<f32> =
            (0..boxes.len() * side * side).map(|_| random.unit()).collect();
        let tensor =
            Tensor::from_vec(probabilities.clone(), (boxes.len(), side, side), &Device::Cpu);
        let corners =
            Tensor::from_slice(boxes.as_flattened(), (boxes.len(), 4), &Device::Cpu).unwrap();
        let params = PasteMasksParams { height: 23, width: 30, threshold };
        let masks = paste_masks(&tensor.unwrap(), &corners, &params).unwrap();
        assert_eq!(masks.dims(), [boxes.len(), 23, 30]);
        for (i, [x1, y1, x2, y2]) in boxes.iter().copied().enumerate() {
            let mask = Mask::new(
                side,
                Arc::from(&probabilities[i * side * side..][..side * side]),
                BoxXyxy { x1, y1, x2, y2 },
                ImageSize { height: 23, width: 30 },
            );
            let expected = mask.unwrap().binarize(threshold).into_raw();
            let found = masks.get(i).unwrap().flatten_all().unwrap().to_vec1::<u8>().unwrap();
            assert_eq!(found, expected, "box {i}, side {side}");
        }
    }
}

#[test]
fn no_masks_and_no_pixels_are_fine() {
    let none = Tensor::zeros((0, 28, 28), DType::F32, &Device::Cpu).unwrap();
    let no_boxes = Tensor::zeros((0, 4), DType::F32, &Device::Cpu).unwrap();
    let params = PasteMasksParams { height: 5, width: 6, threshold: 0.5 };
    assert_eq!(paste_masks(&none, &no_boxes, &params).unwrap().dims(), [0, 5, 6]);
    let one = Tensor::ones((1, 2, 2), DType::F32, &Device::Cpu).unwrap();
    let bbox = Tensor::new(&[[0f32, 0.0, 2.0, 2.0]], &Device::Cpu).unwrap();
    let params = PasteMasksParams { height: 0, ..params };
    assert!(values(&paste_masks(&one, &bbox, &params).unwrap()).is_empty());
}

#[test]
fn misfits_are_named() {
    let mut random = Random::new(5);
    let params = PasteMasksParams { height: 5, width: 6, threshold: 0.5 };
    let fault = |probabilities: &[usize], boxes: &[usize]| {
        let mut random = random.clone();
        let (probabilities, boxes) = (random.tensor(probabilities), random.tensor(boxes));
        paste_masks(&probabilities, &boxes, &params).unwrap_err().to_string()
    };
    assert!(fault(&[2, 3, 4], &[2, 4]).contains("[D, M, M]"));
    assert!(fault(&[2, 0, 0], &[2, 4]).contains("M at least 1"));
    assert!(fault(&[2, 3, 3], &[3, 4]).contains("[2, 4]"));
    let doubles = random.tensor(&[1, 2, 2]).to_dtype(DType::F64).unwrap();
    let message = paste_masks(&doubles, &random.tensor(&[1, 4]), &params).unwrap_err().to_string();
    assert!(message.contains("probabilities") && message.contains("F32"), "{message}");
}
