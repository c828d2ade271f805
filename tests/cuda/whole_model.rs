//! Whole models: the same detections as on the CPU, with one upload and one download.

use candle_core::{DType, Device};
use candle_detection::config::ModelConfig;
use candle_detection::rcnn::GeneralizedRcnn;
use candle_detection::structures::Detections;
use candle_detection::{
    Detector, DetectorBuilder, Execution, ImageInput, Weights, device, transform,
};

use super::common::{Fixture, fixtures, sample_data};
use super::counters::{Counts, alone, count};
use super::support::cuda;

/// Pixels of boxes.
const PIXELS: f32 = 1e-3;
/// Scores and mask probabilities.
const PROBABILITY: f32 = 1e-3;
/// Pixels of keypoints, whose places follow from the sides of a box, rounded up.
const KEYPOINT_PIXELS: f32 = 2e-3;
/// Logits of keypoints.
const KEYPOINT_SCORE: f32 = 1e-3;

pub fn tiny(name: &str, device: Device) -> Detector {
    let file = |extension: &str| fixtures().join(format!("{name}.{extension}"));
    DetectorBuilder::new(ModelConfig::load(&file("toml")).unwrap())
        .weights(Weights::File(file("safetensors")))
        .device(device)
        .build()
        .unwrap()
}

#[track_caller]
fn assert_same(found: &[Detections], expected: &[Detections], pixels: f32, probability: f32) {
    assert_eq!(found.len(), expected.len());
    for (image, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.instances.len(), expected.instances.len(), "detections of image {image}");
        for (a, b) in found.instances.iter().zip(&expected.instances) {
            assert_eq!(a.label, b.label);
            assert!((a.score - b.score).abs() <= probability, "{} {}", a.score, b.score);
            let corners = |d: &candle_detection::structures::BoxXyxy| [d.x1, d.y1, d.x2, d.y2];
            for (p, q) in corners(&a.bbox).iter().zip(corners(&b.bbox)) {
                assert!((p - q).abs() <= pixels, "{:?} {:?}", a.bbox, b.bbox);
            }
            assert_eq!(a.mask.is_some(), b.mask.is_some());
            if let (Some(p), Some(q)) = (&a.mask, &b.mask) {
                for (p, q) in p.probabilities().iter().zip(q.probabilities()) {
                    assert!((p - q).abs() <= probability, "{p} {q}");
                }
            }
            assert_eq!(a.keypoints.is_some(), b.keypoints.is_some());
            let keypoints = a.keypoints.iter().flatten().zip(b.keypoints.iter().flatten());
            for (p, q) in keypoints {
                let apart = (p.x - q.x).abs().max((p.y - q.y).abs());
                assert!(apart <= KEYPOINT_PIXELS, "{p:?} {q:?}");
                assert!((p.score - q.score).abs() <= KEYPOINT_SCORE, "{p:?} {q:?}");
            }
        }
    }
}

pub fn compare(model: &str) {
    let images = Fixture::load(model).images();
    let expected = tiny(model, Device::Cpu).detect_batch(&images).unwrap();
    assert!(expected.iter().all(|image| !image.instances.is_empty()), "nothing to compare");
    let found = tiny(model, cuda()).detect_batch(&images).unwrap();
    assert_same(&found, &expected, PIXELS, PROBABILITY);
}

#[test]
fn layout_of_the_v1_models() {
    let _alone = alone();
    compare("tiny_r18");
}

#[test]
fn layout_of_the_v2_models() {
    let _alone = alone();
    compare("tiny_r50_v2");
}

/// Convolutions of each channel by itself, squeeze and excitation, hard swish.
#[test]
fn faster_rcnn_on_mobilenet() {
    let _alone = alone();
    compare("tiny_mobilenet");
    let detector = tiny("tiny_mobilenet", cuda());
    assert_budget(&detector, &Fixture::load("tiny_mobilenet").images());
}

