//! How to decode an image.

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
