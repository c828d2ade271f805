//! A narrow Faster R-CNN on MobileNetV3-Large against torchvision's tensors, in inference and in training: see
//! `make_dense_models.py`.

mod common;

use candle_core::Tensor;
use candle_detection::backbone::BodyConfig;
use candle_detection::config::ModelConfig;
use candle_detection::ops::FilledRows;
use candle_detection::rcnn::GeneralizedRcnn;
use candle_detection::structures::{BatchGeometry, FeatureMaps, Proposals};
use candle_detection::transform;
use candle_nn::VarBuilder;
use common::{Fixture, fixtures, largest_difference, largest_value, values};

const NAME: &str = "tiny_mobilenet";
/// Features and logits: difference relative to the largest value.
const RELATIVE: f32 = 1e-4;
/// Boxes, in pixels.
const PIXELS: f32 = 0.01;

#[track_caller]
fn assert_features(found: &Tensor, expected: &Tensor, stage: &str) {
    assert_eq!(found.dims(), expected.dims(), "{stage}");
    let (difference, largest) = (largest_difference(found, expected), largest_value(expected));
    assert!(
        difference <= RELATIVE * largest,
        "{stage} differs by {difference}, its largest value is {largest}"
    );
}

/// The first image of a batch.
fn first(batch: &Tensor) -> Tensor {
    batch.narrow(0, 0, 1).unwrap()
}

#[test]
fn every_stage_is_torchvisions() {
    let fixture = Fixture::load(NAME);
    let detector = fixture.detector();
    let network = detector.network();
    let images = fixture.images();
    let batch =
        transform::to_batch(&images, &detector.config().image, detector.device(), detector.dtype())
            .unwrap();
    compare_body(&fixture, &first(&batch.pixels));
    let features = network.backbone.forward(&batch.pixels).unwrap();
    for (level, found) in features.levels.iter().enumerate() {
        let key = format!("features.{level}");
        assert_features(found, &fixture.features(&key), &key);
    }
    let rcnn = network.parts::<GeneralizedRcnn>().unwrap();
    compare_rpn(&fixture, rcnn, &features, &batch.geometry);
    compare_heads(&fixture, rcnn, &features, &batch.geometry);
    for (image, detections) in detector.detect_batch(&images).unwrap().iter().enumerate() {
        let get = |what: &str| fixture.tensor(&format!("{what}.{image}"));
        let labels: Vec<u32> = get("resized_image.labels").to_vec1().unwrap();
        let found: Vec<u32> = detections.instances.iter().map(|i| i.label).collect();
        assert_eq!(found, labels, "labels of image {image}");
        let tensors = detections.to_tensors(&candle_core::Device::Cpu).unwrap();
        let difference = largest_difference(&tensors.scores, &get("resized_image.scores"));
        assert!(difference < 1e-3, "scores of image {image} differ by {difference}");
        let difference = largest_difference(&tensors.boxes, &get("final.boxes"));
        assert!(difference < 0.05, "boxes of image {image} differ by {difference} px");
    }
}

/// The last two stages are what the pyramid gets.
fn compare_body(fixture: &Fixture, pixels: &Tensor) {
    let config = ModelConfig::load(&fixtures().join(format!("{NAME}.toml"))).unwrap();
    assert!(matches!(config.body, BodyConfig::MobileNetV3Large(_)));
    let path = fixtures().join(format!("{NAME}.safetensors"));
    let device = candle_core::Device::Cpu;
    let tensors = candle_core::safetensors::load(path, &device).unwrap();
    let weights = VarBuilder::from_tensors(tensors, candle_core::DType::F32, &device);
    let body = config.body.build(&weights.pp("backbone.body")).unwrap();
    let stages = body.forward(pixels).unwrap();
    assert_eq!(stages.len(), body.stages().len());
    for (found, stage) in stages.iter().zip(body.stages()) {
        let (_, height, width, channels) = found.dims4().unwrap();
        let (_, full_height, full_width, _) = pixels.dims4().unwrap();
        let size = (full_height / stage.stride, full_width / stage.stride);
        assert_eq!((height, width, channels), (size.0, size.1, stage.channels));
    }
    for (level, found) in stages[4..].iter().enumerate() {
        let key = format!("body.{level}");
        assert_features(found, &fixture.features(&key), &key);
    }
}

