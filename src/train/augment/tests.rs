//! Pixels, boxes and masks move together.

use image::{GrayImage, Luma, Rgb, RgbImage};

use super::color::{Change, change};
use super::*;
use crate::structures::{TargetKeypoint, Visibility};

const RED: Rgb<u8> = Rgb([220, 20, 20]);
const BLUE: Rgb<u8> = Rgb([20, 20, 220]);

/// A red ellipse on blue, off the middle, and nothing else.
fn ellipse(width: u32, height: u32) -> LabelledImage {
    let inside = |x: u32, y: u32| {
        let (dx, dy) = ((x as f32 - 14.0) / 11.0, (y as f32 - 20.0) / 17.0);
        dx * dx + dy * dy < 1.0
    };
    let mask = GrayImage::from_fn(width, height, |x, y| Luma([if inside(x, y) { 255 } else { 0 }]));
    let pixels = RgbImage::from_fn(width, height, |x, y| if inside(x, y) { RED } else { BLUE });
    let bbox = extent(&mask).unwrap();
    LabelledImage {
        image_id: 5,
        pixels,
        objects: vec![Object { label: 2, bbox, mask: Some(mask), keypoints: None }],
    }
}

/// An object that fills a rectangle.
fn block(size: (u32, u32), [x1, y1, x2, y2]: [u32; 4], label: u32) -> Object {
    let inside = |x, y| (x1..x2).contains(&x) && (y1..y2).contains(&y);
    let mask =
        GrayImage::from_fn(size.0, size.1, |x, y| Luma([if inside(x, y) { 255 } else { 0 }]));
    Object { label, bbox: extent(&mask).unwrap(), mask: Some(mask), keypoints: None }
}

fn corners(bbox: BoxXyxy) -> [f32; 4] {
    [bbox.x1, bbox.y1, bbox.x2, bbox.y2]
}

fn jitter(width: usize, height: usize) -> LargeScaleJitter {
    LargeScaleJitter {
        size: ImageSize { height, width },
        scale: (0.3, 2.0),
        fill: [0, 255, 0],
        copy_paste: None,
    }
}

fn no_other(_: &mut Random) -> Result<LabelledImage> {
    panic!("no other image was to be asked for")
}

#[test]
fn a_flip_moves_pixels_boxes_and_masks() {
    let image = ellipse(50, 40);
    let mut flipped = image.clone();
    flipped.flip();
    let bbox = image.objects[0].bbox;
    assert_eq!(
        corners(flipped.objects[0].bbox),
        [50.0 - bbox.x2, bbox.y1, 50.0 - bbox.x1, bbox.y2]
    );
    assert_eq!(extent(flipped.objects[0].mask.as_ref().unwrap()), Some(flipped.objects[0].bbox));
    assert_eq!(flipped.pixels.get_pixel(49 - 14, 20), &RED);
    assert_ne!(flipped, image);
    flipped.flip();
    assert_eq!(flipped, image);
}

#[test]
fn nothing_happens_unless_asked_for() {
    let image = ellipse(50, 40);
    let random = &mut Random::new(1);
    let same = Augmentation::default().apply(image.clone(), random, &no_other).unwrap();
    assert_eq!(same, image);
    let always = Augmentation { flip: 1.0, ..Augmentation::default() };
    assert_ne!(always.apply(image.clone(), random, &no_other).unwrap(), image);
}

/// Whatever is drawn by lot: the mask covers what is red, and the box encloses it.
#[test]
fn masks_and_boxes_stay_with_their_pixels() {
    let recipe =
        Augmentation { flip: 0.5, large_scale: Some(jitter(48, 64)), ..Augmentation::default() };
    let mut shown = 0;
    for seed in 0..60 {
        let random = &mut Random::new(seed);
        let changed = recipe.apply(ellipse(50, 40), random, &no_other).unwrap();
        assert_eq!(changed.size(), ImageSize { height: 64, width: 48 });
        let red = |pixel: &Rgb<u8>| pixel.0[0] > 120 && pixel.0[1] < 120;
        let visible = changed.pixels.pixels().filter(|pixel| red(pixel)).count();
        let Some(object) = changed.objects.first() else {
            assert!(visible < 12, "seed {seed}: {visible} pixels show an object that is gone");
            continue;
        };
        shown += 1;
        let mask = object.mask.as_ref().unwrap();
        let differ = changed.pixels.pixels().zip(mask.pixels());
        let differ = differ.filter(|(pixel, inside)| red(pixel) != (inside.0[0] > 0)).count();
        // Along the edge a pixel may be on either side.
        assert!(differ as f32 <= 4.0 * (visible as f32).sqrt(), "seed {seed}: {differ}");
        let tight = corners(extent(mask).unwrap());
        for (given, drawn) in corners(object.bbox).into_iter().zip(tight) {
            assert!((given - drawn).abs() <= 1.0, "seed {seed}: {object:?}");
        }
    }
    assert!(shown > 40, "{shown}");
}

