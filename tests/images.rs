//! Image input against Pillow, and against files that are damaged, mislabelled or too large.

use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use candle_detection::structures::ImageSize;
use candle_detection::{DecodeOptions, Error, ImageInput, Orientation, Pixels};
use image::{DynamicImage, RgbImage};
use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/images").join(name)
}

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(fixture(name)).unwrap()
}

fn decode(bytes: &[u8]) -> Result<ImageInput, Error> {
    ImageInput::from_bytes(bytes, "image in memory", &DecodeOptions::default())
}

fn rgb(image: &ImageInput) -> RgbImage {
    image.to_rgb8().unwrap()
}

/// Largest and mean difference.
fn difference(a: &RgbImage, b: &RgbImage) -> (u8, f64) {
    assert_eq!(a.dimensions(), b.dimensions());
    let differences: Vec<u8> = a.iter().zip(b.iter()).map(|(a, b)| a.abs_diff(*b)).collect();
    let sum: u64 = differences.iter().map(|&d| u64::from(d)).sum();
    (differences.iter().copied().max().unwrap(), sum as f64 / differences.len() as f64)
}

#[test]
fn every_kind_of_file_is_as_pillow_reads_it() {
    let cases: Value = serde_json::from_slice(&bytes("images.json")).unwrap();
    let mut failures = Vec::new();
    for case in cases.as_array().unwrap() {
        let text = |key: &str| case[key].as_str().unwrap();
        let allowed = case["allowed"].as_u64().unwrap();
        let expected = image::open(fixture(text("expected"))).unwrap().into_rgb8();
        let found = match ImageInput::open(&fixture(text("file"))) {
            Ok(found) => found,
            Err(error) => {
                failures.push(format!("{}: {error:?}", text("file")));
                continue;
            }
        };
        let (height, width) = (expected.height() as usize, expected.width() as usize);
        if found.size() != (ImageSize { height, width }) {
            failures.push(format!("{}: {} not {height}×{width}", text("file"), found.size()));
            continue;
        }
        let (worst, mean) = difference(&rgb(&found), &expected);
        if u64::from(worst) > allowed || mean > 0.5 {
            failures.push(format!("{}: differs by {worst}, {mean:.3} on average", text("file")));
        }
    }
    assert!(cases.as_array().unwrap().len() > 40);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn orientation_can_be_left_as_stored() {
    let raw = DecodeOptions { orientation: Orientation::Raw, ..DecodeOptions::default() };
    let stored = rgb(&ImageInput::open_with(&fixture("exif-1.jpg"), &raw).unwrap());
    for tag in 1..=8 {
        let path = fixture(&format!("exif-{tag}.jpg"));
        let image = ImageInput::open_with(&path, &raw).unwrap();
        assert_eq!(image.size(), ImageSize { height: 40, width: 100 });
        assert_eq!(rgb(&image), stored);
        let (height, width) = if tag >= 5 { (100, 40) } else { (40, 100) };
        assert_eq!(ImageInput::open(&path).unwrap().size(), ImageSize { height, width });
    }
}

#[test]
fn grey_is_three_equal_channels() {
    for name in ["grey.jpg", "grey.png", "la-dot.png", "one-bit.png"] {
        let image = rgb(&ImageInput::open(&fixture(name)).unwrap());
        assert!(image.pixels().all(|p| p.0[0] == p.0[1] && p.0[1] == p.0[2]), "{name}");
    }
}

fn is_truncated(result: &Result<ImageInput, Error>) -> bool {
    matches!(result, Err(Error::TruncatedImage { origin }) if origin == "image in memory")
}

#[test]
fn a_jpeg_that_stops_early_is_refused_wherever_it_stops() {
    let names = [
        "colour-444.jpg",
        "colour-420.jpg",
        "grey.jpg",
        "progressive.jpg",
        "progressive-420.jpg",
        "restarts.jpg",
        "cmyk.jpg",
        "exif-6.jpg",
        "narrow.jpg",
    ];
    for name in names {
        let whole = bytes(name);
        let expected = rgb(&decode(&whole).unwrap());
        // Lost: only the end marker, or half of it.
        for cut in [1, 2] {
            let image =
                decode(&whole[..whole.len() - cut]).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(rgb(&image), expected, "{name} without its last {cut}");
        }
        // The last byte of data may consist of filling; the ones before don't.
        for length in 4..whole.len() - 4 {
            let result = decode(&whole[..length]);
            match &result {
                Err(Error::TruncatedImage { .. }) => {}
                Err(other) => panic!("{name} cut to {length} of {}: {other:?}", whole.len()),
                // Data that changes nothing may be missing, such as the end of a refinement scan.
                Ok(image) if length + 8 > whole.len() && rgb(image) == expected => {}
                Ok(_) => panic!("{name} cut to {length} of {} is accepted", whole.len()),
            }
        }
        assert!(is_truncated(&decode(&whole[..whole.len() / 2])), "{name}");
        assert!(is_truncated(&decode(&whole[..20])), "{name}");
    }
}

#[test]
fn other_formats_that_stop_early_are_refused() {
    for name in [
        "plain.png",
        "palette.png",
        "plain.bmp",
        "plain.webp",
        "lossy.webp",
        "plain.tif",
        "deflate.tif",
        "palette.gif",
    ] {
        let whole = bytes(name);
        for percent in [20, 50, 75, 90] {
            let result = decode(&whole[..whole.len() * percent / 100]);
            assert!(
                matches!(result, Err(Error::TruncatedImage { .. } | Error::Image { .. })),
                "{name} at {percent} %"
            );
        }
    }
    assert!(is_truncated(&decode(&bytes("plain.png")[..300])));
    assert!(is_truncated(&decode(&[])));
}

/// Numbers that look random, the same in every run.
struct Lcg(u64);

impl Lcg {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % limit
    }
}

