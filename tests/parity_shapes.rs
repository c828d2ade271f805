//! Whole detections against torchvision's, in images of unusual shapes, in a mixed batch, with nothing to find, and with
//! more candidates than capacity.

mod common;

use std::collections::HashMap;

use candle_core::{Device, Tensor};
use candle_detection::ImageInput;
use common::{Fixture, fixtures, largest_difference, values};

/// Case, images, detections per image, score threshold: as in `make_shapes.py`.
const CASES: &[(&str, usize, usize, f32)] = &[
    ("portrait", 1, 20, 0.05),
    ("wide", 1, 20, 0.05),
    ("tall", 1, 20, 0.05),
    ("small", 1, 20, 0.05),
    ("batch", 3, 20, 0.05),
    ("nothing", 1, 20, 0.999),
    ("crowded", 2, 7, 0.0),
];

#[test]
fn unusual_images_give_the_detections_of_torchvision() {
    let detector = Fixture::load("tiny_r18").detector();
    let tensors: HashMap<String, Tensor> =
        candle_core::safetensors::load(fixtures().join("shapes.safetensors"), &Device::Cpu)
            .unwrap();
    for (case, n, per_image, score_threshold) in CASES.iter().copied() {
        let get = |what: &str, i: usize| &tensors[&format!("{case}/{what}.{i}")];
        let images: Vec<ImageInput> = (0..n)
            .map(|i| {
                let pixels = get("image", i);
                let (height, width, _) = pixels.dims3().unwrap();
                let bytes = pixels.flatten_all().unwrap().to_vec1().unwrap();
                ImageInput::from_rgb8(width, height, bytes).unwrap()
            })
            .collect();
        let mut settings = detector.settings();
        settings.detections.per_image = per_image;
        settings.detections.score_threshold = score_threshold;
        let found = detector.detect_with(&images, &settings).unwrap();
        for (i, detections) in found.iter().enumerate() {
            let labels: Vec<u32> = detections.instances.iter().map(|i| i.label).collect();
            assert_eq!(labels, get("labels", i).to_vec1::<u32>().unwrap(), "{case}, image {i}");
            let tensors = detections.to_tensors(&Device::Cpu).unwrap();
            assert!(largest_difference(&tensors.scores, get("scores", i)) < 1e-3, "{case}, {i}");
            assert!(largest_difference(&tensors.boxes, get("boxes", i)) < 0.05, "{case}, {i}");
            let (masks, expected) = (values(&tensors.masks.unwrap()), values(get("masks", i)));
            let pixels = images[i].size().height * images[i].size().width;
            for (slot, (m, e)) in masks.chunks(pixels).zip(expected.chunks(pixels)).enumerate() {
                let differing = m.iter().zip(e).filter(|(p, e)| (**p > 0.5) != (**e > 0.5)).count();
                // One pixel in a thousand, or a single one in the smallest images.
                assert!(
                    differing * 1000 <= pixels.max(1000),
                    "{case}, {i}: {differing} pixels of mask {slot}"
                );
            }
        }
    }
}