fn compare_rpn(
    fixture: &Fixture,
    rcnn: &GeneralizedRcnn,
    features: &FeatureMaps,
    geometry: &BatchGeometry,
) {
    let predicted = rcnn.rpn.predict(features).unwrap();
    for level in 0..features.levels.len() {
        let key = format!("rpn.objectness.{level}");
        assert_features(&first(&predicted.objectness[level]), &fixture.features(&key), &key);
        let key = format!("rpn.deltas.{level}");
        assert_features(&first(&predicted.deltas[level]), &fixture.features(&key), &key);
    }
    let anchors = rcnn.rpn.anchor_generator().generate(geometry, &predicted.objectness).unwrap();
    assert_eq!(values(&anchors), values(&fixture.tensor("anchors")), "anchors");
    let proposals = rcnn.rpn.propose(&predicted, geometry, rcnn.rpn.limits()).unwrap();
    for (image, count) in proposals.counts.to_vec1::<u32>().unwrap().iter().enumerate() {
        let expected = fixture.tensor(&format!("rpn.proposals.{image}"));
        assert_eq!(*count as usize, expected.dims()[0], "proposals of image {image}");
        let found = proposals.boxes.get(image).unwrap().narrow(0, 0, *count as usize).unwrap();
        let difference = largest_difference(&found, &expected);
        assert!(difference < PIXELS, "proposals of image {image} differ by {difference} px");
    }
}

/// Feeds the reference's own proposals, so that this stage is compared alone. Both levels have the same stride, so that all
/// boxes are pooled from the first, as torchvision has it.
fn compare_heads(
    fixture: &Fixture,
    rcnn: &GeneralizedRcnn,
    features: &FeatureMaps,
    geometry: &BatchGeometry,
) {
    let boxes: Vec<Tensor> =
        (0..2).map(|image| fixture.tensor(&format!("rpn.proposals.{image}"))).collect();
    let counts: Vec<u32> = boxes.iter().map(|boxes| boxes.dims()[0] as u32).collect();
    assert_eq!(counts[0], counts[1], "the fixtures have as many proposals in both images");
    let boxes = Tensor::stack(&boxes, 0).unwrap();
    let (n, k, _) = boxes.dims3().unwrap();
    let proposals = Proposals {
        scores: Tensor::zeros((n, k), candle_core::DType::F32, boxes.device()).unwrap(),
        counts: Tensor::new(counts, boxes.device()).unwrap(),
        boxes,
    };
    let pooled =
        rcnn.roi_heads.pool(features, &proposals.boxes, &proposals.counts, geometry).unwrap();
    let (logits, deltas) = rcnn.roi_heads.predict(&pooled, FilledRows::All).unwrap();
    assert_features(&logits, &fixture.tensor("box.class_logits"), "box.class_logits");
    assert_features(&deltas, &fixture.tensor("box.deltas"), "box.deltas");
}

#[cfg(feature = "train")]
mod training {
    use candle_core::Device;

    use super::common::training::{Reference, compare_step};
    use super::*;

    /// Of a gradient, relative to its largest entry; or this many times what the reference's own gradient changes when all
    /// weights are perturbed by three parts in ten million.
    const TOLERANCE: (f32, f32) = (1e-3, 3.0);

    #[test]
    fn losses_and_gradients_are_torchvisions() {
        let reference = Reference::load(NAME);
        let mut compared = 0;
        for case in ["objects", "one_empty", "all_empty"] {
            // All parts of the body learn.
            let network = reference.network(&Device::Cpu, 6);
            let (_, gradients) = compare_step(&network, &reference, case);
            let prefix = format!("{case}/grad.");
            let mut faults = Vec::new();
            for (key, expected) in &reference.tensors {
                let Some(name) = key.strip_prefix(&prefix) else { continue };
                let found = gradients.get(name).unwrap().unwrap();
                let noise = values(&reference.tensors[&format!("{case}/noise.{name}")])[0];
                let (difference, largest) =
                    (largest_difference(&found, expected), largest_value(expected));
                if difference > TOLERANCE.0.max(TOLERANCE.1 * noise) * largest {
                    faults.push(format!("{name}: {difference} of {largest}, noise {noise}"));
                }
                compared += 1;
            }
            assert!(faults.is_empty(), "{case}, {} differ:\n{}", faults.len(), faults.join("\n"));
        }
        assert!(compared > 100, "{compared}");
    }
}
