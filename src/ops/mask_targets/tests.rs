use candle_core::{DType, Device, Tensor};

use super::reference::{self, Bitmap};
use super::*;
use crate::ops::support::testing::{Random, assert_close, fixture, values};

fn bitmap(
    (height, width): (usize, usize),
    resized: (usize, usize),
    inside: impl Fn(usize, usize) -> bool,
) -> Bitmap {
    let pixels = (0..height * width).map(|i| inside(i / width, i % width).into()).collect();
    Bitmap { height, width, resized, pixels }
}

/// Objects, image by image, as the op takes them: of each, the smallest rectangle that holds it.
fn pack(images: &[&[Bitmap]]) -> ObjectMasks {
    let n_objects = images.iter().map(|image| image.len()).max().unwrap_or(0);
    let (mut pixels, mut places) = (Vec::new(), Vec::new());
    for image in images {
        for object in *image {
            places.extend(crop(object, &mut pixels).map(|number| number as u32));
        }
        places.extend(vec![0; (n_objects - image.len()) * PLACE]);
    }
    let bytes = pixels.len();
    ObjectMasks {
        pixels: Tensor::from_vec(pixels, bytes, &Device::Cpu).unwrap(),
        places: Tensor::from_vec(places, (images.len(), n_objects, PLACE), &Device::Cpu).unwrap(),
    }
}

fn crop(object: &Bitmap, pixels: &mut Vec<u8>) -> [usize; PLACE] {
    let Bitmap { height, width, resized, .. } = *object;
    let start = pixels.len();
    let lines = |n: usize, covers: &dyn Fn(usize) -> bool| {
        let covered = || (0..n).filter(|line| covers(*line));
        let first = covered().next().unwrap_or(0);
        (first, covered().last().map_or(0, |last| last + 1 - first))
    };
    let is_inside = |y: usize, x: usize| object.pixels[y * width + x] > 0;
    let (top, rows) = lines(height, &|y| (0..width).any(|x| is_inside(y, x)));
    let (left, columns) = lines(width, &|x| (0..height).any(|y| is_inside(y, x)));
    for row in top..top + rows {
        pixels.extend(&object.pixels[row * width + left..][..columns]);
    }
    [start, top, left, rows, columns, height, width, resized.0, resized.1]
}

/// The slots of `[N, P]`: all filled, each with a box and an object.
fn run(masks: &ObjectMasks, slots: &[&[([f32; 4], u32)]], side: usize) -> Result<Tensor> {
    let counts: Vec<u32> = slots.iter().map(|image| image.len() as u32).collect();
    run_some(masks, slots, &counts, side)
}

fn run_some(
    masks: &ObjectMasks,
    slots: &[&[([f32; 4], u32)]],
    counts: &[u32],
    side: usize,
) -> Result<Tensor> {
    let shape = (slots.len(), slots.first().map_or(0, |image| image.len()));
    let all = || slots.iter().flat_map(|image| image.iter());
    let corners: Vec<f32> = all().flat_map(|(corners, _)| *corners).collect();
    let objects: Vec<u32> = all().map(|(_, object)| *object).collect();
    let boxes = Tensor::from_vec(corners, (shape.0, shape.1, 4), &Device::Cpu).unwrap();
    let objects = Tensor::from_vec(objects, shape, &Device::Cpu).unwrap();
    mask_targets(masks, &boxes, &objects, &Tensor::new(counts, &Device::Cpu).unwrap(), side)
}

fn one(object: Bitmap, bbox: [f32; 4], side: usize) -> Vec<f32> {
    values(&run(&pack(&[&[object]]), &[&[(bbox, 0)]], side).unwrap())
}

#[test]
fn agrees_with_torchvision() {
    let file = fixture("train_losses.safetensors");
    let get = |name: &str| &file[&format!("mask/{name}")];
    let (n_objects, height, width) = get("bitmaps").dims3().unwrap();
    let bitmaps: Vec<u8> = get("bitmaps").flatten_all().unwrap().to_vec1().unwrap();
    for case in ["larger", "smaller", "same", "double"] {
        let size: Vec<u32> = get(&format!("{case}/size")).to_vec1().unwrap();
        let objects: Vec<Bitmap> = bitmaps
            .chunks_exact(height * width)
            .map(|pixels| Bitmap {
                height,
                width,
                resized: (size[0] as usize, size[1] as usize),
                pixels: pixels.to_vec(),
            })
            .collect();
        let rois = values(get(&format!("{case}/rois")));
        let of_slot = |(slot, roi): (usize, &[f32; 4])| (*roi, (slot % n_objects) as u32);
        let slots: Vec<_> = rois.as_chunks().0.iter().enumerate().map(of_slot).collect();
        let found = run(&pack(&[&objects]), &[&slots], 28).unwrap();
        assert_close(&found.get(0).unwrap(), get(&format!("{case}/targets")), 1e-5);
    }
}

