//! From pixels to the batch: normalises, resizes and pads images of any size.

mod cpu;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};

use super::support::check::{argument, unsupported, with_slice};
use crate::error::{Error, Result};

const OP: &str = "resize_normalize";

/// Pixels of one image, where they lie.
#[derive(Debug, Clone, Copy)]
pub enum PixelSource<'a> {
    /// Interleaved red, green, blue of `0..=255`, row by row, in host memory whatever the device of the batch:
    /// bytes are a quarter of the floats, so a device gets them as they are, in one copy per batch.
    Rgb8 {
        /// `height · width · 3` bytes.
        bytes: &'a [u8],
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
    },
    /// `[3, H, W]` f32 in `0..=1`, planes red, green, blue, on the device of the batch.
    Planar(&'a Tensor),
}

/// What [`resize_normalize`] needs to know besides pixels.
#[derive(Debug, Clone, PartialEq)]
pub struct ResizeNormalizeParams {
    /// Mean of red, green, blue, of values in `0..=1`.
    pub mean: [f32; 3],
    /// Standard deviation of red, green, blue, of values in `0..=1`.
    pub std: [f32; 3],
    /// Height and width of each image in the batch.
    pub resized: Vec<(usize, usize)>,
    /// Height and width of the batch.
    pub padded: (usize, usize),
    /// Of the batch: f32, f16 or bf16; the arithmetic is in f32 whatever it is.
    pub dtype: DType,
}

/// Normalises images, resizes each to its size and puts it at the top left of a zero canvas.
///
/// A value becomes `(v − mean) / std`, where bytes stand for `v = byte / 255`. Resizing is bilinear with half-pixel
/// centers and no antialiasing: row `y` is sampled at `max((y + ½) · input / output − ½, 0)`, in f32, columns alike, so
/// shrinking an image much skips pixels, which the published weights are used to. Rows and columns beyond the resized
/// size are 0 *after* normalisation, which is not what a black pixel becomes.
///
/// # Shapes
/// | argument | shape | dtype | unit |
/// | --- | --- | --- | --- |
/// | `images` | one [`PixelSource`] per image | u8 or f32 | RGB |
/// | `params.resized` | one (height, width) per image, at least 1×1, at most `padded` | | pixels |
/// | returns | `[N, padded.0, padded.1, 3]` | `params.dtype` | standard deviations |
///
/// # Devices
/// CPU. O(N·H·W) time; pixels are normalised as they are sampled, so scratch does not grow with the images.
///
/// # Gradients
/// None.
///
/// # Errors
/// [`Error::Pixels`] when bytes and size of an image disagree, when an image is empty, or when a resized size doesn't
/// fit; [`Error::Shape`], [`Error::DType`] or [`Error::Device`] for planes that don't fit the table;
/// [`Error::Unsupported`] on other devices.
///
/// # Example
/// ```
/// use candle_core::{DType, Device};
/// use candle_detection::ops::{PixelSource, ResizeNormalizeParams, resize_normalize};
///
/// let red = PixelSource::Rgb8 { bytes: &[255, 0, 0], height: 1, width: 1 };
/// let params = ResizeNormalizeParams {
///     mean: [0.5; 3],
///     std: [0.25; 3],
///     resized: vec![(1, 2)],
///     padded: (1, 3),
///     dtype: DType::F32,
/// };
/// let batch = resize_normalize(&[red], &params, &Device::Cpu)?;
/// let red = [2f32, -2.0, -2.0];
/// assert_eq!(batch.dims(), [1, 1, 3, 3]);
/// assert_eq!(batch.get(0)?.to_vec3::<f32>()?, [[red, red, [0.0; 3]]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Reference: torchvision `models/detection/transform.py`, `GeneralizedRCNNTransform`.
pub fn resize_normalize(
    images: &[PixelSource<'_>],
    params: &ResizeNormalizeParams,
    device: &Device,
) -> Result<Tensor> {
    check(images, params, device)?;
    match device {
        Device::Cpu => {
            let (height, width) = params.padded;
            let mut batch = vec![0f32; images.len() * height * width * 3];
            if !batch.is_empty() {
                let canvases = batch.chunks_exact_mut(height * width * 3);
                for ((image, resized), canvas) in images.iter().zip(&params.resized).zip(canvases) {
                    match image {
                        PixelSource::Rgb8 { bytes, height, width } => {
                            let pixels = cpu::Bytes::new(bytes, params);
                            cpu::run(&pixels, (*height, *width), *resized, params.padded, canvas);
                        }
                        PixelSource::Planar(planes) => {
                            let (_, height, width) = planes.dims3()?;
                            with_slice(planes, |planes: &[f32]| {
                                let pixels = cpu::Planes::new(planes, params);
                                cpu::run(&pixels, (height, width), *resized, params.padded, canvas);
                            })?;
                        }
                    }
                }
            }
            let batch = Tensor::from_vec(batch, (images.len(), height, width, 3), device)?;
            Ok(batch.to_dtype(params.dtype)?)
        }
        other => Err(unsupported(OP, other)),
    }
}

fn check(
    images: &[PixelSource<'_>],
    params: &ResizeNormalizeParams,
    device: &Device,
) -> Result<()> {
    let fault = |what: String, found: String, expected: String| {
        Err(Error::Pixels { what, found, expected })
    };
    if params.resized.len() != images.len() {
        let found = format!("{} resized sizes", params.resized.len());
        return fault("the batch".to_owned(), found, format!("{}, one per image", images.len()));
    }
    let usable = params.mean.iter().chain(&params.std).all(|v| v.is_finite())
        && params.std.iter().all(|std| *std != 0.0);
    if !usable {
        let found = format!("mean {:?} and std {:?}", params.mean, params.std);
        return fault(
            "the normalisation".to_owned(),
            found,
            "finite numbers, std not 0".to_owned(),
        );
    }
    if !matches!(params.dtype, DType::F32 | DType::F16 | DType::BF16) {
        let found = format!("the dtype {:?}", params.dtype);
        return fault("the batch".to_owned(), found, "f32, f16 or bf16".to_owned());
    }
    for (i, (image, resized)) in images.iter().zip(&params.resized).enumerate() {
        let what = format!("image {i} of the batch");
        let (height, width) = match image {
            PixelSource::Rgb8 { bytes, height, width } => {
                if height.checked_mul(*width).and_then(|n| n.checked_mul(3)) != Some(bytes.len()) {
                    let found = format!("{} bytes", bytes.len());
                    let expected = format!("3 · {height} · {width} (height, width)");
                    return fault(what, found, expected);
                }
                (*height, *width)
            }
            PixelSource::Planar(planes) => {
                let expected = "[3, H, W]";
                let planes = argument(OP, "images", planes).dtype(DType::F32)?.on(device)?;
                let [channels, height, width] = planes.dims(expected)?;
                if channels != 3 {
                    return Err(planes.shape_error(expected));
                }
                (height, width)
            }
        };
        if height == 0 || width == 0 {
            let found = format!("{height}×{width} pixels (height × width)");
            return fault(what, found, "at least one".to_owned());
        }
        let fits = |size: usize, limit: usize| (1..=limit).contains(&size);
        if !fits(resized.0, params.padded.0) || !fits(resized.1, params.padded.1) {
            let found = format!("the resized size {}×{} (height × width)", resized.0, resized.1);
            let expected = format!("1×1 to the batch's {}×{}", params.padded.0, params.padded.1);
            return fault(what, found, expected);
        }
    }
    Ok(())
}
