use std::sync::Arc;

use image::{Rgb, RgbImage};

use super::label::Typeface;
use super::*;
use crate::config::CategorySource;
use crate::structures::{BoxXyxy, ImageSize, InstanceParts, Keypoint, Mask};

fn coco() -> Categories {
    CategorySource::Named("coco".into()).resolve("test", 91).unwrap()
}

/// A disc of probabilities.
fn disc(side: usize) -> Arc<[f32]> {
    let at = |i: usize| (i as f32 + 0.5) / side as f32 * 2.0 - 1.0;
    (0..side * side)
        .map(|i| 1.0 / (1.0 + ((at(i % side).hypot(at(i / side)) - 0.85) * 25.0).exp()))
        .collect()
}

/// Boxes in shares of the image, one over its edge, two on each other, one tiny.
fn scene(width: u32, height: u32) -> Detections {
    let image_size = ImageSize { height: height as usize, width: width as usize };
    let (w, h) = (width as f32, height as f32);
    let instances = [
        (1, 0.98, [0.1, 0.15, 0.42, 0.9]),
        (18, 0.93, [0.45, 0.5, 0.75, 0.85]),
        (3, 0.88, [0.7, -0.05, 1.1, 0.35]),
        (1, 0.71, [0.1, 0.16, 0.36, 0.6]),
        (77, 0.66, [0.52, 0.25, 0.56, 0.32]),
        (12, 0.51, [0.8, 0.6, 0.97, 0.97]),
    ]
    .map(|(label, score, [x1, y1, x2, y2])| {
        let bbox = BoxXyxy { x1: x1 * w, y1: y1 * h, x2: x2 * w, y2: y2 * h };
        let mask = Mask::new(28, disc(28), bbox, image_size).unwrap();
        Instance { bbox, label, score, mask: (label != 12).then_some(mask), keypoints: None }
    });
    Detections { image_size, instances: instances.into(), parts: InstanceParts::MASKS }
}

fn background(width: u32, height: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| {
        let (u, v) = (x as f32 / width as f32, y as f32 / height as f32);
        Rgb([(60.0 + 120.0 * u) as u8, (90.0 + 90.0 * v) as u8, (150.0 - 60.0 * u * v) as u8])
    })
}

fn changed(a: &RgbImage, b: &RgbImage) -> usize {
    a.pixels().zip(b.pixels()).filter(|(a, b)| a != b).count()
}

/// With DRAWINGS set to a folder, drawings are saved there to be looked at.
fn keep(image: &RgbImage, name: &str) {
    if let Some(folder) = std::env::var_os("DRAWINGS") {
        image.save(std::path::Path::new(&folder).join(name)).unwrap();
    }
}

#[test]
fn every_size_of_image_is_drawn_on() {
    for (width, height) in [(640, 480), (4000, 3000), (100, 80), (30, 400)] {
        let before = background(width, height);
        let mut image = before.clone();
        draw(&mut image, &scene(width, height), &coco(), &Style::default());
        keep(&image, &format!("{width}x{height}.png"));
        let share = changed(&before, &image) as f64 / f64::from(width * height);
        assert!((0.2..0.9).contains(&share), "{width}×{height}: {share}");
        // Between the objects nothing is touched.
        let (x, y) = (width * 3 / 100, height * 97 / 100);
        assert_eq!(image.get_pixel(x, y), before.get_pixel(x, y));
    }
}

#[test]
fn a_photo_is_drawn_on() {
    let Some(data) = std::env::var_os("CANDLE_DETECTION_DATA") else {
        println!("skipped: CANDLE_DETECTION_DATA is not set");
        return;
    };
    let photo = std::path::Path::new(&data).join("coco-samples/val2017/000000000802.jpg");
    let before = crate::ImageInput::open(&photo).unwrap().to_rgb8().unwrap();
    let mut image = before.clone();
    draw(&mut image, &scene(before.width(), before.height()), &coco(), &Style::default());
    keep(&image, "photo.png");
    assert!(changed(&before, &image) > before.len() / 3 / 5);
}

#[test]
fn boxes_masks_and_labels_have_the_color_of_their_class() {
    let mut image = RgbImage::new(640, 480);
    let mut detections = scene(640, 480);
    detections.instances.truncate(1);
    draw(&mut image, &detections, &coco(), &Style::default());
    let color = class_color(1);
    // Left edge at 64, two pixels wide; the middle of the disc; the label's background above the box.
    assert_eq!(image.get_pixel(64, 300).0, color);
    let mixed = color.map(|c| (f32::from(c) * 0.45).round() as u8);
    assert_eq!(image.get_pixel(160, 252).0, mixed);
    assert_eq!(image.get_pixel(64, 70).0, color);
    assert_eq!(image.get_pixel(75, 420).0, [0; 3], "corner of the box, outside the disc");
    let plain = Style { mask_opacity: 0.0, ..Style::default() };
    let mut outlined = RgbImage::new(640, 480);
    draw(&mut outlined, &detections, &coco(), &plain);
    assert_eq!(outlined.get_pixel(160, 252).0, [0; 3]);
}

