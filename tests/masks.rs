//! Masks: pasting against torchvision, run lengths against pycocotools, outlines against their own pixels.

use std::path::Path;
use std::sync::Arc;

use candle_core::{Device, Tensor, safetensors};
use candle_detection::Error;
use candle_detection::structures::{
    BoxXyxy, ImageSize, Mask, MaskRegion, Polygon, PolygonKind, Rle,
};
use image::{GrayImage, Luma};
use proptest::prelude::*;
use serde_json::Value;

fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn bbox(b: [f32; 4]) -> BoxXyxy {
    BoxXyxy { x1: b[0], y1: b[1], x2: b[2], y2: b[3] }
}

fn size(height: usize, width: usize) -> ImageSize {
    ImageSize { height, width }
}

fn mask(side: usize, values: impl Into<Vec<f32>>, b: [f32; 4], image: ImageSize) -> Mask {
    Mask::new(side, Arc::from(values.into()), bbox(b), image).unwrap()
}

/// A mask of ones of the published models' side.
fn full(b: [f32; 4], image: ImageSize) -> Mask {
    mask(28, vec![1.0; 28 * 28], b, image)
}

/// Pixels above 0.5: their number, first and last row, first and last column.
fn extent(bitmap: &GrayImage) -> (usize, [u32; 2], [u32; 2]) {
    let set: Vec<(u32, u32)> =
        bitmap.enumerate_pixels().filter(|(_, _, p)| p.0[0] > 0).map(|(x, y, _)| (x, y)).collect();
    let bounds = |values: Vec<u32>| {
        [values.iter().copied().min().unwrap_or(0), values.iter().copied().max().unwrap_or(0)]
    };
    let rows = bounds(set.iter().map(|p| p.1).collect());
    let columns = bounds(set.iter().map(|p| p.0).collect());
    (set.len(), rows, columns)
}

struct Case {
    mask: Mask,
    pasted: Vec<f32>,
    group: String,
    index: usize,
}

fn reference_cases() -> Vec<Case> {
    let tensors = safetensors::load(fixture("masks.safetensors"), &Device::Cpu).unwrap();
    let rows = |tensor: &Tensor| tensor.flatten_from(1).unwrap().to_vec2::<f32>().unwrap();
    let mut cases = Vec::new();
    for group in ["published", "small", "large"] {
        let get = |part: &str| &tensors[&format!("{group}.{part}")];
        let (_, _, side, _) = get("masks").dims4().unwrap();
        let (_, _, height, width) = get("pasted").dims4().unwrap();
        let all = rows(get("masks")).into_iter().zip(rows(get("boxes"))).zip(rows(get("pasted")));
        for (index, ((values, b), pasted)) in all.enumerate() {
            let b = [b[0], b[1], b[2], b[3]];
            let mask = mask(side, values, b, size(height, width));
            cases.push(Case { mask, pasted, group: group.to_owned(), index });
        }
    }
    assert_eq!(cases.len(), 49);
    cases
}

fn reference_text() -> Value {
    serde_json::from_slice(&std::fs::read(fixture("masks.json")).unwrap()).unwrap()
}

#[test]
fn pasting_is_torchvisions() {
    for Case { mask, pasted, group, index } in reference_cases() {
        let ours = mask.paste().into_raw();
        assert_eq!(ours.len(), pasted.len());
        let worst = ours.iter().zip(&pasted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= 1e-6, "{group} {index}: differs by {worst}");
        for threshold in [0.5, 0.3] {
            let expected: Vec<u8> =
                pasted.iter().map(|&p| if p > threshold { 255 } else { 0 }).collect();
            assert_eq!(mask.binarize(threshold).into_raw(), expected, "{group} {index}");
        }
    }
}

#[test]
fn run_lengths_are_pycocotools() {
    let text = reference_text();
    for Case { mask, group, index, .. } in reference_cases() {
        for threshold in ["0.5", "0.3"] {
            let expected = &text["groups"][&group][threshold];
            let rle = mask.to_rle(threshold.parse().unwrap());
            rle.validate().unwrap();
            assert_eq!(rle.to_coco_string(), expected["counts"][index].as_str().unwrap());
            assert_eq!(rle.area(), expected["areas"][index].as_u64().unwrap());
            let read = Rle::from_coco_string(&rle.to_coco_string(), mask.image_size()).unwrap();
            assert_eq!(read, rle);
            assert_eq!(rle.to_bitmap().unwrap(), mask.binarize(threshold.parse().unwrap()));
        }
    }
}