/// Values measured with torchvision.
#[test]
fn edges_are_soft_without_a_half_pixel_shift() {
    let block = bitmap((8, 8), (8, 8), |y, x| (2..6).contains(&y) && (2..6).contains(&x));
    let expected =
        [1.0, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.25];
    assert_eq!(one(block, [2.0, 2.0, 6.0, 6.0], 4), expected);
}

#[test]
fn agrees_with_the_definition() {
    let mut random = Random::new(2);
    for resized in [(37, 53), (61, 88), (20, 31), (74, 106)] {
        let first =
            bitmap((37, 53), resized, |y, x| (x + 2 * y) % 11 > 4 && x > 9 && y < 30 && x < 50);
        let second = bitmap((37, 53), resized, |y, x| x * y % 3 == 1);
        let third = bitmap((12, 5), (resized.1, resized.0), |y, x| y + x > 3);
        let images: [&[Bitmap]; 2] = [&[first, second], &[third]];
        let mut slot = |(height, width): (usize, usize), object: u32| {
            let mut corner = |size: usize| {
                let a = random.range(-9.0, size as f32 + 9.0);
                let b = random.range(-9.0, size as f32 + 9.0);
                (a.min(b), a.max(b) + 0.3)
            };
            let ((x1, x2), (y1, y2)) = (corner(width), corner(height));
            ([x1, y1, x2, y2], object)
        };
        let slots = images.map(|image| {
            (0..20).map(|i| slot(image[0].resized, i % image.len() as u32)).collect::<Vec<_>>()
        });
        let found = run(&pack(&images), &[&slots[0], &slots[1]], 7).unwrap();
        let expected: Vec<f32> = slots
            .iter()
            .zip(images)
            .flat_map(|(slots, image)| slots.iter().map(move |slot| (slot, image)))
            .flat_map(|((bbox, object), image)| reference::run(&image[*object as usize], *bbox, 7))
            .map(|share| share as f32)
            .collect();
        let expected = Tensor::from_vec(expected, (2, 20, 7, 7), &Device::Cpu).unwrap();
        assert_close(&found, &expected, 1e-4);
    }
}

