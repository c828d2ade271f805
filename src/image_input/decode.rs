//! From the bytes of a file to RGB.

use std::panic::{AssertUnwindSafe, catch_unwind};

use image::error::{DecodingError, ImageFormatHint};
use image::{ImageError, ImageFormat, RgbImage};

use super::jpeg;
use super::options::DecodeOptions;
use super::reader::decode_as;
use crate::error::{Error, Result};

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