#[test]
fn bitmaps_of_every_density_round_trip() {
    for entry in reference_text()["bitmaps"].as_array().unwrap() {
        let number = |key: &str| entry[key].as_u64().unwrap();
        let image = size(number("height") as usize, number("width") as usize);
        let counts = entry["counts"].as_str().unwrap();
        let rle = Rle::from_coco_string(counts, image).unwrap();
        assert_eq!(rle.area(), number("area"));
        assert_eq!(rle.to_coco_string(), counts);
        let bitmap = rle.to_bitmap().unwrap();
        assert_eq!(Rle::from_bitmap(&bitmap).unwrap(), rle);
        if let Some(set) = entry["set"].as_array() {
            let expected: Vec<usize> = set.iter().map(|i| i.as_u64().unwrap() as usize).collect();
            let raw = bitmap.as_raw();
            let found: Vec<usize> = (0..raw.len()).filter(|&i| raw[i] > 0).collect();
            assert_eq!(found, expected);
        }
    }
}

#[test]
fn an_all_ones_mask_grows_as_torchvisions_does() {
    let bitmap = full([2.0, 3.0, 8.0, 9.0], size(16, 16)).binarize(0.5);
    assert_eq!(extent(&bitmap), (64, [2, 9], [1, 8]));
}

#[test]
fn a_box_over_the_corner_is_cut() {
    let bitmap = full([-4.0, -4.0, 6.0, 6.0], size(16, 16)).binarize(0.5);
    assert_eq!(extent(&bitmap), (49, [0, 6], [0, 6]));
}

#[test]
fn tiny_boxes_have_their_pixels() {
    let point = full([5.2, 5.2, 5.4, 5.4], size(16, 16)).binarize(0.5);
    assert_eq!(extent(&point), (1, [5, 5], [5, 5]));
    let nine = full([10.5, 10.5, 12.5, 12.5], size(16, 16)).binarize(0.5);
    assert_eq!(extent(&nine), (9, [10, 12], [10, 12]));
}

#[test]
fn pixels_are_probabilities_and_the_threshold_comes_after_resizing() {
    // 0.4 left and 0.6 right: thresholding first would put the border at the middle of the mask's cells.
    let mask = mask(2, [0.4, 0.6, 0.4, 0.6], [0.0, 0.0, 40.0, 40.0], size(41, 41));
    let plane = mask.paste();
    let row: Vec<f32> = (0..41).map(|x| plane.get_pixel(x, 20).0[0]).collect();
    assert!(plane.iter().all(|p| (0.0..=1.0).contains(p)));
    assert!(row.iter().any(|&p| p > 0.42 && p < 0.58), "no pixel between: {row:?}");
    let binary = mask.binarize(0.5);
    for (x, &probability) in row.iter().enumerate() {
        assert_eq!(binary.get_pixel(x as u32, 20).0[0] == 255, probability > 0.5);
    }
    // Strictly above.
    assert_eq!(mask.binarize(row[20]).get_pixel(20, 20), &Luma([0]));
}

#[test]
fn the_cost_follows_the_box_not_the_image() {
    // One plane of this image has 1.6 billion pixels.
    let mask = full([100.0, 200.0, 130.0, 260.0], size(40_000, 40_000));
    let MaskRegion { x, y, width, height, probabilities } = mask.region();
    assert_eq!((x, y, width, height), (98, 197, 34, 66));
    assert_eq!(probabilities.len(), width * height);
    let rle = mask.to_rle(0.5);
    rle.validate().unwrap();
    assert_eq!(rle.area(), probabilities.iter().filter(|&&p| p > 0.5).count() as u64);
    assert_eq!(mask.to_polygons(0.5).len(), 1);
}

#[test]
fn hopeless_boxes_are_empty() {
    let image = size(9, 14);
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    for b in [
        [nan, 0.0, 5.0, 5.0],
        [0.0, 0.0, 5.0, nan],
        [0.0, -inf, 5.0, inf],
        [inf, inf, inf, inf],
        [-f32::MAX, 0.0, f32::MAX, 5.0],
        [-30.0, 2.0, -10.0, 6.0],
        [20.0, 2.0, 30.0, 6.0],
        [2.0, 20.0, 6.0, 30.0],
        [2.0, -30.0, 6.0, -20.0],
        [8.0, 2.0, 2.0, 6.0],
        [1e30, 1e30, 2e30, 2e30],
        [-2e30, 0.0, -1e30, 5.0],
    ] {
        let mask = full(b, image);
        let region = mask.region();
        assert_eq!((region.width, region.height), (0, 0), "{b:?}");
        assert!(region.probabilities.is_empty());
        assert!(mask.paste().iter().all(|&p| p == 0.0));
        assert_eq!(mask.to_rle(0.5).counts, [9 * 14]);
        assert!(mask.to_polygons(0.5).is_empty());
        assert_eq!(mask.binarize(0.5), GrayImage::new(14, 9));
    }
}