#[test]
fn scaling_and_cropping_are_exact_pixel_by_pixel() {
    let mut image = LabelledImage {
        image_id: 1,
        pixels: RgbImage::from_pixel(20, 10, BLUE),
        objects: vec![
            block((20, 10), [2, 1, 6, 4], 1),
            block((20, 10), [8, 5, 12, 9], 2),
            block((20, 10), [18, 0, 20, 2], 3),
        ],
    };
    image.objects.push(Object { label: 4, mask: None, ..image.objects[1].clone() });
    let large = ImageSize { height: 20, width: 40 };
    let shown = jitter(16, 16).show(&image, large, [6, 4]);
    let found: Vec<(u32, [f32; 4])> =
        shown.objects.iter().map(|object| (object.label, corners(object.bbox))).collect();
    // The first is cut at the left and at the top; the third lies outside.
    let second = [10.0, 6.0, 16.0, 14.0];
    assert_eq!(found, [(1, [0.0, 0.0, 6.0, 4.0]), (2, second), (4, second)]);
    for object in shown.objects.iter().filter(|object| object.mask.is_some()) {
        let [x1, y1, x2, y2] = corners(object.bbox).map(|side| side as u32);
        let expected = block((16, 16), [x1, y1, x2, y2], object.label);
        assert_eq!(object.mask, expected.mask);
    }
    // Smaller than the canvas: the rest is filled.
    let small = jitter(16, 16).show(&image, ImageSize { height: 5, width: 10 }, [0, 0]);
    assert_eq!(small.pixels.get_pixel(9, 4), &BLUE);
    assert_eq!(small.pixels.get_pixel(10, 4), &Rgb([0, 255, 0]));
    assert_eq!(small.pixels.get_pixel(9, 5), &Rgb([0, 255, 0]));
}

/// An object that shrinks to nothing would have a box without width, and a loss that is not a number.
#[test]
fn objects_that_vanish_are_left_out() {
    let image = LabelledImage {
        image_id: 1,
        pixels: RgbImage::from_pixel(100, 100, BLUE),
        objects: vec![block((100, 100), [40, 40, 44, 90], 1)],
    };
    let tiny = jitter(16, 16).show(&image, ImageSize { height: 10, width: 10 }, [0, 0]);
    assert!(tiny.objects.is_empty());
    let (_, target) = tiny.into_input().unwrap();
    target
        .validate(ImageSize { height: 16, width: 16 }, 2, crate::structures::TargetNeeds::MASKS)
        .unwrap();
}

#[test]
fn what_is_pasted_hides_what_is_behind() {
    let size = (40, 30);
    let mut image = LabelledImage {
        image_id: 1,
        pixels: RgbImage::from_pixel(size.0, size.1, BLUE),
        objects: vec![
            block(size, [12, 12, 16, 16], 1),
            block(size, [5, 10, 15, 20], 2),
            block(size, [30, 2, 38, 9], 3),
        ],
    };
    let front = block(size, [10, 8, 25, 25], 7);
    let from = LabelledImage {
        image_id: 2,
        pixels: RgbImage::from_pixel(size.0, size.1, RED),
        objects: vec![front.clone()],
    };
    // Objects are chosen by lot; this one is, sooner or later.
    let random = &mut Random::new(1);
    while image.objects.last().unwrap().label != 7 {
        CopyPaste::default().apply(&mut image, &from, random);
    }
    let found: Vec<(u32, [f32; 4])> =
        image.objects.iter().map(|object| (object.label, corners(object.bbox))).collect();
    let expected =
        [(2, [5.0, 10.0, 10.0, 20.0]), (3, [30.0, 2.0, 38.0, 9.0]), (7, [10.0, 8.0, 25.0, 25.0])];
    assert_eq!(found, expected);
    assert_eq!(image.objects[2], front);
    for object in &image.objects[..2] {
        let both = object.mask.as_ref().unwrap().iter().zip(front.mask.as_ref().unwrap().iter());
        assert_eq!(both.filter(|(a, b)| **a > 0 && **b > 0).count(), 0);
    }
    assert_eq!(image.pixels.get_pixel(15, 15), &RED);
    assert_eq!(image.pixels.get_pixel(30, 15), &BLUE);
}

#[test]
fn without_masks_nothing_is_pasted() {
    let size = (20, 20);
    let plain = |color| LabelledImage {
        image_id: 1,
        pixels: RgbImage::from_pixel(size.0, size.1, color),
        objects: vec![Object { mask: None, ..block(size, [2, 2, 9, 9], 1) }],
    };
    let mut image = plain(BLUE);
    for seed in 0..8 {
        CopyPaste::default().apply(&mut image, &plain(RED), &mut Random::new(seed));
    }
    assert_eq!(image, plain(BLUE));
}

