//! Every stage against torchvision's tensors, on two narrow models with the layouts of the V1 and V2 families.
//!
//! The stages are compared in the order of the forward pass, so that the first failure is the stage at fault.

mod common;

use candle_core::Tensor;
use candle_detection::ops::FilledRows;
use candle_detection::rcnn::GeneralizedRcnn;
use candle_detection::structures::{BatchGeometry, FeatureMaps, Proposals};
use candle_detection::{ImageInput, transform};
use common::{Fixture, largest_difference, largest_value, values};

/// Features and logits: difference relative to the largest value.
const RELATIVE: f32 = 1e-4;
/// Boxes, in pixels.
const PIXELS: f32 = 0.01;

#[test]
fn layout_of_the_v1_models() {
    compare_all_stages("tiny_r18");
}

#[test]
fn layout_of_the_v2_models() {
    compare_all_stages("tiny_r50_v2");
}

fn compare_all_stages(model: &str) {
    let fixture = Fixture::load(model);
    let detector = fixture.detector();
    let network = detector.network();
    let images = fixture.images();

    let batch =
        transform::to_batch(&images, &detector.config().image, detector.device(), detector.dtype())
            .unwrap();
    if fixture.has("transformed") {
        assert_features(&batch.pixels, &fixture.features("transformed"), "transform");
    }
    let resized: Vec<u32> =
        fixture.tensor("resized_sizes").flatten_all().unwrap().to_vec1().unwrap();
    let found = batch.geometry.resized_sizes();
    let found: Vec<u32> = found.iter().flat_map(|(h, w)| [*h as u32, *w as u32]).collect();
    assert_eq!(found, resized, "resized sizes");

    let features = network.backbone.forward(&batch.pixels).unwrap();
    for (level, found) in network.backbone.levels().iter().zip(&features.levels) {
        let key = format!("fpn.{}", level.name);
        assert_features(found, &fixture.features(&key), &key);
    }
    let rcnn = network.parts::<GeneralizedRcnn>().unwrap();
    compare_rpn(&fixture, rcnn, &features, &batch.geometry);
    compare_roi_heads(&fixture, rcnn, &features, &batch.geometry);
    compare_detections(&fixture, &detector.detect_batch(&images).unwrap());
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
        assert_features(&predicted.objectness[level], &fixture.features(&key), &key);
        let key = format!("rpn.deltas.{level}");
        assert_features(&predicted.deltas[level], &fixture.features(&key), &key);
    }
    let anchors = rcnn.rpn.anchor_generator().generate(geometry, &predicted.objectness).unwrap();
    assert_eq!(values(&anchors), values(&fixture.tensor("rpn.anchors")), "anchors");

    let proposals = rcnn.rpn.propose(&predicted, geometry, rcnn.rpn.limits()).unwrap();
    let counts: Vec<u32> = proposals.counts.to_vec1().unwrap();
    for (image, count) in counts.iter().enumerate() {
        let expected = fixture.tensor(&format!("rpn.proposals.{image}"));
        assert_eq!(*count as usize, expected.dims()[0], "proposals of image {image}");
        let row = proposals.boxes.get(image).unwrap();
        let difference = largest_difference(&row.narrow(0, 0, *count as usize).unwrap(), &expected);
        assert!(difference < PIXELS, "proposals of image {image} differ by {difference} px");
        let unused = row.narrow(0, *count as usize, row.dims()[0] - *count as usize).unwrap();
        assert!(values(&unused).iter().all(|v| *v == 0.0), "slots above the count are zero");
    }
}

/// Feeds the reference's own proposals, so that this stage is compared alone.
fn compare_roi_heads(
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
    assert_features(&pooled, &fixture.features("box.roi_features"), "box.roi_features");
    let (class_logits, box_regression) = rcnn.roi_heads.predict(&pooled, FilledRows::All).unwrap();
    assert_features(&class_logits, &fixture.tensor("box.class_logits"), "box.class_logits");
    assert_features(&box_regression, &fixture.tensor("box.deltas"), "box.deltas");
}

fn compare_detections(fixture: &Fixture, found: &[candle_detection::structures::Detections]) {
    for (image, detections) in found.iter().enumerate() {
        let get = |what: &str| fixture.tensor(&format!("{what}.{image}"));
        let labels: Vec<u32> = get("resized_image.labels").to_vec1().unwrap();
        let found: Vec<u32> = detections.instances.iter().map(|i| i.label).collect();
        assert_eq!(found, labels, "labels of image {image}");
        let tensors = detections.to_tensors(&candle_core::Device::Cpu).unwrap();
        let difference = largest_difference(&tensors.scores, &get("resized_image.scores"));
        assert!(difference < 1e-3, "scores of image {image} differ by {difference}");
        let difference = largest_difference(&tensors.boxes, &get("final.boxes"));
        assert!(difference < 0.05, "boxes of image {image} differ by {difference} px");
        compare_masks(&tensors.masks.unwrap(), &get("final.masks"), image);
    }
}

/// At most one pixel in a thousand of each pasted mask may fall on the other side of 0.5.
fn compare_masks(found: &Tensor, expected: &Tensor, image: usize) {
    assert_eq!(found.dims(), expected.dims());
    for slot in 0..found.dims()[0] {
        let found = values(&found.get(slot).unwrap());
        let expected = values(&expected.get(slot).unwrap());
        let differing = found.iter().zip(&expected).filter(|(f, e)| (**f > 0.5) != (**e > 0.5));
        let differing = differing.count();
        assert!(
            differing * 1000 <= found.len(),
            "mask {slot} of image {image}: {differing} pixels differ"
        );
    }
}

#[track_caller]
fn assert_features(found: &Tensor, expected: &Tensor, stage: &str) {
    assert_eq!(found.dims(), expected.dims(), "{stage}");
    let difference = largest_difference(found, expected);
    let largest = largest_value(expected);
    assert!(
        difference <= RELATIVE * largest,
        "{stage} differs by {difference}, its largest value is {largest}"
    );
}

/// A batch of images of different sizes gives what the images give alone, up to what padding does to the borders.
#[test]
fn equal_sizes_in_a_batch_change_nothing() {
    let fixture = Fixture::load("tiny_r18");
    let detector = fixture.detector();
    let image: ImageInput = fixture.images().remove(0);
    let alone = detector.detect(&image).unwrap();
    let batch = detector.detect_batch(&[image.clone(), image]).unwrap();
    assert!(!alone.instances.is_empty());
    for detections in &batch {
        assert_eq!(detections.instances.len(), alone.instances.len());
        for (a, b) in detections.instances.iter().zip(&alone.instances) {
            assert_eq!((a.label, a.bbox, a.score), (b.label, b.bbox, b.score));
        }
    }
}