/// What is kept of an object may be more than its pixels need.
#[test]
fn more_than_the_object_may_be_kept() {
    let object = bitmap((9, 14), (12, 20), |y, x| (3..5).contains(&y) && (6..12).contains(&x));
    let places = Tensor::new(&[[[0u32, 0, 0, 9, 14, 9, 14, 12, 20]]], &Device::Cpu).unwrap();
    let pixels = Tensor::new(object.pixels.as_slice(), &Device::Cpu).unwrap();
    let bbox = [5.2, -3.0, 22.5, 9.9];
    let whole = run(&ObjectMasks { pixels, places }, &[&[(bbox, 0)]], 5).unwrap();
    // Sums may be split otherwise.
    for (found, expected) in values(&whole).iter().zip(one(object, bbox, 5)) {
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
}

#[test]
fn objects_without_pixels_are_zero_everywhere() {
    let empty = bitmap((5, 9), (10, 18), |_, _| false);
    assert_eq!(one(empty, [-4.0, -4.0, 30.0, 30.0], 3), [0.0; 9]);
    // An object that an image has not, as others have more.
    let full = || bitmap((5, 9), (10, 18), |_, _| true);
    let masks = pack(&[&[full()], &[full(), full()]]);
    let slots: &[_] = &[([1.0, 1.0, 8.0, 8.0], 1)];
    let found = values(&run(&masks, &[slots, slots], 2).unwrap());
    assert_eq!(found, [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
}

#[test]
fn empty_slots_are_zero_whatever_they_hold() {
    let masks = pack(&[&[bitmap((5, 9), (5, 9), |_, _| true)], &[]]);
    let slots: &[_] = &[([0.0, 0.0, 4.0, 4.0], 0), ([f32::NAN; 4], 77)];
    let found = values(&run_some(&masks, &[slots, slots], &[1, 0], 1).unwrap());
    assert_eq!(found, [1.0, 0.0, 0.0, 0.0]);
    // More than there are slots.
    let found = values(&run_some(&masks, &[&slots[..1], &slots[..1]], &[9, 0], 1).unwrap());
    assert_eq!(found, [1.0, 0.0]);
}

#[test]
fn there_may_be_no_objects_and_no_slots() {
    let slots: &[_] = &[([0.0, 0.0, 4.0, 4.0], 0)];
    let found = run_some(&pack(&[&[], &[]]), &[slots, slots], &[0, 0], 3).unwrap();
    assert_eq!(values(&found), [0.0; 18]);
    assert_eq!(run(&pack(&[&[], &[]]), &[&[], &[]], 3).unwrap().dims(), [2, 0, 3, 3]);
    assert_eq!(run(&pack(&[]), &[], 3).unwrap().dims(), [0, 0, 3, 3]);
}

/// Samples outside of the image are not looked at one by one, so that no box takes long.
#[test]
fn huge_boxes_and_those_that_are_not_finite() {
    let full = || bitmap((5, 9), (5, 9), |_, _| true);
    let found = one(full(), [-4e6, -4e6, 4e6, 4e6], 2);
    // The cell below and right of the corner has four million samples a side: nine by five meet the image.
    assert!((found[3] * 1.6e13 - 45.0).abs() < 1e-3, "{found:?}");
    assert!(found.iter().all(|share| *share > 0.0 && *share <= found[3]), "{found:?}");
    let infinity = f32::INFINITY;
    for bbox in [
        [-1e8, 0.0, 1e8, 4.0],
        [0.0, 0.0, 4.0, 1e30],
        [0.0, 0.0, infinity, 4.0],
        [-infinity, 0.0, 4.0, 4.0],
        [0.0, -infinity, 4.0, infinity],
        [f32::NAN, 0.0, 4.0, 4.0],
    ] {
        assert_eq!(one(full(), bbox, 2), [0.0; 4], "{bbox:?}");
    }
}

#[test]
fn objects_and_places_that_are_not_there_are_errors() {
    let object = || bitmap((5, 9), (10, 18), |y, _| y > 1);
    let masks = pack(&[&[object()], &[object(), object()]]);
    let slots: &[_] = &[([0.0, 0.0, 4.0, 4.0], 0), ([0.0, 0.0, 4.0, 4.0], 2)];
    let message = run_some(&masks, &[slots, slots], &[1, 2], 2).unwrap_err().to_string();
    assert!(message.contains("slot 1 of image 1") && message.contains("object 2"), "{message}");
    run_some(&masks, &[slots, slots], &[1, 1], 2).unwrap();
    let good = [54u32, 2, 0, 3, 9, 5, 9, 10, 18];
    // Beyond the pixels, more pixels than there are, beyond the image, no image.
    for (number, wrong) in [(0, 55), (0, u32::MAX), (3, u32::MAX), (1, 3), (4, 10), (8, 0)] {
        let mut place = good;
        place[number] = wrong;
        let places = Tensor::new(&[[place]], &Device::Cpu).unwrap();
        let masks = ObjectMasks { pixels: masks.pixels.clone(), places };
        let error = run(&masks, &[&slots[..1]], 2).unwrap_err();
        assert!(matches!(error, Error::Pixels { .. }), "{error}");
        assert!(error.to_string().contains("object 0 of image 0"), "{error}");
    }
}

#[test]
fn wrong_arguments_are_named() {
    let masks = pack(&[&[bitmap((5, 9), (10, 18), |_, _| true)]]);
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, &Device::Cpu).unwrap();
    let (boxes, objects, counts) =
        (zeros(&[1, 2, 4], DType::F32), zeros(&[1, 2], DType::U32), zeros(&[1], DType::U32));
    let with = |pixels: &Tensor, places: &Tensor| {
        let masks = ObjectMasks { pixels: pixels.clone(), places: places.clone() };
        mask_targets(&masks, &boxes, &objects, &counts, 2)
    };
    let corners = zeros(&[1, 2, 5], DType::F32);
    let wide = zeros(&[1, 1, 8], DType::U32);
    let other = zeros(&[2, 1, 9], DType::U32);
    let cases = [
        ("boxes", mask_targets(&masks, &corners, &objects, &counts, 2)),
        ("objects", mask_targets(&masks, &boxes, &zeros(&[1, 3], DType::U32), &counts, 2)),
        ("counts", mask_targets(&masks, &boxes, &objects, &zeros(&[2], DType::U32), 2)),
        ("pixels", with(&zeros(&[5, 9], DType::U8), &masks.places)),
        ("places", with(&masks.pixels, &wide)),
        ("places", with(&masks.pixels, &other)),
    ];
    for (name, result) in cases {
        let error = result.unwrap_err();
        let Error::Shape { argument, .. } = &error else { panic!("{error}") };
        assert_eq!(*argument, name);
    }
    let error = with(&zeros(&[45], DType::F32), &masks.places).unwrap_err();
    assert!(matches!(error, Error::DType { argument: "pixels", .. }), "{error}");
    let error = mask_targets(&masks, &boxes, &objects, &counts, 0).unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error}");
}