#[test]
fn outlines_are_as_wide_as_asked() {
    // A square of 9 × 9 in a region of 11 × 11 whose right part is cut off by the image.
    let probabilities = (0..121)
        .map(|i| if (1..10).contains(&(i / 11)) && i % 11 > 0 { 1.0 } else { 0.0 })
        .collect();
    let region = MaskRegion { x: 0, y: 0, width: 11, height: 11, probabilities };
    for line in 1..=4u32 {
        let kinds = classify(&region, 0.5, line);
        let row = &kinds[5 * 11..][..11];
        let edge = line as usize;
        assert_eq!(row[0], OUTSIDE);
        assert!(row[1..=edge].iter().all(|&kind| kind == EDGE), "{line}: {row:?}");
        assert!(row[edge + 1..].iter().all(|&kind| kind == INSIDE), "{line}: {row:?}");
    }
    assert_eq!(classify(&region, 0.5, 9).iter().filter(|&&kind| kind == EDGE).count(), 90);
}

#[test]
fn hopeless_images_and_boxes() {
    let nan = f32::NAN;
    for (width, height) in [(1, 1), (2, 1), (1, 300), (12, 9), (0, 0)] {
        let mut detections = scene(width, height);
        for b in [
            [nan, 0.0, 1.0, 1.0],
            [0.0, 0.0, f32::INFINITY, 1.0],
            [-1e30, -1e30, 1e30, 1e30],
            [5.0, 5.0, 2.0, 2.0],
            [1e9, 1e9, 2e9, 2e9],
            [0.0, 0.0, 0.0, 0.0],
        ] {
            let mut instance = detections.instances[0].clone();
            instance.bbox = BoxXyxy { x1: b[0], y1: b[1], x2: b[2], y2: b[3] };
            instance.score = nan;
            detections.instances.push(instance.clone());
            instance.score = 0.5;
            detections.instances.push(instance);
        }
        let mut image = RgbImage::new(width, height);
        draw(&mut image, &detections, &coco(), &Style::default());
        for (size, line) in [(nan, u32::MAX), (0.0, 0), (1e30, 7), (-1.0, 1)] {
            let style = Style {
                font_size: Some(size),
                line_width: Some(line),
                mask_opacity: size,
                ..Style::default()
            };
            draw(&mut image, &detections, &coco(), &style);
        }
    }
}

#[test]
fn nothing_found_changes_nothing() {
    let before = background(50, 40);
    let mut image = before.clone();
    let mut detections = scene(50, 40);
    draw(&mut image, &detections, &coco(), &Style { min_score: 0.98, ..Style::default() });
    detections.instances.clear();
    draw(&mut image, &detections, &coco(), &Style::default());
    assert_eq!(image, before);
}

#[test]
fn labels_lie_inside_the_image_and_apart() {
    let typeface = Typeface::new(16.0).unwrap();
    let bounds = Rect { left: 0, top: 0, right: 640, bottom: 480 };
    let mut labels = Labels::new(&typeface, bounds);
    let corner = Rect { left: 600, top: -20, right: 700, bottom: 30 };
    let middle = Rect { left: 200, top: 200, right: 400, bottom: 400 };
    for frame in [corner, corner, middle, middle, middle, middle, middle] {
        labels.place("traffic light 0.87".to_owned(), frame, 2, [255, 0, 0]);
    }
    let areas = labels.areas();
    assert_eq!(areas.len(), 7);
    for (i, area) in areas.iter().enumerate() {
        assert_eq!(area.intersection(bounds), *area);
        assert!(areas[..i].iter().all(|other| other.intersection(*area).is_empty()), "{areas:?}");
    }
    // A label that is wider than the image has no place.
    let narrow = Rect { right: 60, ..bounds };
    let mut labels = Labels::new(&typeface, narrow);
    labels.place("traffic light 0.87".to_owned(), middle, 2, [255, 0, 0]);
    assert!(labels.areas().is_empty());
}

