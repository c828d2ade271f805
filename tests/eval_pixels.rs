//! Which pixels an outline covers, and which pixels of a file it belongs to.
#![cfg(feature = "eval")]

use std::path::Path;

use candle_detection::Result;
use candle_detection::eval::{CocoDataset, Segmentation};
use candle_detection::structures::{ImageSize, Rle};
use image::{Rgb, RgbImage};
use serde_json::{Value, json};
use tempfile::TempDir;

const CANVAS: ImageSize = ImageSize { height: 12, width: 12 };

fn open(folder: &Path) -> Result<CocoDataset> {
    CocoDataset::open(&folder.join("annotations.json"), folder)
}

/// Rows and columns of the pixels in a mask.
fn pixels(rle: &Rle) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut at = 0;
    for (index, &run) in rle.counts.iter().enumerate() {
        for pixel in at..at + run as usize {
            if index % 2 == 1 {
                found.push((pixel % rle.size.height, pixel / rle.size.height));
            }
        }
        at += run as usize;
    }
    assert_eq!(at, rle.size.height * rle.size.width, "runs cover the mask exactly");
    found
}

fn square(low: f64, high: f64) -> Vec<f64> {
    vec![low, low, high, low, high, high, low, high]
}

fn drawn(polygons: Vec<Vec<f64>>) -> Vec<(usize, usize)> {
    pixels(&Segmentation::Polygons(polygons).to_rle(CANVAS))
}

fn block(from: usize, to: usize) -> Vec<(usize, usize)> {
    (from..=to).flat_map(|x| (from..=to).map(move |y| (y, x))).collect()
}

#[test]
fn polygons_become_cocos_pixels() {
    assert_eq!(drawn(vec![square(0.0, 9.0)]), block(0, 8));
    assert_eq!(drawn(vec![square(2.0, 5.0)]), block(2, 4));
    assert_eq!(drawn(vec![square(0.5, 3.5)]), block(1, 3));
    assert_eq!(drawn(vec![square(2.6, 7.6)]), block(3, 7));
    assert_eq!(drawn(vec![square(-5.0, 4.0)]), block(0, 3));
    assert_eq!(drawn(vec![square(8.0, 20.0)]), block(8, 11));
    assert!(drawn(vec![square(20.0, 30.0)]).is_empty());
    assert!(drawn(vec![square(-30.0, -20.0)]).is_empty());
    assert!(drawn(vec![]).is_empty());
    assert!(drawn(vec![vec![1.0, 1.0, 4.0, 4.0, 9.0, 9.0]]).is_empty());
}

#[test]
fn several_polygons_are_a_union_whatever_their_direction() {
    // Even-odd filling would punch a hole where they overlap.
    assert_eq!(drawn(vec![square(0.0, 9.0), square(2.0, 5.0)]), block(0, 8));
    let mut reversed = square(0.0, 9.0);
    reversed.reverse();
    let reversed: Vec<f64> = reversed.chunks(2).flat_map(|corner| [corner[1], corner[0]]).collect();
    assert_eq!(drawn(vec![reversed]), block(0, 8));
    let apart = drawn(vec![square(0.0, 3.0), square(6.0, 9.0)]);
    assert_eq!(apart, [block(0, 2), block(6, 8)].concat());
}

#[test]
fn run_lengths_go_down_the_columns_and_begin_with_zeros() {
    let read = |counts: Value| {
        let folder = TempDir::new().unwrap();
        let dataset = json!({
            "images": [{"id": 8, "height": 10, "width": 10}],
            "categories": [{"id": 1}],
            "annotations": [{
                "id": 42, "image_id": 8, "category_id": 1, "bbox": [1, 2, 3, 4],
                "segmentation": {"size": [10, 10], "counts": counts},
            }],
        });
        std::fs::write(folder.path().join("annotations.json"), dataset.to_string()).unwrap();
        let dataset = open(folder.path()).unwrap();
        pixels(&dataset.annotations(8)[0].segmentation.to_rle(ImageSize { height: 10, width: 10 }))
    };
    assert_eq!(read(json!([5, 3, 92])), [(5, 0), (6, 0), (7, 0)]);
    assert_eq!(read(json!([0, 3, 97])), [(0, 0), (1, 0), (2, 0)]);
    assert_eq!(read(json!([5, 3, 10])), [(5, 0), (6, 0), (7, 0)]);
    assert_eq!(read(json!([97, 3])), [(7, 9), (8, 9), (9, 9)]);
    assert_eq!(read(json!([5, 3])), [(5, 0), (6, 0), (7, 0)]);
    assert!(read(json!([])).is_empty());
    // 5, 3, 92 in the compressed spelling.
    assert_eq!(read(json!("53l2")), [(5, 0), (6, 0), (7, 0)]);
}

/// A JPEG stored lying, 24 × 16 (width × height), that its EXIF tag turns upright: 16 × 24.
fn lying_jpeg() -> Vec<u8> {
    let mut jpeg = Vec::new();
    let picture = RgbImage::from_fn(24, 16, |x, y| Rgb([(10 * x) as u8, (15 * y) as u8, 90]));
    image::codecs::jpeg::JpegEncoder::new(&mut jpeg).encode_image(&picture).unwrap();
    // One tag, 0x0112 (orientation) = 6, in an APP1 segment right after the start marker.
    let mut exif =
        b"Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0".to_vec();
    let mut segment = vec![0xff, 0xe1];
    segment.extend((exif.len() as u16 + 2).to_be_bytes());
    segment.append(&mut exif);
    jpeg.splice(2..2, segment);
    jpeg
}

#[test]
fn pixels_are_those_that_were_annotated() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("a.jpg"), lying_jpeg()).unwrap();
    let with = |size: Value| {
        let mut image = json!({"id": 5, "file_name": "a.jpg"});
        if let [height, width] = &size.as_array().cloned().unwrap_or_default()[..] {
            image["height"] = height.clone();
            image["width"] = width.clone();
        }
        let file = json!({"images": [image], "annotations": [], "categories": []});
        std::fs::write(folder.path().join("annotations.json"), file.to_string()).unwrap();
        let dataset = open(folder.path()).unwrap();
        let sample = dataset.samples().next().unwrap();
        sample.image().map(|image| (image.size().height, image.size().width))
    };
    assert_eq!(with(json!([16, 24])).unwrap(), (16, 24), "as stored");
    assert_eq!(with(json!([24, 16])).unwrap(), (24, 16), "turned upright");
    assert_eq!(with(json!([])).unwrap(), (16, 24), "as stored where the file doesn't tell");
    let neither = with(json!([24, 24])).unwrap_err().to_string();
    for size in ["image 5", "its size is 24×24", "16×24", "24×16 (height × width) when turned"]
    {
        assert!(neither.contains(size), "{size}: {neither}");
    }
}