/// Values computed with torchvision 0.28, `transforms.functional`, on floats.
#[test]
fn colors_are_the_references() {
    let pixels = vec![200, 30, 30, 10, 90, 250, 60, 60, 60, 255, 255, 0];
    let image = RgbImage::from_raw(2, 2, pixels).unwrap();
    let cases: [(&[Change], [u8; 12]); 6] = [
        (&[Change::Brightness(1.3)], [255, 39, 39, 13, 117, 255, 78, 78, 78, 255, 255, 0]),
        (&[Change::Contrast(0.6)], [165, 63, 63, 51, 99, 195, 81, 81, 81, 198, 198, 45]),
        (&[Change::Saturation(1.4)], [248, 10, 10, 0, 92, 255, 60, 60, 60, 255, 255, 0]),
        (&[Change::Hue(0.1)], [200, 132, 30, 74, 10, 250, 60, 60, 60, 102, 255, 0]),
        (&[Change::Hue(-0.3)], [64, 30, 200, 42, 250, 10, 60, 60, 60, 255, 0, 204]),
        (
            &[
                Change::Brightness(0.8),
                Change::Saturation(0.5),
                Change::Hue(0.25),
                Change::Contrast(1.5),
            ],
            [71, 122, 20, 154, 10, 130, 25, 25, 25, 89, 242, 165],
        ),
    ];
    for (changes, expected) in cases {
        let mut changed = image.clone();
        change(&mut changed, changes);
        for (value, wanted) in changed.iter().zip(expected) {
            // Half a step may be rounded either way.
            assert!(value.abs_diff(wanted) <= 1, "{changes:?}: {:?}", changed.as_raw());
        }
    }
}

fn person(points: &[(f32, f32, Visibility)]) -> ObjectKeypoints {
    let point = |&(x, y, visibility)| TargetKeypoint { x, y, visibility };
    let names = ["nose", "left_ear", "right_ear"].map(str::to_owned);
    ObjectKeypoints {
        points: points.iter().map(point).collect(),
        mirror: Mirror::from_names(&names),
    }
}

/// What torchvision's `_flip_coco_person_keypoints` gives.
#[test]
fn a_flip_swaps_left_and_right_keypoints() {
    use Visibility::{Hidden, Unlabelled, Visible};
    let mut image = ellipse(50, 40);
    image.objects[0].keypoints =
        Some(person(&[(14.0, 9.0, Visible), (3.5, 8.0, Hidden), (0.0, 0.0, Unlabelled)]));
    let before = image.clone();
    image.flip();
    let expected = person(&[(36.0, 9.0, Visible), (0.0, 0.0, Unlabelled), (46.5, 8.0, Hidden)]);
    assert_eq!(image.objects[0].keypoints.as_ref(), Some(&expected));
    image.flip();
    assert_eq!(image, before);
}

#[test]
fn keypoints_are_scaled_and_cropped_with_their_pixels() {
    use Visibility::{Hidden, Unlabelled, Visible};
    let mut image = LabelledImage {
        image_id: 1,
        pixels: RgbImage::from_pixel(20, 10, BLUE),
        objects: vec![block((20, 10), [2, 1, 16, 9], 1)],
    };
    image.objects[0].keypoints =
        Some(person(&[(6.0, 4.0, Visible), (2.0, 5.0, Visible), (15.0, 5.0, Hidden)]));
    // Twice as large, from column 6 and row 4 on.
    let scaled = ImageSize { height: 20, width: 40 };
    let shown = jitter(20, 16).show(&image, scaled, [6, 4]);
    // The second one is left of the canvas, the third right of it.
    let lost = (0.0, 0.0, Unlabelled);
    let expected = person(&[(6.0, 4.0, Visible), lost, lost]);
    assert_eq!(shown.objects[0].keypoints.as_ref(), Some(&expected));
    let (_, target) = shown.into_input().unwrap();
    assert_eq!(target.keypoints, [expected.points]);
}

#[test]
fn pasted_objects_hide_keypoints_behind_them() {
    use Visibility::{Hidden, Visible};
    let size = (16, 16);
    let mut image = LabelledImage {
        image_id: 1,
        pixels: RgbImage::from_pixel(16, 16, BLUE),
        objects: vec![block(size, [1, 1, 12, 12], 1)],
    };
    let points = [(2.0, 2.0, Visible), (10.0, 10.0, Visible), (11.0, 11.0, Hidden)];
    image.objects[0].keypoints = Some(person(&points));
    let mut from = image.clone();
    from.objects = vec![Object {
        keypoints: Some(person(&[(9.0, 9.0, Visible); 3])),
        ..block(size, [8, 8, 15, 15], 2)
    }];
    let paste = CopyPaste { probability: 1.0 };
    // Half of the objects are pasted; the first seed that pastes the only one.
    let pasted = (0..20).find_map(|seed| {
        let mut image = image.clone();
        paste.apply(&mut image, &from, &mut Random::new(seed));
        (image.objects.len() == 2).then_some(image)
    });
    let objects = pasted.unwrap().objects;
    let hidden = person(&[(2.0, 2.0, Visible), (10.0, 10.0, Hidden), (11.0, 11.0, Hidden)]);
    assert_eq!(objects[0].keypoints.as_ref(), Some(&hidden));
    assert_eq!(objects[1].keypoints, from.objects[0].keypoints);
}