#[test]
fn flipped_bytes_never_panic() {
    let mut random = Lcg(1);
    let (mut read, mut refused, mut panicked) = (0, 0, 0);
    for name in [
        "colour-444.jpg",
        "colour-420.jpg",
        "progressive-420.jpg",
        "restarts.jpg",
        "ycck.jpg",
        "plain.png",
        "palette.gif",
        "plain.webp",
        "lossy.webp",
        "plain.bmp",
        "deflate.tif",
    ] {
        let whole = bytes(name);
        for round in 0..200 {
            let mut damaged = whole.clone();
            // Half of them in the headers, where sizes and tables are.
            let range = if round % 2 == 0 { whole.len() } else { whole.len().min(700) };
            let position = random.below(range);
            damaged[position] ^= 1 + random.below(255) as u8;
            match decode(&damaged) {
                Ok(image) => {
                    assert_eq!(rgb(&image).len(), 3 * image.size().height * image.size().width);
                    read += 1;
                }
                Err(error) => {
                    let cause = std::error::Error::source(&error).map(|e| e.to_string());
                    panicked += usize::from(cause.is_some_and(|c| c.contains("panicked")));
                    refused += 1;
                }
            }
        }
    }
    println!("{read} read, {refused} refused, of them {panicked} because the decoder panicked");
    assert!(read > 100 && refused > 100, "{read} read, {refused} refused");
}

#[test]
fn an_image_beyond_the_limit_is_named_with_its_size() {
    let options = DecodeOptions { max_pixels: 83 * 60 - 1, ..DecodeOptions::default() };
    for name in ["colour-444.jpg", "progressive.jpg"] {
        let error = ImageInput::open_with(&fixture(name), &options).unwrap_err();
        assert!(matches!(
            error,
            Error::ImageTooLarge { width: 83, height: 60, max_pixels: 4979, .. }
        ));
        assert!(error.to_string().contains(name) && error.to_string().contains("max_pixels"));
    }
    let exact = DecodeOptions { max_pixels: 83 * 60, ..DecodeOptions::default() };
    assert!(ImageInput::open_with(&fixture("colour-444.jpg"), &exact).is_ok());
}

/// The file with other numbers in its JPEG frame header.
fn with_frame_size(mut file: Vec<u8>, height: u16, width: u16) -> Vec<u8> {
    let frame = file.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    file[frame + 5..frame + 7].copy_from_slice(&height.to_be_bytes());
    file[frame + 7..frame + 9].copy_from_slice(&width.to_be_bytes());
    file
}

#[test]
fn the_default_limit_is_checked_before_pixels_are_decoded() {
    let huge = with_frame_size(bytes("grey.jpg"), 29_560, 30_000);
    let error = decode(&huge).unwrap_err();
    assert!(matches!(error, Error::ImageTooLarge { width: 30_000, height: 29_560, .. }), "{error}");
    assert!(DecodeOptions::default().max_pixels >= 20_000 * 20_000);
}

#[test]
fn names_and_places_do_not_matter() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("Straße 7, ночь 夜.jpeg");
    std::fs::copy(fixture("plain.webp"), &path).unwrap();
    let image = ImageInput::open(&path).unwrap();
    assert_eq!(image.size(), ImageSize { height: 23, width: 31 });
}