#[test]
fn keypoint_rcnn() {
    let _alone = alone();
    let model = "tiny_keypointrcnn";
    compare(model);
    let images = Fixture::load(model).images();
    assert_budget(&tiny(model, cuda()), &images);
    let expected = tiny(model, Device::Cpu).detect_batch(&images).unwrap();
    let graphs = tiny_by_graphs(model);
    for _ in 0..2 {
        assert_same(&graphs.detect_batch(&images).unwrap(), &expected, PIXELS, PROBABILITY);
    }
}

/// One upload, the pixels; one download, the detections, which the host waits for; and no other copy or wait.
#[track_caller]
pub fn assert_budget(detector: &Detector, images: &[ImageInput]) {
    detector.detect_batch(images).unwrap();
    let (_, counts) = count(|| detector.detect_batch(images).unwrap());
    let Some(counts) = counts else { return };
    println!("forward pass of {} images: {counts:?}", images.len());
    let expected = Counts {
        host_to_device: 1,
        device_to_host: 1,
        device_to_device: 0,
        synchronizations: 1,
        launches: counts.launches,
    };
    assert_eq!(counts, expected);
}

#[test]
fn a_forward_pass_makes_one_upload_and_one_download() {
    let _alone = alone();
    let images = Fixture::load("tiny_r18").images();
    let detector = tiny("tiny_r18", cuda());
    assert_budget(&detector, &images);
    assert_budget(&detector, &images[..1]);
}

#[test]
fn an_image_without_objects_costs_the_same() {
    let _alone = alone();
    let detector = tiny("tiny_r18", cuda());
    let grey = ImageInput::from_rgb8(64, 48, vec![128; 64 * 48 * 3]).unwrap();
    let mut settings = detector.settings();
    settings.detections.score_threshold = 0.9999;
    let detections = detector.detect_with(std::slice::from_ref(&grey), &settings).unwrap();
    assert!(detections[0].instances.is_empty());
    assert_budget(&detector, std::slice::from_ref(&grey));
}

fn tiny_by_graphs(name: &str) -> Detector {
    let file = |extension: &str| fixtures().join(format!("{name}.{extension}"));
    DetectorBuilder::new(ModelConfig::load(&file("toml")).unwrap())
        .weights(Weights::File(file("safetensors")))
        .device(cuda())
        .execution(Execution::Graphs)
        .build()
        .unwrap()
}

/// A replay of other pixels gives their detections, by one upload, one start and one download.
#[test]
fn a_recorded_forward_pass_is_replayed_for_other_images_of_its_size() {
    let _alone = alone();
    let model = "tiny_r18";
    let images = Fixture::load(model).images();
    let fixture = Fixture::load(model);
    let mirrored: Vec<ImageInput> = (0..images.len())
        .map(|i| {
            let pixels = fixture.tensor(&format!("image.{i}"));
            let (height, width, _) = pixels.dims3().unwrap();
            let bytes: Vec<u8> = pixels.flatten_all().unwrap().to_vec1().unwrap();
            let reversed: Vec<[u8; 3]> = bytes.as_chunks::<3>().0.iter().rev().copied().collect();
            ImageInput::from_rgb8(width, height, reversed.into_flattened()).unwrap()
        })
        .collect();
    let (direct, graphs) = (tiny(model, Device::Cpu), tiny_by_graphs(model));
    for images in [&images, &mirrored, &images] {
        let expected = direct.detect_batch(images).unwrap();
        let (found, counts) = count(|| graphs.detect_batch(images).unwrap());
        assert_same(&found, &expected, PIXELS, PROBABILITY);
        println!("forward pass by graph: {counts:?}");
    }
    let (_, counts) = count(|| graphs.detect_batch(&mirrored).unwrap());
    let expected =
        Counts { host_to_device: 1, device_to_host: 1, synchronizations: 1, ..Counts::default() };
    assert_eq!(counts.unwrap_or(expected), expected);
    // Another size, and back.
    for images in [&images[..1], &images[1..], &images[..]] {
        let expected = direct.detect_batch(images).unwrap();
        assert_same(&graphs.detect_batch(images).unwrap(), &expected, PIXELS, PROBABILITY);
    }
}