#[test]
fn colors_of_coco_are_apart() {
    let colors: Vec<[u8; 3]> = coco().iter().map(|(id, _)| class_color(id)).collect();
    assert_eq!(class_color(1), class_color(1));
    for (i, a) in colors.iter().enumerate() {
        for b in &colors[..i] {
            let distance: i32 = a.iter().zip(b).map(|(a, b)| i32::from(a.abs_diff(*b))).sum();
            assert!(distance >= 8, "{a:?} and {b:?}");
        }
    }
    for pair in colors.windows(2) {
        let distance: i32 =
            pair[0].iter().zip(&pair[1]).map(|(a, b)| i32::from(a.abs_diff(*b))).sum();
        assert!(distance >= 100, "{pair:?}");
    }
}

/// A person whose shoulders, and what is left of the hips, are on one line each.
fn person() -> Detections {
    let image_size = ImageSize { height: 80, width: 100 };
    let mut keypoints = vec![Keypoint { x: 0.0, y: 0.0, score: -3.0 }; 17];
    keypoints[5] = Keypoint { x: 70.0, y: 20.0, score: 9.0 };
    keypoints[6] = Keypoint { x: 30.0, y: 20.0, score: 2.0 };
    keypoints[11] = Keypoint { x: 70.0, y: 60.0, score: 5.0 };
    keypoints[12] = Keypoint { x: 30.0, y: 60.0, score: 0.0 };
    let bbox = BoxXyxy { x1: 2.0, y1: 2.0, x2: 98.0, y2: 78.0 };
    let person = Instance { bbox, label: 1, score: 0.9, mask: None, keypoints: Some(keypoints) };
    let parts = InstanceParts { masks: false, keypoints: Some(17) };
    Detections { image_size, instances: vec![person], parts }
}

#[test]
fn limbs_join_keypoints_above_the_threshold() {
    let drawn = |style: Style| {
        let mut image = RgbImage::new(100, 80);
        let style = Style { line_width: Some(2), font_size: Some(9.0), ..style };
        draw(&mut image, &person(), &coco(), &style);
        keep(&image, "skeleton.png");
        image
    };
    let color = class_color(1);
    let image = drawn(Style::default());
    // Between the shoulders, and down the left side: the rows on either side of the line.
    for (x, y) in [(50, 19), (50, 20), (69, 40), (70, 40)] {
        assert_eq!(image.get_pixel(x, y).0, color, "{x}, {y}");
    }
    assert_eq!(image.get_pixel(50, 17).0, [0; 3], "beside the line");
    // The middle of a joint is light, on a disc in the color of its class; both are soft at their edges.
    assert_eq!(image.get_pixel(69, 20).0, [255; 3]);
    assert_eq!(image.get_pixel(71, 21).0, color);
    // The right hip's score is the threshold, not above it: neither joint nor limb.
    for (x, y) in [(30, 60), (50, 60), (30, 40)] {
        assert_eq!(image.get_pixel(x, y).0, [0; 3], "{x}, {y}");
    }
    // The nose and the others are far below.
    assert_eq!(image.get_pixel(0, 0).0, [0; 3]);

    let sure = drawn(Style { keypoint_threshold: 4.0, ..Style::default() });
    assert_eq!(sure.get_pixel(50, 20).0, [0; 3], "one of the shoulders is not sure");
    assert_eq!(sure.get_pixel(70, 40).0, color);
    let across = drawn(Style { skeleton: Some(vec![[6, 11], [6, 99]]), ..Style::default() });
    assert_eq!(across.get_pixel(50, 40).0, color);
    assert_eq!(across.get_pixel(50, 20).0, [0; 3]);
}

#[test]
fn keypoints_anywhere_do_no_harm() {
    let nan = f32::NAN;
    for place in [[nan, 1.0], [f32::INFINITY, 0.0], [-1e30, 1e30], [3e38, -3e38], [99.9, 79.9]] {
        for line in [0, 1, u32::MAX] {
            let mut detections = person();
            let keypoints = detections.instances[0].keypoints.as_mut().unwrap();
            (keypoints[5].x, keypoints[5].y) = (place[0], place[1]);
            keypoints[12].score = nan;
            let mut image = RgbImage::new(100, 80);
            let style = Style { line_width: Some(line), ..Style::default() };
            draw(&mut image, &detections, &coco(), &style);
        }
    }
    // Keypoints that are not COCO's have no limbs unless told.
    let mut detections = person();
    detections.instances[0].keypoints.as_mut().unwrap().truncate(16);
    let mut image = RgbImage::new(100, 80);
    draw(&mut image, &detections, &coco(), &Style { line_width: Some(2), ..Style::default() });
    assert_eq!(image.get_pixel(50, 20).0, [0; 3]);
    assert_eq!(image.get_pixel(71, 21).0, class_color(1));
}
