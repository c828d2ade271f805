//! A narrow Keypoint R-CNN against torchvision's: heatmaps, detections, and a step of training. See `narrow_models.py`.

mod common;

use candle_core::{Device, Tensor};
use candle_detection::ops::FilledRows;
use candle_detection::rcnn::GeneralizedRcnn;
use candle_detection::rcnn::roi_heads::{KeypointHead, KeypointHeadConfig};
use candle_detection::structures::{BatchGeometry, FeatureMaps, InstanceParts};
use candle_detection::transform;
use common::{Fixture, fixtures, largest_difference, largest_value, values};

/// Features and logits: difference relative to the largest value.
const RELATIVE: f32 = 1e-4;
/// Boxes, in pixels.
const BOX_PIXELS: f32 = 0.05;
/// Keypoints, in pixels.
const KEYPOINT_PIXELS: f32 = 0.1;
const SCORE: f32 = 1e-3;

#[track_caller]
fn assert_features(found: &Tensor, expected: &Tensor, stage: &str) {
    assert_eq!(found.dims(), expected.dims(), "{stage}");
    let (difference, largest) = (largest_difference(found, expected), largest_value(expected));
    assert!(difference <= RELATIVE * largest, "{stage} differs by {difference} of {largest}");
}

#[test]
fn features_and_proposals_are_the_references() {
    let fixture = Fixture::load("tiny_keypointrcnn");
    let detector = fixture.detector();
    let (features, geometry) = features(&fixture);
    for (level, found) in features.levels.iter().enumerate() {
        let key = format!("features.{level}");
        assert_features(found, &fixture.features(&key), &key);
    }
    let rcnn = detector.network().parts::<GeneralizedRcnn>().unwrap();
    let predicted = rcnn.rpn.predict(&features).unwrap();
    for level in 0..features.levels.len() {
        let key = format!("rpn.objectness.{level}");
        let first = predicted.objectness[level].narrow(0, 0, 1).unwrap();
        assert_features(&first, &fixture.features(&key), &key);
    }
    let proposals = rcnn.rpn.propose(&predicted, &geometry, rcnn.rpn.limits()).unwrap();
    let counts: Vec<u32> = proposals.counts.to_vec1().unwrap();
    for (image, count) in counts.iter().enumerate() {
        let expected = fixture.tensor(&format!("rpn.proposals.{image}"));
        assert_eq!(*count as usize, expected.dim(0).unwrap());
        let found = proposals.boxes.get(image).unwrap().narrow(0, 0, *count as usize).unwrap();
        assert!(largest_difference(&found, &expected) < BOX_PIXELS);
    }
}

fn features(fixture: &Fixture) -> (FeatureMaps, BatchGeometry) {
    let detector = fixture.detector();
    let (image, dtype) = (&detector.config().image, detector.dtype());
    let batch = transform::to_batch(&fixture.images(), image, detector.device(), dtype).unwrap();
    (detector.network().backbone.forward(&batch.pixels).unwrap(), batch.geometry)
}

/// From the reference's own first detection, so that the head is compared alone.
#[test]
fn heatmaps_are_the_references() {
    let fixture = Fixture::load("tiny_keypointrcnn");
    let (features, geometry) = features(&fixture);
    let file = fixtures().join("tiny_keypointrcnn.safetensors");
    let tensors = candle_core::safetensors::load(file, &Device::Cpu).unwrap();
    let weights =
        candle_nn::VarBuilder::from_tensors(tensors, candle_core::DType::F32, &Device::Cpu);
    let detector = fixture.detector();
    let levels = detector.network().backbone.levels();
    let config = detector.config().architecture.as_rcnn().unwrap().keypoint_head.as_ref().unwrap();
    let head = KeypointHead::load(&weights.pp("roi_heads"), levels, config).unwrap();
    let bbox = fixture.tensor("resized_image.boxes.0").narrow(0, 0, 1).unwrap();
    let boxes = Tensor::stack(&[&bbox, &bbox.zeros_like().unwrap()], 0).unwrap();
    let counts = Tensor::new(&[1u32, 0], &Device::Cpu).unwrap();
    let pooled = head.pool(&features, &boxes, &counts, &geometry).unwrap();
    let logits = head.predict(&pooled, FilledRows::All).unwrap();
    assert_eq!(logits.dims(), [2, 56, 56, 17]);
    let expected = fixture.features("keypoint.logits");
    let found = logits.narrow(0, 0, 1).unwrap().narrow(3, 0, expected.dim(3).unwrap()).unwrap();
    assert_features(&found, &expected, "keypoint.logits");
}