/// The published architecture stage by stage: only the first uploads, only the last downloads.
#[test]
fn every_stage_keeps_to_its_budget() {
    let _alone = alone();
    let detector = Detector::builder("maskrcnn_resnet50_fpn")
        .unwrap()
        .weights(Weights::Random { seed: 1 })
        .device(cuda())
        .configure(|config| {
            config.image.min_size = 64;
            config.image.max_size = 96;
            config.architecture.as_rcnn_mut().unwrap().rpn.post_nms_top_n = 20;
            config.detections.per_image = 3;
        })
        .build()
        .unwrap();
    let image = [ImageInput::from_rgb8(96, 64, vec![128; 96 * 64 * 3]).unwrap()];
    detector.detect_batch(&image).unwrap();

    let network = detector.network();
    let rcnn = network.parts::<GeneralizedRcnn>().unwrap();
    let settings = detector.settings();
    let to_batch = || transform::to_batch(&image, &settings.image, &cuda(), detector.dtype());
    let batch = stage("transform", Counts { host_to_device: 1, ..NOTHING }, to_batch);
    let features = stage("backbone", NOTHING, || network.backbone.forward(&batch.pixels));
    let predicted = stage("rpn head", NOTHING, || rcnn.rpn.predict(&features));
    let geometry = &batch.geometry;
    let anchors = || rcnn.rpn.anchor_generator().generate(geometry, &predicted.objectness);
    stage("anchors", NOTHING, anchors);
    let proposals =
        stage("proposals", NOTHING, || rcnn.rpn.propose(&predicted, geometry, rcnn.rpn.limits()));
    let detect = || rcnn.roi_heads.detect(&features, &proposals, geometry, &settings.detections);
    let instances = stage("box head and detections", NOTHING, detect);
    let head = &rcnn.instance_heads[0];
    let masks = stage("mask head", NOTHING, || head.forward(&features, &instances, geometry));
    let extras = [(head.name().to_owned(), masks)].into();
    let results =
        stage("boxes to the original", NOTHING, || transform::restore(instances, extras, geometry));
    let one_download = Counts { device_to_host: 1, synchronizations: 1, ..NOTHING };
    stage("results to the host", one_download, || results.to_host());
}

const NOTHING: Counts = Counts {
    host_to_device: 0,
    device_to_host: 0,
    device_to_device: 0,
    synchronizations: 0,
    launches: 0,
};

/// Runs a stage, prints what it asked of the driver, and compares all but the launches.
#[track_caller]
fn stage<T>(name: &str, budget: Counts, work: impl FnOnce() -> candle_detection::Result<T>) -> T {
    let before = device::traffic();
    let (result, counts) = count(work);
    let after = device::traffic();
    let (launches, products) = (after.launches - before.launches, after.products - before.products);
    if let Some(counts) = counts {
        println!("{name}: {launches} launches, {products} products; {counts:?}");
        assert_eq!(counts.launches, launches, "{name}: a launch that is not ours");
        assert_eq!(Counts { launches: 0, ..counts }, budget, "{name}");
    }
    result.unwrap()
}

/// The published architecture with real weights, on a photo made small.
#[test]
fn full_size_weights_on_a_photo() {
    let _alone = alone();
    let Some(data) = sample_data("full_size_weights_on_a_photo") else { return };
    let weights = data.join("weights/maskrcnn_coco12.safetensors");
    let photo = data.join("coco-samples/val2017-png/000000022192.png");
    let photo = ImageInput::open(&photo).unwrap();
    let detect = |device: Device| {
        let detector = Detector::builder("maskrcnn_resnet50_fpn")
            .unwrap()
            .weights(Weights::File(weights.clone()))
            .device(device)
            .dtype(DType::F32)
            .configure(|config| {
                config.image.min_size = 160;
                config.image.max_size = 224;
                config.detections.per_image = 10;
            })
            .build()
            .unwrap();
        detector.detect(&photo).unwrap()
    };
    let (found, expected) = (detect(cuda()), detect(Device::Cpu));
    assert!(!expected.instances.is_empty(), "nothing to compare");
    assert_same(&[found], &[expected], 10.0 * PIXELS, PROBABILITY);
}
