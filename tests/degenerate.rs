//! Inputs at the edge of what is allowed, through the whole model: each gives a result or an error that says why.

mod common;

use candle_core::{Device, Tensor};
use candle_detection::structures::{Detections, ImageSize};
use candle_detection::{Detector, ImageInput};
use common::{Fixture, fixtures};

fn tiny() -> (Fixture, Detector) {
    let fixture = Fixture::load("tiny_r18");
    let detector = fixture.detector();
    (fixture, detector)
}

fn plain(width: usize, height: usize, value: u8) -> ImageInput {
    ImageInput::from_rgb8(width, height, vec![value; width * height * 3]).unwrap()
}

/// A picture with some structure, so that something may be found.
fn striped(width: usize, height: usize) -> ImageInput {
    let pixel = |i: usize| ((i / 3 % width) * 37 + (i / 3 / width) * 91 + i % 3 * 53) as u8;
    ImageInput::from_rgb8(width, height, (0..width * height * 3).map(pixel).collect()).unwrap()
}

fn assert_sound(found: &Detections, size: ImageSize) {
    assert_eq!(found.image_size, size);
    for instance in &found.instances {
        let b = instance.bbox;
        let inside = 0.0 <= b.x1 && b.x1 < b.x2 && b.x2 <= size.width as f32 + 0.01;
        assert!(inside && 0.0 <= b.y1 && b.y1 < b.y2 && b.y2 <= size.height as f32 + 0.01, "{b:?}");
        assert!(instance.score > 0.05 && instance.score <= 1.0);
        assert!(instance.label > 0);
    }
    assert!(found.instances.is_sorted_by(|a, b| a.score >= b.score));
}

#[test]
fn every_size_from_one_pixel_on() {
    let (_, detector) = tiny();
    for (width, height) in [(1, 1), (5000, 1), (1, 5000), (31, 17), (200, 25), (25, 200), (97, 161)]
    {
        let found = detector.detect(&striped(width, height)).unwrap();
        assert_sound(&found, ImageSize { height, width });
    }
}

#[test]
fn nothing_found_gives_empty_tensors_of_the_right_shapes() {
    let (_, detector) = tiny();
    let mut settings = detector.settings();
    settings.detections.score_threshold = 1.0;
    let images = [plain(40, 30, 0), striped(61, 47)];
    let found = detector.detect_with(&images, &settings).unwrap();
    let tensors = found[0].to_tensors(&Device::Cpu).unwrap();
    assert_eq!(tensors.boxes.dims(), [0, 4]);
    assert_eq!(tensors.labels.dims(), [0]);
    assert_eq!(tensors.scores.dims(), [0]);
    assert_eq!(tensors.masks.unwrap().dims(), [0, 1, 30, 40]);
    assert!(found[1].instances.is_empty());
    let again = detector.detect(&striped(101, 61)).unwrap();
    assert!(!again.instances.is_empty(), "the next image still works");
}

#[test]
fn masks_are_probabilities_in_the_layout_of_torchvision() {
    let (fixture, detector) = tiny();
    let image = fixture.images().remove(0);
    let found = detector.detect(&image).unwrap();
    let masks = found.to_tensors(&Device::Cpu).unwrap().masks.unwrap();
    let ImageSize { height, width } = image.size();
    assert_eq!(masks.dims(), [found.instances.len(), 1, height, width]);
    let values = common::values(&masks);
    assert!(values.iter().all(|p| (0.0..=1.0).contains(p)));
    assert!(values.iter().any(|p| *p > 0.0 && *p < 1.0), "soft, not binary");
}

#[test]
fn images_of_several_sizes_come_back_in_order() {
    let (_, detector) = tiny();
    let sizes = [(61, 101), (120, 40), (33, 80)];
    let images: Vec<ImageInput> = sizes.iter().map(|(h, w)| striped(*w, *h)).collect();
    let found = detector.detect_batch(&images).unwrap();
    assert_eq!(found.len(), 3);
    for ((height, width), found) in sizes.into_iter().zip(&found) {
        assert_sound(found, ImageSize { height, width });
    }
    assert!(detector.detect_batch(&[]).unwrap().is_empty());
}

/// Two images of one size fill the same canvas as each alone, so that nothing but rounding may differ.
#[test]
fn a_batch_of_one_size_equals_single_images() {
    let (_, detector) = tiny();
    let images = [striped(101, 61), plain(101, 61, 90)];
    let together = detector.detect_batch(&images).unwrap();
    for (image, batched) in images.iter().zip(&together) {
        let alone = detector.detect(image).unwrap();
        assert_eq!(alone.instances.len(), batched.instances.len());
        for (a, b) in alone.instances.iter().zip(&batched.instances) {
            assert_eq!(a.label, b.label);
            assert!((a.score - b.score).abs() < 1e-4);
        }
    }
}

