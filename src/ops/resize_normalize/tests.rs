use candle_core::{DType, Device, Tensor};

use super::{PixelSource, ResizeNormalizeParams, reference, resize_normalize};
use crate::error::Error;
use crate::ops::support::testing::{Random, assert_close, fixture, values};

const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const STD: [f32; 3] = [0.229, 0.224, 0.225];
/// Sample positions of a hundred pixels keep 17 bits of fraction in f32; neighbors differ by up to 4.5.
const TOLERANCE: f32 = 1e-4;

/// Normalisation that does nothing to planes of floats.
fn plain(resized: Vec<(usize, usize)>, padded: (usize, usize)) -> ResizeNormalizeParams {
    ResizeNormalizeParams { mean: [0.0; 3], std: [1.0; 3], resized, padded, dtype: DType::F32 }
}

fn imagenet(resized: Vec<(usize, usize)>, padded: (usize, usize)) -> ResizeNormalizeParams {
    ResizeNormalizeParams { mean: MEAN, std: STD, resized, padded, dtype: DType::F32 }
}

struct Picture {
    bytes: Vec<u8>,
    height: usize,
    width: usize,
}

impl Picture {
    fn random(random: &mut Random, height: usize, width: usize) -> Self {
        let bytes = (0..height * width * 3).map(|_| random.below(256) as u8).collect();
        Self { bytes, height, width }
    }

    fn source(&self) -> PixelSource<'_> {
        PixelSource::Rgb8 { bytes: &self.bytes, height: self.height, width: self.width }
    }

    fn planes(&self) -> Tensor {
        let shape = (self.height, self.width, 3);
        let bytes = Tensor::from_vec(self.bytes.clone(), shape, &Device::Cpu).unwrap();
        let floats = bytes.to_dtype(DType::F32).unwrap() / 255.0;
        floats.unwrap().permute((2, 0, 1)).unwrap()
    }
}

/// A single plane as red; green and blue are zero.
fn red_planes(rows: &[Vec<f32>]) -> Tensor {
    let red = Tensor::new(rows.to_vec(), &Device::Cpu).unwrap();
    let zero = red.zeros_like().unwrap();
    Tensor::stack(&[&red, &zero, &zero], 0).unwrap()
}

#[test]
fn agrees_with_the_definition_in_both_forms() {
    let mut random = Random::new(1);
    let originals = [(11, 17), (5, 3), (1, 1), (30, 8), (9, 14)];
    let resized = vec![(18, 28), (23, 14), (4, 6), (7, 2), (9, 14)];
    let pictures: Vec<Picture> =
        originals.iter().map(|(h, w)| Picture::random(&mut random, *h, *w)).collect();
    let params = imagenet(resized.clone(), (32, 64));
    let sources: Vec<PixelSource<'_>> = pictures.iter().map(Picture::source).collect();
    let from_bytes = resize_normalize(&sources, &params, &Device::Cpu).unwrap();
    let planes: Vec<Tensor> = pictures.iter().map(Picture::planes).collect();
    assert!(!planes[0].is_contiguous());
    let sources: Vec<PixelSource<'_>> = planes.iter().map(PixelSource::Planar).collect();
    let from_planes = resize_normalize(&sources, &params, &Device::Cpu).unwrap();
    assert_eq!(from_bytes.dims(), [5, 32, 64, 3]);
    for (i, picture) in pictures.iter().enumerate() {
        let value = |y: usize, x: usize, c: usize| {
            f64::from(picture.bytes[(y * picture.width + x) * 3 + c]) / 255.0
        };
        let expected = reference::run(value, originals[i], resized[i], &params);
        let expected = Tensor::from_vec(expected, (32, 64, 3), &Device::Cpu).unwrap();
        assert_close(&from_bytes.get(i).unwrap(), &expected, TOLERANCE);
        assert_close(&from_planes.get(i).unwrap(), &expected, TOLERANCE);
    }
}

#[test]
fn agrees_with_torchvision() {
    let file = fixture("ops.safetensors");
    for case in ["mixed", "capped", "same_size", "single_pixel"] {
        let get = |name: &str| file.get(&format!("resize_normalize/{case}/{name}"));
        let batch = get("batch").unwrap().permute((0, 2, 3, 1)).unwrap();
        let (n, height, width, _) = batch.dims4().unwrap();
        let sizes = get("resized").unwrap().to_vec2::<u32>().unwrap();
        let resized = sizes.iter().map(|s| (s[0] as usize, s[1] as usize)).collect();
        let pictures: Vec<Picture> = (0..n)
            .map(|i| {
                let image = get(&format!("image.{i}")).unwrap();
                let (height, width, _) = image.dims3().unwrap();
                let bytes = image.flatten_all().unwrap().to_vec1::<u8>().unwrap();
                Picture { bytes, height, width }
            })
            .collect();
        let sources: Vec<PixelSource<'_>> = pictures.iter().map(Picture::source).collect();
        let params = imagenet(resized, (height, width));
        let found = resize_normalize(&sources, &params, &Device::Cpu).unwrap();
        assert_close(&found, &batch, 2e-6);
    }
}

#[test]
fn samples_lie_at_half_pixels() {
    let source = red_planes(&[vec![0.0, 1.0, 2.0, 3.0]]);
    let params = plain(vec![(1, 8)], (1, 8));
    let wide = resize_normalize(&[PixelSource::Planar(&source)], &params, &Device::Cpu).unwrap();
    let red: Vec<f32> = values(&wide).into_iter().step_by(3).collect();
    assert_eq!(red, [0.0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3.0]);
    // Shrinking by 4 reads the two middle pixels of four, and skips the others.
    let source = red_planes(&[vec![9.0, 1.0, 3.0, 9.0, 9.0, 5.0, 6.0, 9.0]]);
    let params = plain(vec![(1, 2)], (1, 2));
    let narrow = resize_normalize(&[PixelSource::Planar(&source)], &params, &Device::Cpu).unwrap();
    let red: Vec<f32> = values(&narrow).into_iter().step_by(3).collect();
    assert_eq!(red, [2.0, 5.5]);
}

