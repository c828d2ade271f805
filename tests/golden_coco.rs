//! Full-size weights and real photos: the detections that torchvision makes of them.
//!
//! Needs the sample data in the folder that `CANDLE_DETECTION_DATA` names.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use candle_detection::structures::{BoxXyxy, Detections, Instance, Mask, Rle};
use candle_detection::{Detector, ImageInput, Weights};
use common::sample_data;
use serde::Deserialize;

/// One entry of the reference's results file.
#[derive(Debug, Deserialize)]
struct Expected {
    image_id: u64,
    category_id: u32,
    bbox: [f32; 4],
    score: f32,
    segmentation: Segmentation,
}

#[derive(Debug, Deserialize)]
struct Segmentation {
    size: [usize; 2],
    counts: String,
}

#[test]
fn photos_as_png_give_the_detections_of_torchvision() {
    let Some(data) = sample_data("photos_as_png_give_the_detections_of_torchvision") else {
        return;
    };
    let detector = sample_detector(&data);
    let expected = expected_detections(&data);
    let folder = data.join("coco-samples/val2017-png");
    let mut photos = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let id: u64 = path.file_stem().unwrap().to_str().unwrap().parse().unwrap();
        let found = detector.detect(&ImageInput::open(&path).unwrap()).unwrap();
        compare(id, &found, &expected[&id]);
        photos += 1;
    }
    assert_eq!(photos, 12);
}

/// Another JPEG decoder differs by a level or two, so the comparison is looser.
#[test]
fn photos_as_jpeg_give_nearly_the_same() {
    let Some(data) = sample_data("photos_as_jpeg_give_nearly_the_same") else { return };
    let detector = sample_detector(&data);
    let (mut strong, mut matched) = (0, 0);
    for (id, expected) in &expected_detections(&data) {
        let path = data.join(format!("coco-samples/val2017/{id:012}.jpg"));
        let found = detector.detect(&ImageInput::open(&path).unwrap()).unwrap();
        for wanted in expected.iter().filter(|wanted| wanted.score > 0.2) {
            strong += 1;
            matched += usize::from(found.instances.iter().any(|i| is_close(i, wanted)));
        }
    }
    assert!(strong > 50, "{strong} detections above 0.2 in the reference");
    assert!(matched * 100 >= strong * 98, "{matched} of {strong} were found");
}

fn sample_detector(data: &Path) -> Detector {
    Detector::builder("maskrcnn_resnet50_fpn")
        .unwrap()
        .weights(Weights::File(data.join("weights/maskrcnn_coco12.safetensors")))
        .configure(|config| (config.image.min_size, config.image.max_size) = (256, 448))
        .build()
        .unwrap()
}

fn expected_detections(data: &Path) -> BTreeMap<u64, Vec<Expected>> {
    let path = data.join("weights/maskrcnn_coco12.reference.json");
    let all: Vec<Expected> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let mut by_image: BTreeMap<u64, Vec<Expected>> = BTreeMap::new();
    for expected in all {
        by_image.entry(expected.image_id).or_default().push(expected);
    }
    by_image
}

/// Same number, same labels, scores within 1e-3, boxes within 0.05 px, masks differing in at most 0.1 % of the pixels.
///
/// Detections are matched by label and box, as two whose scores differ in the last digit may change places.
fn compare(id: u64, found: &Detections, expected: &[Expected]) {
    assert_eq!(found.instances.len(), expected.len(), "detections of image {id}");
    let mut unmatched: Vec<&Instance> = found.instances.iter().collect();
    for wanted in expected {
        let place = unmatched
            .iter()
            .position(|i| i.label == wanted.category_id && box_difference(i, wanted) <= 0.05)
            .unwrap_or_else(|| panic!("image {id}: nothing matches {wanted:?}"));
        let instance = unmatched.swap_remove(place);
        let difference = (instance.score - wanted.score).abs();
        assert!(difference <= 1e-3, "image {id}: score differs by {difference}");
        let mask = instance.mask.as_ref().unwrap();
        let differing = differing_pixels(mask, &wanted.segmentation);
        let pixels = mask.image_size().height * mask.image_size().width;
        assert!(differing * 1000 <= pixels, "image {id}: {differing} pixels of a mask differ");
    }
}

/// Pixels in which a mask and the reference's differ.
///
/// Pasting truncates the edges of the grown box to whole pixels, so that a last bit of an edge that lies on a whole
/// number moves the mask by a pixel, in torchvision as here. A mask that differs is therefore pasted again with its
/// edges moved by a thousandth of a pixel, a fiftieth of what boxes may differ by, and the best counts.
fn differing_pixels(mask: &Mask, wanted: &Segmentation) -> usize {
    let size = mask.image_size();
    assert_eq!([size.height, size.width], wanted.size);
    let reference = Rle::from_coco_string(&wanted.counts, size).unwrap().to_bitmap().unwrap();
    let count = |bbox: BoxXyxy| {
        let moved = Mask::new(mask.side(), mask.probabilities().into(), bbox, size).unwrap();
        let bitmap = moved.binarize(0.5);
        bitmap.pixels().zip(reference.pixels()).filter(|(a, b)| a != b).count()
    };
    let as_found = count(mask.bbox());
    if as_found * 1000 <= size.height * size.width {
        return as_found;
    }
    const STEPS: [f32; 3] = [-1e-3, 0.0, 1e-3];
    let mut best = as_found;
    for (x1, y1) in STEPS.iter().flat_map(|x| STEPS.map(|y| (*x, y))) {
        for (x2, y2) in STEPS.iter().flat_map(|x| STEPS.map(|y| (*x, y))) {
            let b = mask.bbox();
            let moved = BoxXyxy { x1: b.x1 + x1, y1: b.y1 + y1, x2: b.x2 + x2, y2: b.y2 + y2 };
            best = best.min(count(moved));
        }
    }
    best
}

fn box_difference(instance: &Instance, wanted: &Expected) -> f32 {
    let found = instance.bbox.to_xywh();
    found.iter().zip(wanted.bbox).fold(0.0, |largest, (a, b)| largest.max((a - b).abs()))
}

fn is_close(instance: &Instance, wanted: &Expected) -> bool {
    let [x, y, width, height] = wanted.bbox;
    let b = &instance.bbox;
    let side = |low: f32, high: f32, from: f32, length: f32| {
        (high.min(from + length) - low.max(from)).max(0.0)
    };
    let intersection = side(b.x1, b.x2, x, width) * side(b.y1, b.y2, y, height);
    let iou = intersection / (b.width() * b.height() + width * height - intersection);
    instance.label == wanted.category_id
        && iou > 0.95
        && (instance.score - wanted.score).abs() <= 0.03
}
