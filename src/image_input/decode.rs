//! From the bytes of a file to RGB.

use std::error::Error as _;
use std::io::{Cursor, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};

use image::error::{DecodingError, ImageFormatHint};
use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits, RgbImage};

use super::jpeg;
use crate::error::{Error, Result};

/// Bytes per pixel of the widest pixel that a file may hold: four 32-bit floats.
const WIDEST_PIXEL: u64 = 16;

/// What decoders may allocate beside pixels: windows, tables, rows.
const DECODER_OVERHEAD: u64 = 64 << 20;

/// Whether to turn a picture as its EXIF orientation says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Orientation {
    /// As viewers show it. Size, boxes and masks are those of the turned picture.
    #[default]
    Upright,
    /// As stored. torchvision's own reader and the annotations of COCO take pixels so.
    Raw,
}

/// How to decode an image.
///
/// ```
/// # use candle_detection::{DecodeOptions, Orientation};
/// let options = DecodeOptions { orientation: Orientation::Raw, ..DecodeOptions::default() };
/// assert!(options.max_pixels >= 20_000 * 20_000);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Whether to turn the picture as its EXIF orientation says. Default: [`Orientation::Upright`].
    pub orientation: Orientation,
    /// Limit on width · height, checked before pixels are allocated. What a decoder may allocate follows from it: 16
    /// bytes per pixel and 64 MiB. Default: 2²⁹ = 536,870,912, of which the decoded image takes 1.5 GiB.
    pub max_pixels: u64,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        Self { orientation: Orientation::Upright, max_pixels: 1 << 29 }
    }
}

/// Decodes the content of a file.
pub(super) fn decode(bytes: &[u8], origin: &str, options: &DecodeOptions) -> Result<RgbImage> {
    let truncated = || Error::TruncatedImage { origin: origin.to_owned() };
    if bytes.is_empty() {
        return Err(truncated());
    }
    let format = image::guess_format(bytes)
        .map_err(|source| Error::Image { origin: origin.to_owned(), source })?;
    // Decoders are written to return errors; where one panics on a malformed file all the same, its caller must not.
    catch_unwind(AssertUnwindSafe(|| match decode_as(format, bytes, origin, options) {
        // The decoder fills up what is missing, or complains of something else.
        Ok(image) if format != ImageFormat::Jpeg => Ok(image),
        Ok(image) if jpeg::is_complete(bytes, &image, options.orientation) => Ok(image),
        Ok(_) => Err(truncated()),
        Err(Error::Image { .. }) if format == ImageFormat::Jpeg && jpeg::lacks_scans(bytes) => {
            Err(truncated())
        }
        Err(error) => Err(error),
    }))
    .unwrap_or_else(|_| {
        let hint = ImageFormatHint::Exact(format);
        let source = ImageError::Decoding(DecodingError::new(hint, "the decoder panicked"));
        Err(Error::Image { origin: origin.to_owned(), source })
    })
}

/// Decodes the content of a file of a format.
pub(super) fn decode_as(
    format: ImageFormat,
    bytes: &[u8],
    origin: &str,
    options: &DecodeOptions,
) -> Result<RgbImage> {
    let fault = |source: ImageError| {
        if stops_early(&source) {
            Error::TruncatedImage { origin: origin.to_owned() }
        } else {
            Error::Image { origin: origin.to_owned(), source }
        }
    };
    let max_pixels = options.max_pixels;
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    let mut limits = Limits::no_limits();
    limits.max_alloc =
        Some(max_pixels.saturating_mul(WIDEST_PIXEL).saturating_add(DECODER_OVERHEAD));
    reader.limits(limits);

    let mut decoder = reader.into_decoder().map_err(fault)?;
    let (width, height) = decoder.dimensions();
    let (width, height) = (u64::from(width), u64::from(height));
    let too_large =
        || Error::ImageTooLarge { origin: origin.to_owned(), width, height, max_pixels };
    if width * height > max_pixels {
        return Err(too_large());
    }
    let orientation = match options.orientation {
        Orientation::Upright => decoder.orientation().map_err(fault)?,
        Orientation::Raw => image::metadata::Orientation::NoTransforms,
    };
    let image = DynamicImage::from_decoder(decoder).map_err(|source| match source {
        ImageError::Limits(_) => too_large(),
        other => fault(other),
    })?;
    let mut image = DynamicImage::from(image.into_rgb8());
    image.apply_orientation(orientation);
    Ok(image.into_rgb8())
}

/// Whether the cause of an error is data that ends before the image does.
fn stops_early(error: &ImageError) -> bool {
    if let ImageError::IoError(error) = error {
        return error.kind() == ErrorKind::UnexpectedEof;
    }
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            return error.kind() == ErrorKind::UnexpectedEof;
        }
        cause = error.source();
    }
    false
}
