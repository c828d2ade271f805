//! What every architecture detects against torchvision's, on the narrow models of the fixtures: one row each.

mod common;

use candle_core::{Device, Tensor};
use candle_detection::structures::{Detections, FeatureMaps, ImageBatch};
use candle_detection::transform;
use common::{
    Fixture, channels_last, fixtures, largest_difference, largest_value, tolerance, values,
};

/// Features: difference relative to the largest value.
const FEATURES: f32 = 1e-4;
/// Scores: relative difference.
const SCORES: f32 = 1e-4;
/// Boxes, in pixels of the image.
const BOX_PIXELS: f32 = 0.01;
/// Keypoints, in pixels of the image.
const KEYPOINT_PIXELS: f32 = 0.05;
/// Of a batch, every so many rows and columns are in the fixture.
const EVERY: u32 = 8;

macro_rules! models {
    ($($name:ident)*) => {
        /// The models that have a test.
        const MODELS: &[&str] = &[$(stringify!($name)),*];

        $(#[test]
        fn $name() {
            compare(stringify!($name));
        })*
    };
}

models! {
    tiny_r18
    tiny_r50_v2
    tiny_retinanet
    tiny_retinanet_v2
    tiny_fcos
    tiny_ssd
    tiny_ssdlite
    tiny_keypointrcnn
    tiny_mobilenet
}

#[test]
fn every_narrow_model_has_a_row() {
    for entry in std::fs::read_dir(fixtures()).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        if let Some(name) = file.strip_suffix("_stages.safetensors") {
            assert!(MODELS.contains(&name), "{name}");
        }
    }
}

fn compare(name: &str) {
    let fixture = Fixture::load(name);
    let detector = fixture.detector();
    let images = fixture.images();
    let config = &detector.config().image;
    let batch = transform::to_batch(&images, config, detector.device(), detector.dtype()).unwrap();
    compare_batch(&fixture, &batch);
    compare_features(name, &fixture, &detector.network().backbone.forward(&batch.pixels).unwrap());
    let found = detector.detect_batch(&images).unwrap();
    for (image, detections) in found.iter().enumerate() {
        compare_detections(name, &fixture, detections, image);
    }
}

/// What goes into the network.
fn compare_batch(fixture: &Fixture, batch: &ImageBatch) {
    let sizes = fixture.tensor("resized_sizes").to_vec2::<u32>().unwrap();
    let found = batch.geometry.resized_sizes();
    let found: Vec<Vec<u32>> = found.iter().map(|&(h, w)| vec![h as u32, w as u32]).collect();
    assert_eq!(found, sizes, "resized sizes");
    if !fixture.has("transformed.sampled") {
        return; // a model with stages of its own in `parity_stages.rs`
    }
    let (_, height, width, _) = batch.pixels.dims4().unwrap();
    let padded = values(&fixture.tensor("padded_size"));
    assert_eq!([height as f32, width as f32], padded[..], "padded size");
    let mut sampled = batch.pixels.clone();
    for (axis, side) in [(1, height), (2, width)] {
        let rows = Tensor::arange_step(0, side as u32, EVERY, &Device::Cpu).unwrap();
        sampled = sampled.index_select(&rows, axis).unwrap();
    }
    assert_near(&sampled, &channels_last(&fixture.tensor("transformed.sampled")), "pixels");
}

/// What the heads see.
fn compare_features(name: &str, fixture: &Fixture, features: &FeatureMaps) {
    if !fixture.has("features.0") {
        return;
    }
    for (level, found) in features.levels.iter().enumerate() {
        let key = format!("features.{level}");
        let tolerance = tolerance(name, &key, FEATURES);
        assert_within(found, &fixture.features(&key), tolerance, &key);
    }
    let next = format!("features.{}", features.levels.len());
    assert!(!fixture.has(&next), "{next} is missing");
}

fn compare_detections(name: &str, fixture: &Fixture, detections: &Detections, image: usize) {
    let get = |what: &str| fixture.tensor(&format!("{what}.{image}"));
    let labels: Vec<u32> = get("resized_image.labels").to_vec1().unwrap();
    let found: Vec<u32> = detections.instances.iter().map(|i| i.label).collect();
    assert_eq!(found, labels, "labels of image {image}");
    let scores = values(&get("resized_image.scores"));
    for (slot, (instance, expected)) in detections.instances.iter().zip(scores).enumerate() {
        let (found, difference) = (instance.score, (instance.score - expected).abs());
        let near = difference <= tolerance(name, "scores", SCORES) * expected;
        assert!(near, "score {slot} of image {image}: {found}, expected {expected}");
    }
    let tensors = detections.to_tensors(&Device::Cpu).unwrap();
    let difference = largest_difference(&tensors.boxes, &get("final.boxes"));
    assert!(difference <= BOX_PIXELS, "boxes of image {image} differ by {difference} px");
    assert_eq!(tensors.keypoints.is_some(), fixture.has("final.keypoints.0"));
    if let Some(keypoints) = tensors.keypoints {
        let difference = largest_difference(&keypoints, &get("final.keypoints"));
        let near = difference <= KEYPOINT_PIXELS;
        assert!(near, "keypoints of image {image} differ by {difference} px");
        let scores = tensors.keypoint_scores.unwrap();
        assert_near(&scores, &get("resized_image.keypoints_scores"), "scores of keypoints");
    }
}

#[track_caller]
fn assert_near(found: &Tensor, expected: &Tensor, what: &str) {
    assert_within(found, expected, FEATURES, what);
}

/// `tolerance` is relative to the largest value.
#[track_caller]
fn assert_within(found: &Tensor, expected: &Tensor, tolerance: f32, what: &str) {
    assert_eq!(found.dims(), expected.dims(), "{what}");
    let (difference, largest) = (largest_difference(found, expected), largest_value(expected));
    let near = difference <= tolerance * largest;
    assert!(near, "{what} differ by {difference}, the largest value is {largest}");
}