#[test]
fn detections_and_their_keypoints_are_the_references() {
    let fixture = Fixture::load("tiny_keypointrcnn");
    let found = fixture.detector().detect_batch(&fixture.images()).unwrap();
    assert_eq!(found.len(), 2);
    for (image, detections) in found.iter().enumerate() {
        assert_eq!(detections.parts, InstanceParts { masks: false, keypoints: Some(17) });
        let get = |what: &str| fixture.tensor(&format!("{what}.{image}"));
        let labels: Vec<u32> = get("resized_image.labels").to_vec1().unwrap();
        assert_eq!(detections.instances.iter().map(|i| i.label).collect::<Vec<_>>(), labels);
        let tensors = detections.to_tensors(&Device::Cpu).unwrap();
        let keypoints = tensors.keypoints.unwrap();
        let scores = tensors.keypoint_scores.unwrap();
        for (found, key, tolerance) in [
            (&tensors.scores, "resized_image.scores", SCORE),
            (&tensors.boxes, "final.boxes", BOX_PIXELS),
            (&keypoints, "final.keypoints", KEYPOINT_PIXELS),
            (&scores, "resized_image.keypoints_scores", SCORE),
        ] {
            let expected = get(key);
            assert_eq!(found.dims(), expected.dims(), "{key}");
            let difference = largest_difference(found, &expected);
            assert!(difference < tolerance, "{key} of image {image} differs by {difference}");
        }
    }
}

/// What is above the largest count does not matter, and an image may show nobody.
#[test]
fn nobody_has_no_keypoints() {
    let fixture = Fixture::load("tiny_keypointrcnn");
    let file = |extension: &str| fixtures().join(format!("tiny_keypointrcnn.{extension}"));
    let config = candle_detection::config::ModelConfig::load(&file("toml")).unwrap();
    let detector = candle_detection::DetectorBuilder::new(config)
        .weights(candle_detection::Weights::File(file("safetensors")))
        .score_threshold(0.9999)
        .build()
        .unwrap();
    for detections in detector.detect_batch(&fixture.images()).unwrap() {
        assert!(detections.instances.is_empty());
        let tensors = detections.to_tensors(&Device::Cpu).unwrap();
        assert_eq!(tensors.keypoints.unwrap().dims(), [0, 17, 3]);
    }
}

#[test]
fn the_numbers_of_the_head_are_checked() {
    type Edit = fn(&mut KeypointHeadConfig);
    let cases: [(&str, Edit); 4] = [
        ("roi_output", |head| head.roi_output = 0),
        ("conv_channels", |head| head.conv_channels.clear()),
        ("conv_channels", |head| head.conv_channels[3] = 0),
        ("keypoints", |head| head.keypoints = 0),
    ];
    for (field, edit) in cases {
        let mut config = candle_detection::config::get("keypointrcnn_resnet50_fpn").unwrap();
        let rcnn = config.architecture.as_rcnn_mut().unwrap();
        edit(rcnn.keypoint_head.as_mut().unwrap());
        let message = config.validate("mine.toml").unwrap_err().to_string();
        let place = format!("mine.toml: `architecture.keypoint_head.{field}` is ");
        assert!(message.starts_with(&place), "{message}");
    }
}

#[cfg(feature = "train")]
mod training {
    use super::*;
    use crate::common::training::{Reference, compare};

    /// As many as the case has: in cases with empty images, only those of small parameters are kept.
    fn check_gradients(case: &str) {
        let reference = Reference::load("tiny_keypointrcnn");
        let (network, losses, gradients) = compare(&reference, case, &Device::Cpu);
        assert_eq!(network.loss_names().last().map(String::as_str), Some("loss_keypoint"));
        assert_eq!(losses.get("loss_keypoint").unwrap() > 0.0, case != "all_empty");
        let prefix = format!("{case}/grad.");
        let mut compared = 0;
        for (key, expected) in &reference.tensors {
            let Some(name) = key.strip_prefix(&prefix) else { continue };
            let found = gradients.get(name).unwrap().unwrap_or_else(|| panic!("no {name}"));
            let noise = values(&reference.tensors[&format!("{case}/noise.{name}")])[0];
            let tolerance = 1e-3f32.max(3.0 * noise) * largest_value(expected);
            let difference = largest_difference(&found, expected);
            assert!(difference <= tolerance, "{case} {name}: {difference} above {tolerance}");
            compared += 1;
        }
        assert!(compared > 20, "{compared}");
        if case == "objects" {
            assert_eq!(compared, gradients.names().len());
        }
    }

    #[test]
    fn losses_and_gradients_are_the_references() {
        check_gradients("objects");
    }

    #[test]
    fn an_image_without_objects_has_no_keypoints_to_learn() {
        check_gradients("one_empty");
    }

    #[test]
    fn a_batch_without_objects_costs_no_keypoints() {
        check_gradients("all_empty");
    }
}
