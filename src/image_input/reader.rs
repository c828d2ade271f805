//! From the bytes of a file of a known format to RGB, within limits.

use std::error::Error as _;
use std::io::{Cursor, ErrorKind};

use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits, RgbImage};

use super::options::{DecodeOptions, Orientation};
use crate::error::{Error, Result};

/// Bytes per pixel of the widest pixel that a file may hold: four 32-bit floats.
const WIDEST_PIXEL: u64 = 16;

/// What decoders may allocate beside pixels: windows, tables, rows.
const DECODER_OVERHEAD: u64 = 64 << 20;

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