#[test]
fn huge_boxes_cover_the_image_without_their_own_size_in_memory() {
    for b in [[-1e9, -1e9, 1e9, 1e9], [-1e30, -1e30, 1e30, 1e30], [-3e18, -5.0, 2e19, 20.0]] {
        let region = full(b, size(9, 14)).region();
        assert_eq!((region.x, region.y, region.width, region.height), (0, 0, 14, 9), "{b:?}");
        assert!(region.probabilities.iter().all(|p| (0.0..=1.0).contains(p)));
    }
    assert_eq!(full([-1e9, -1e9, 1e9, 1e9], size(9, 14)).to_rle(0.5).counts, [0, 9 * 14]);
}

#[test]
fn images_without_pixels_and_with_too_many() {
    for image in [size(0, 0), size(0, 7), size(7, 0)] {
        let mask = full([0.0, 0.0, 3.0, 3.0], image);
        assert_eq!(mask.paste().len(), 0);
        assert_eq!(mask.to_rle(0.5).counts, [0]);
        assert_eq!(mask.to_rle(0.5).to_bitmap().unwrap().len(), 0);
        assert!(mask.to_polygons(0.5).is_empty());
    }
    let huge = Mask::new(1, Arc::from([1.0]), bbox([0.0; 4]), size(1 << 20, 1 << 20));
    assert!(matches!(huge, Err(Error::Pixels { .. })));
    let short = Mask::new(3, Arc::from([1.0]), bbox([0.0; 4]), size(4, 4));
    assert!(matches!(short, Err(Error::Pixels { .. })));
}

#[test]
fn a_negative_threshold_is_the_box_not_the_image() {
    let mask = mask(2, [0.0, 0.2, 0.2, 0.2], [1.0, 1.0, 4.0, 4.0], size(8, 8));
    let positive = mask.paste().iter().filter(|&&p| p > 0.0).count() as u64;
    assert_eq!(mask.to_rle(-1.0).area(), positive);
}

#[test]
fn damaged_run_length_text_is_refused() {
    let image = size(7, 5);
    for (text, problem) in [
        ("", "sum up to 0"),
        ("S1\n", "byte 0x0a at position 2"),
        ("S1é", "byte 0xc3 at position 2"),
        ("s", "byte 0x73 at position 0"),
        ("3o", "end within a number"),
        ("ooooooo0", "over 7 characters"),
        ("ooooooooooooooooooooooooooooooo", "over 7 characters"),
        ("O", "length -1"),
        ("Z1", "sum up to 42"),
    ] {
        let error = Rle::from_coco_string(text, image).unwrap_err();
        let Error::Pixels { found, .. } = &error else { panic!("{text}: {error}") };
        assert!(found.contains(problem), "{text:?}: {error}");
    }
    let wrong = Rle { size: image, counts: vec![u32::MAX; 3] };
    assert!(wrong.to_bitmap().is_err());
}

/// Pixels whose centre lies inside an odd number of outlines.
fn even_odd(polygons: &[Polygon], image: ImageSize) -> GrayImage {
    GrayImage::from_fn(image.width as u32, image.height as u32, |x, y| {
        let (px, py) = (x as f32 + 0.5, y as f32 + 0.5);
        let mut inside = false;
        for polygon in polygons {
            let next = polygon.corners.iter().cycle().skip(1);
            for (a, b) in polygon.corners.iter().zip(next) {
                if (a[1] > py) != (b[1] > py)
                    && px < a[0] + (py - a[1]) / (b[1] - a[1]) * (b[0] - a[0])
                {
                    inside = !inside;
                }
            }
        }
        Luma([if inside { 255 } else { 0 }])
    })
}

/// A mask whose pixels are these, by a box that grows to exactly the padded mask.
fn mask_of(rows: &[&str]) -> (Mask, GrayImage) {
    let side = rows.len();
    let values: Vec<f32> = rows
        .iter()
        .flat_map(|row| row.bytes().map(|b| if b == b'#' { 1.0 } else { 0.0 }))
        .collect();
    // Grown to 0..side + 1, of side + 2 pixels: one per sample, so that nothing is interpolated.
    let unit = (side + 1) as f32 / (side + 2) as f32;
    let (low, high) = (unit * 1.0 + 1e-4, unit * (side + 1) as f32 + 1e-4);
    let mask = mask(side, values, [low, low, high, high], size(side + 2, side + 2));
    let bitmap = mask.binarize(0.5);
    for (y, row) in rows.iter().enumerate() {
        for (x, byte) in row.bytes().enumerate() {
            let expected = if byte == b'#' { 255 } else { 0 };
            assert_eq!(bitmap.get_pixel(x as u32 + 1, y as u32 + 1).0[0], expected);
        }
    }
    (mask, bitmap)
}