#[test]
fn what_is_no_image_is_named() {
    let named = |error: Error, path: &Path| {
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        error
    };
    let text = fixture("text.jpg");
    let error = named(ImageInput::open(&text).unwrap_err(), &text);
    assert!(matches!(error, Error::Image { .. }));

    let folder = tempfile::tempdir().unwrap();
    let error = named(ImageInput::open(folder.path()).unwrap_err(), folder.path());
    assert!(matches!(error, Error::Io { .. }));
    let missing = folder.path().join("missing.jpg");
    let error = named(ImageInput::open(&missing).unwrap_err(), &missing);
    assert!(matches!(error, Error::Io { .. }));
    let empty = folder.path().join("empty.png");
    std::fs::write(&empty, b"").unwrap();
    let error = named(ImageInput::open(&empty).unwrap_err(), &empty);
    assert!(matches!(error, Error::TruncatedImage { .. }));
}

#[test]
fn buffers_and_decoded_images() {
    let image = ImageInput::from_rgb8(3, 1, vec![1, 2, 3, 4, 5, 6, 7, 8, 9]).unwrap();
    assert_eq!(image.size(), ImageSize { height: 1, width: 3 });
    assert_eq!(rgb(&image).get_pixel(2, 0).0, [7, 8, 9]);
    for (width, height, length) in [(3, 1, 8), (0, 0, 0), (0, 5, 0), (usize::MAX, 2, 6)] {
        let error = ImageInput::from_rgb8(width, height, vec![0; length]).unwrap_err();
        assert!(matches!(error, Error::Pixels { .. }), "{error}");
    }
    let grey = DynamicImage::ImageLuma8(image::GrayImage::from_raw(1, 2, vec![9, 70]).unwrap());
    let image = ImageInput::from(grey);
    assert_eq!(image.size(), ImageSize { height: 2, width: 1 });
    assert_eq!(rgb(&image).into_raw(), [9, 9, 9, 70, 70, 70]);
}

#[test]
fn tensors() {
    let device = Device::Cpu;
    // [3, 2, 1]: a column of two pixels.
    let bytes = Tensor::new(&[[[10u8], [20]], [[30], [40]], [[50], [255]]], &device).unwrap();
    let image = ImageInput::from_tensor(&bytes).unwrap();
    assert_eq!(image.size(), ImageSize { height: 2, width: 1 });
    assert_eq!(rgb(&image).into_raw(), [10, 30, 50, 20, 40, 255]);
    let Pixels::Planar(planar) = image.pixels() else { panic!("a tensor stays one") };
    let values = planar.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let expected = [10u8, 20, 30, 40, 50, 255].map(|v| f32::from(v) / 255.0);
    assert_eq!(values, expected);

    let all: Vec<u8> = (0..=255).flat_map(|v| [v; 3]).collect();
    let all = Tensor::from_vec(all, (16, 16, 3), &device).unwrap().permute((2, 0, 1)).unwrap();
    let expected: Vec<u8> = (0..=255).flat_map(|v| [v; 3]).collect();
    assert_eq!(rgb(&ImageInput::from_tensor(&all).unwrap()).into_raw(), expected);

    let outside = Tensor::new(&[[[-1f32]], [[2.0]], [[f32::NAN]]], &device).unwrap();
    assert_eq!(rgb(&ImageInput::from_tensor(&outside).unwrap()).into_raw(), [0, 255, 0]);

    for shape in [vec![4, 2, 2], vec![2, 2, 3], vec![1, 3, 2, 2], vec![3, 0, 2], vec![3, 4]] {
        let tensor = Tensor::zeros(shape, DType::F32, &device).unwrap();
        assert!(matches!(ImageInput::from_tensor(&tensor), Err(Error::Pixels { .. })));
    }
    let wide = Tensor::zeros((3, 2, 2), DType::F64, &device).unwrap();
    assert!(matches!(
        ImageInput::from_tensor(&wide),
        Err(Error::DType { found: DType::F64, expected: DType::F32, .. })
    ));
}

#[test]
fn coco_photos_are_within_a_level_of_libjpeg() {
    let Some(data) = std::env::var_os("CANDLE_DETECTION_DATA") else {
        println!("skipped: CANDLE_DETECTION_DATA is not set");
        return;
    };
    let samples = Path::new(&data).join("coco-samples");
    let mut compared = 0;
    for entry in std::fs::read_dir(samples.join("val2017-png")).unwrap() {
        let png = entry.unwrap().path();
        let photo = samples.join("val2017").join(png.with_extension("jpg").file_name().unwrap());
        let expected = rgb(&ImageInput::open(&png).unwrap());
        let found = rgb(&ImageInput::open(&photo).unwrap());
        let (worst, mean) = difference(&found, &expected);
        println!("{}: at most {worst}, on average {mean:.4}", photo.display());
        assert!(mean < 1.0, "{}: {mean}", photo.display());
        compared += 1;
    }
    assert_eq!(compared, 12);
    // All of them decode, upright or not.
    for entry in std::fs::read_dir(samples.join("val2017")).unwrap() {
        ImageInput::open(&entry.unwrap().path()).unwrap();
    }
}