#[test]
fn pixels_may_come_as_a_tensor() {
    let (fixture, detector) = tiny();
    let image = fixture.images().remove(0);
    let ImageSize { height, width } = image.size();
    let bytes = fixture.tensor("image.0");
    assert_eq!(bytes.dims(), [height, width, 3]);
    let planar = bytes.permute((2, 0, 1)).unwrap().contiguous().unwrap();
    let from_bytes = ImageInput::from_tensor(&planar).unwrap();
    let expected = detector.detect(&image).unwrap();
    let found = detector.detect(&from_bytes).unwrap();
    assert_eq!(found.instances.len(), expected.instances.len());
    for (a, b) in found.instances.iter().zip(&expected.instances) {
        assert!(a.label == b.label && (a.score - b.score).abs() < 1e-4);
    }
}

/// A diverged model, or pixels that are no numbers, must not look healthy nor end the process.
#[test]
fn nan_pixels_give_no_detection() {
    let (_, detector) = tiny();
    let pixels = Tensor::full(f32::NAN, (3, 40, 60), &Device::Cpu).unwrap();
    let found = detector.detect(&ImageInput::from_tensor(&pixels).unwrap()).unwrap();
    assert!(found.instances.is_empty());
}

#[test]
fn settings_that_make_no_sense_are_named() {
    let (_, detector) = tiny();
    let mut settings = detector.settings();
    settings.detections.score_threshold = f32::NAN;
    let message = detector.detect_with(&[plain(8, 8, 0)], &settings).unwrap_err().to_string();
    assert!(message.contains("settings: `detections.score_threshold` is NaN"), "{message}");
}

#[test]
fn thresholds_change_from_call_to_call() {
    let (fixture, detector) = tiny();
    let images = fixture.images();
    let all = detector.detect_batch(&images).unwrap();
    let mut settings = detector.settings();
    settings.detections.per_image = 3;
    settings.detections.score_threshold = all[0].instances[1].score;
    let fewer = detector.detect_with(&images, &settings).unwrap();
    assert_eq!(fewer[0].instances.len(), 1, "strictly above the second score");
    assert!(fewer[1].instances.len() <= 3);
    assert_eq!(detector.detect_batch(&images).unwrap()[0].instances.len(), all[0].instances.len());
}

#[test]
fn more_candidates_than_capacity_keep_the_best() {
    let (fixture, detector) = tiny();
    let mut settings = detector.settings();
    settings.detections.score_threshold = 0.0;
    settings.detections.nms_threshold = 1.0;
    settings.detections.per_image = 100;
    let found = detector.detect_with(&fixture.images(), &settings).unwrap();
    for detections in &found {
        // 24 proposals × 4 classes are fewer than 100; all of them, in order.
        assert!(detections.instances.len() > 90, "{}", detections.instances.len());
        assert!(detections.instances.is_sorted_by(|a, b| a.score >= b.score));
    }
    settings.detections.per_image = 10;
    let best = detector.detect_with(&fixture.images(), &settings).unwrap();
    let scores =
        |d: &Detections, n| d.instances.iter().take(n).map(|i| i.score).collect::<Vec<_>>();
    assert_eq!(scores(&best[0], 10), scores(&found[0], 10));
}

#[test]
fn one_detector_serves_several_threads() {
    let (fixture, detector) = tiny();
    let images = fixture.images();
    let expected = detector.detect(&images[0]).unwrap();
    std::thread::scope(|scope| {
        let runs: Vec<_> =
            (0..3).map(|_| scope.spawn(|| detector.detect(&images[0]).unwrap())).collect();
        for run in runs {
            let found = run.join().unwrap();
            let same = found.instances.iter().zip(&expected.instances);
            assert_eq!(found.instances.len(), expected.instances.len());
            assert!(same.into_iter().all(|(a, b)| a.bbox == b.bbox && a.score == b.score));
        }
    });
}

#[test]
fn a_weight_file_for_another_model_is_refused_in_words() {
    let refused = |config: &str, weights: &str| {
        let file = |name: &str| fixtures().join(name);
        match Detector::from_files(&file(config), &file(weights)) {
            Ok(_) => panic!("{weights} must not fit {config}"),
            Err(error) => error.to_string(),
        }
    };
    let message = refused("tiny_r18.toml", "tiny_r50_v2.safetensors");
    assert!(message.contains("tiny_r50_v2.safetensors does not fit `tiny_r18`"), "{message}");
    assert!(message.contains("missing in the file"), "{message}");
}
