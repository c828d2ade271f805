//! Images as users have them: files, pixel buffers, tensors.
//!
//! In: a path or pixels. Out: an [`ImageInput`]. This room knows nothing of models, resizing or devices.

mod decode;
mod jpeg;
mod options;
mod reader;

use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Tensor};
use image::{DynamicImage, RgbImage};

use crate::error::{Error, Result};
use crate::structures::ImageSize;

pub use options::{DecodeOptions, Orientation};

/// An image to look at: RGB, at its own size. Cloning it is cheap.
///
/// Files may be JPEG (grey, colour, CMYK and YCCK; baseline and progressive), PNG, WebP, BMP, TIFF or GIF (its first
/// frame), told apart by their content and not by their name. As Pillow's `convert("RGB")` does, alpha is dropped
/// without blending and colour profiles are ignored; 16-bit samples are scaled to 8.
#[derive(Debug, Clone)]
pub struct ImageInput {
    pixels: Pixels,
    size: ImageSize,
}

/// The two forms in which pixels arrive.
#[derive(Debug, Clone)]
pub enum Pixels {
    /// Interleaved red, green, blue of `0..=255`, row by row.
    Rgb8(Arc<[u8]>),
    /// `[3, H, W]` f32 in `0..=1`.
    Planar(Tensor),
}

impl ImageInput {
    /// Decodes a file, upright and within the default limits; see [`DecodeOptions`].
    ///
    /// # Errors
    /// [`Error::Io`] when the file can't be read; otherwise those of [`ImageInput::from_bytes`], naming the file.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, &DecodeOptions::default())
    }

    /// Decodes a file.
    ///
    /// # Errors
    /// As [`ImageInput::open`].
    pub fn open_with(path: &Path, options: &DecodeOptions) -> Result<Self> {
        let bytes =
            std::fs::read(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
        Self::from_bytes(&bytes, &path.display().to_string(), options)
    }

    /// Decodes the content of a file. `origin` says in errors where it is from.
    ///
    /// # Errors
    /// [`Error::TruncatedImage`] when the data stops early, [`Error::ImageTooLarge`] beyond the limits, and
    /// [`Error::Image`] for everything else that can't be decoded.
    pub fn from_bytes(bytes: &[u8], origin: &str, options: &DecodeOptions) -> Result<Self> {
        decode::decode(bytes, origin, options).map(Self::from)
    }

    /// Takes `3 · width · height` bytes: interleaved red, green, blue, row by row.
    ///
    /// # Errors
    /// [`Error::Pixels`] for another number of bytes, and for an image without pixels.
    pub fn from_rgb8(width: usize, height: usize, interleaved: Vec<u8>) -> Result<Self> {
        let expected = width.checked_mul(height).and_then(|n| n.checked_mul(3));
        if interleaved.is_empty() || expected != Some(interleaved.len()) {
            return Err(Error::Pixels {
                what: "an RGB buffer".to_owned(),
                found: format!("{} bytes", interleaved.len()),
                expected: format!("3 × {width} × {height} (width × height), at least one pixel"),
            });
        }
        let size = ImageSize { height, width };
        Ok(Self { pixels: Pixels::Rgb8(interleaved.into()), size })
    }

    /// Takes a tensor `[3, H, W]`, channels red, green, blue: f32 in `0..=1`, or u8, whose values are divided by 255.
    ///
    /// # Errors
    /// [`Error::Pixels`] for another shape or an image without pixels, [`Error::DType`] for another data type.
    pub fn from_tensor(tensor: &Tensor) -> Result<Self> {
        let (height, width) = match *tensor.dims() {
            [3, height, width] if height > 0 && width > 0 => (height, width),
            _ => {
                return Err(Error::Pixels {
                    what: "an image tensor".to_owned(),
                    found: format!("shape {:?}", tensor.dims()),
                    expected: "[3, height, width], at least one pixel".to_owned(),
                });
            }
        };
        let pixels = match tensor.dtype() {
            DType::F32 => tensor.contiguous()?,
            DType::U8 => {
                // A division, as a product with 1/255 differs from it in the last bit.
                let largest = Tensor::new(255f32, tensor.device())?;
                tensor.to_dtype(DType::F32)?.contiguous()?.broadcast_div(&largest)?
            }
            found => {
                return Err(Error::DType {
                    op: "ImageInput::from_tensor",
                    argument: "tensor",
                    expected: DType::F32,
                    found,
                });
            }
        };
        Ok(Self { pixels: Pixels::Planar(pixels), size: ImageSize { height, width } })
    }

    /// Height and width in pixels, after any turn that the file asks for.
    pub fn size(&self) -> ImageSize {
        self.size
    }

    /// The pixels, in the form they came.
    pub fn pixels(&self) -> &Pixels {
        &self.pixels
    }

    /// The pixels as 8-bit RGB, for instance to draw on. Values of a tensor are rounded, those outside `0..=1` cut.
    ///
    /// # Errors
    /// Those of candle when the pixels are a tensor; [`Error::Pixels`] when a side is beyond `u32`.
    pub fn to_rgb8(&self) -> Result<RgbImage> {
        let bytes = match &self.pixels {
            Pixels::Rgb8(bytes) => bytes.to_vec(),
            Pixels::Planar(tensor) => {
                let values = tensor.permute((1, 2, 0))?.flatten_all()?.to_vec1::<f32>()?;
                // `as` cuts to 0..=255.
                values.into_iter().map(|value| (value * 255.0).round() as u8).collect()
            }
        };
        let side = |n: usize| u32::try_from(n).ok();
        side(self.size.width)
            .zip(side(self.size.height))
            .and_then(|(width, height)| RgbImage::from_raw(width, height, bytes))
            .ok_or_else(|| Error::Pixels {
                what: "an image".to_owned(),
                found: format!("a size of {}", self.size),
                expected: format!("sides up to {}", u32::MAX),
            })
    }
}

/// Drops alpha and scales 16 bits to 8. EXIF orientation is none of it: the decoder has to apply it.
impl From<DynamicImage> for ImageInput {
    fn from(image: DynamicImage) -> Self {
        Self::from(image.into_rgb8())
    }
}

impl From<RgbImage> for ImageInput {
    fn from(image: RgbImage) -> Self {
        let size = ImageSize { height: image.height() as usize, width: image.width() as usize };
        Self { pixels: Pixels::Rgb8(image.into_raw().into()), size }
    }
}