#[test]
fn the_step_is_that_of_the_rounded_size() {
    // 3 pixels to 7: the scale factor may have been 2.6, but the step is 3 / 7.
    let source = red_planes(&[vec![0.0, 1.0, 2.0]]);
    let params = plain(vec![(1, 7)], (1, 7));
    let wide = resize_normalize(&[PixelSource::Planar(&source)], &params, &Device::Cpu).unwrap();
    for (x, found) in values(&wide).into_iter().step_by(3).enumerate() {
        let expected = ((x as f32 + 0.5) * 3.0 / 7.0 - 0.5).clamp(0.0, 2.0);
        assert!((found - expected).abs() < 1e-6, "column {x}: {found}, expected {expected}");
    }
}

#[test]
fn bytes_are_scaled_and_red_comes_first() {
    let red = [255, 0, 0].repeat(6);
    let source = PixelSource::Rgb8 { bytes: &red, height: 2, width: 3 };
    let params = imagenet(vec![(4, 6)], (4, 6));
    let batch = resize_normalize(&[source], &params, &Device::Cpu).unwrap();
    let expected = [(1.0 - 0.485) / 0.229, -2.0357, -1.8044];
    for pixel in values(&batch).as_chunks::<3>().0 {
        for (found, expected) in pixel.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-4, "{pixel:?}");
        }
    }
}

#[test]
fn padding_is_zero_and_black_is_not() {
    let black = vec![0; 2 * 3 * 3];
    let source = PixelSource::Rgb8 { bytes: &black, height: 2, width: 3 };
    let params = imagenet(vec![(2, 3)], (4, 5));
    let batch = resize_normalize(&[source], &params, &Device::Cpu).unwrap();
    for (i, pixel) in values(&batch).as_chunks::<3>().0.iter().enumerate() {
        let inside = i / 5 < 2 && i % 5 < 3;
        let expected = if inside { [-2.1179, -2.0357, -1.8044] } else { [0.0; 3] };
        for (found, expected) in pixel.iter().zip(expected) {
            let tolerance = if inside { 1e-4 } else { 0.0 };
            assert!((found - expected).abs() <= tolerance, "pixel {i}: {pixel:?}");
        }
    }
}

#[test]
fn an_image_does_not_depend_on_its_batch() {
    let mut random = Random::new(2);
    let (a, b) = (Picture::random(&mut random, 9, 6), Picture::random(&mut random, 6, 9));
    let together = imagenet(vec![(18, 12), (12, 18)], (32, 32));
    let sources = [a.source(), b.source()];
    let batch = resize_normalize(&sources, &together, &Device::Cpu).unwrap();
    for (i, size) in together.resized.iter().enumerate() {
        let alone = imagenet(vec![*size], (32, 32));
        let single = resize_normalize(&sources[i..=i], &alone, &Device::Cpu).unwrap();
        assert_eq!(values(&single), values(&batch.get(i).unwrap()));
    }
}

#[test]
fn no_images_make_an_empty_batch() {
    let batch = resize_normalize(&[], &imagenet(vec![], (32, 64)), &Device::Cpu).unwrap();
    assert_eq!(batch.dims(), [0, 32, 64, 3]);
}

#[test]
fn wrong_arguments_are_named() {
    let bytes = vec![0u8; 18];
    let good = PixelSource::Rgb8 { bytes: &bytes, height: 2, width: 3 };
    let run = |source: PixelSource<'_>, params: &ResizeNormalizeParams| {
        resize_normalize(&[source], params, &Device::Cpu).unwrap_err()
    };
    let fits = imagenet(vec![(2, 3)], (4, 4));
    let short = PixelSource::Rgb8 { bytes: &bytes[..17], height: 2, width: 3 };
    assert_eq!(
        run(short, &fits).to_string(),
        "image 0 of the batch has 17 bytes, expected 3 · 2 · 3 (height, width)"
    );
    let empty = PixelSource::Rgb8 { bytes: &[], height: 0, width: 3 };
    assert_eq!(
        run(empty, &fits).to_string(),
        "image 0 of the batch has 0×3 pixels (height × width), expected at least one"
    );
    let overflowing = PixelSource::Rgb8 { bytes: &[], height: usize::MAX, width: 3 };
    assert!(matches!(run(overflowing, &fits), Error::Pixels { .. }));
    for params in [
        imagenet(vec![], (4, 4)),
        imagenet(vec![(5, 3)], (4, 4)),
        imagenet(vec![(2, 5)], (4, 4)),
        imagenet(vec![(0, 3)], (4, 4)),
        ResizeNormalizeParams { std: [1.0, 0.0, 1.0], ..fits.clone() },
        ResizeNormalizeParams { mean: [f32::NAN; 3], ..fits.clone() },
    ] {
        assert!(matches!(run(good, &params), Error::Pixels { .. }), "{params:?}");
    }
    // The layout of an image file, and integer values: both would be read as garbage.
    let interleaved = Tensor::zeros((2, 3, 3), DType::F32, &Device::Cpu).unwrap();
    let error = run(PixelSource::Planar(&interleaved), &fits);
    assert!(matches!(error, Error::Shape { argument: "images", .. }), "{error}");
    let integers = Tensor::zeros((3, 2, 3), DType::U8, &Device::Cpu).unwrap();
    let error = run(PixelSource::Planar(&integers), &fits);
    assert!(matches!(error, Error::DType { argument: "images", .. }), "{error}");
}