#[test]
fn outlines_of_parts_and_holes() {
    let (mask, bitmap) = mask_of(&[
        "#####.", //
        "#...#.", "#.#.#.", "#...#.", "#####.", ".....#",
    ]);
    let polygons = mask.to_polygons(0.5);
    let kinds: Vec<(PolygonKind, f64)> = polygons.iter().map(|p| (p.kind, p.area())).collect();
    use PolygonKind::{Hole, Outer};
    assert_eq!(kinds, [(Outer, 25.0), (Outer, 1.0), (Hole, 9.0), (Outer, 1.0)]);
    let square = [[6.0, 1.0], [6.0, 6.0], [1.0, 6.0], [1.0, 1.0]];
    assert_eq!(polygons[0].corners, square);
    assert_eq!(polygons[0].to_coco(), [6.0, 1.0, 6.0, 6.0, 1.0, 6.0, 1.0, 1.0]);
    assert_eq!(even_odd(&polygons, mask.image_size()), bitmap);
}

#[test]
fn pixels_that_touch_at_a_corner_are_parts_of_their_own() {
    let (mask, bitmap) = mask_of(&["#.#", ".#.", "#.#"]);
    let polygons = mask.to_polygons(0.5);
    assert_eq!(polygons.len(), 5);
    assert!(polygons.iter().all(|p| p.kind == PolygonKind::Outer && p.corners.len() == 4));
    assert_eq!(even_odd(&polygons, mask.image_size()), bitmap);
}

#[test]
fn outlines_fill_to_torchvisions_pixels() {
    for Case { mask, .. } in reference_cases() {
        let polygons = mask.to_polygons(0.5);
        let bitmap = mask.binarize(0.5);
        assert_eq!(even_odd(&polygons, mask.image_size()), bitmap);
        let area: f64 = polygons
            .iter()
            .map(|p| if p.kind == PolygonKind::Outer { p.area() } else { -p.area() })
            .sum();
        assert_eq!(area, mask.to_rle(0.5).area() as f64);
    }
}

proptest! {
    #[test]
    fn every_form_agrees(
        values in proptest::collection::vec(0.0f32..=1.0, 16),
        corner in (-30.0f32..40.0, -30.0f32..40.0),
        extent in (-2.0f32..60.0, -2.0f32..60.0),
        height in 1usize..30,
        width in 1usize..30,
        threshold in 0.0f32..1.0,
    ) {
        let b = [corner.0, corner.1, corner.0 + extent.0, corner.1 + extent.1];
        let mask = mask(4, values, b, size(height, width));
        let bitmap = mask.binarize(threshold);
        let rle = mask.to_rle(threshold);
        rle.validate().unwrap();
        prop_assert_eq!(&rle.to_bitmap().unwrap(), &bitmap);
        prop_assert_eq!(&Rle::from_bitmap(&bitmap).unwrap(), &rle);
        prop_assert_eq!(even_odd(&mask.to_polygons(threshold), mask.image_size()), bitmap);
        prop_assert_eq!(Rle::from_coco_string(&rle.to_coco_string(), rle.size).unwrap(), rle);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[0-o]{0,40}|.{0,20}", height in 0usize..9, width in 0usize..9) {
        if let Ok(rle) = Rle::from_coco_string(&text, size(height, width)) {
            prop_assert_eq!(rle.to_bitmap().unwrap().len(), height * width);
        }
    }
}

/// COCO's own fill of polygons, as evaluation tools apply it to segmentations.
#[cfg(feature = "eval")]
#[test]
fn coco_fills_outer_outlines_exactly() {
    let mut filled = 0;
    for Case { mask, .. } in reference_cases() {
        let ImageSize { height, width } = mask.image_size();
        let outer: Vec<Polygon> = mask
            .to_polygons(0.5)
            .into_iter()
            .filter(|polygon| polygon.kind == PolygonKind::Outer)
            .collect();
        let coordinates: Vec<Vec<f64>> =
            outer.iter().map(|p| p.to_coco().into_iter().map(f64::from).collect()).collect();
        if coordinates.is_empty() {
            continue;
        }
        let rle = hotcoco::mask::fr_polys(&coordinates, height as u32, width as u32).unwrap();
        // Each outer outline by itself, holes and what lies in them filled.
        let mut expected = GrayImage::new(width as u32, height as u32);
        for polygon in &outer {
            let fill = even_odd(std::slice::from_ref(polygon), mask.image_size());
            expected.iter_mut().zip(fill.iter()).for_each(|(all, one)| *all |= one);
        }
        assert_eq!(rle.counts, Rle::from_bitmap(&expected).unwrap().counts);
        filled += 1;
    }
    assert!(filled > 40);
}
