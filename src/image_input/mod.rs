//! Images as users have them: files, pixel buffers, tensors.
//!
//! In: a path or pixels. Out: an [`ImageInput`]. This room knows nothing of models, resizing or devices.

use std::path::Path;

use candle_core::Tensor;

use crate::error::Result;
use crate::structures::ImageSize;

/// An image to look at: RGB, at its own size.
#[derive(Debug, Clone)]
pub struct ImageInput {
    pixels: Pixels,
    size: ImageSize,
}

/// The two forms in which pixels arrive.
#[derive(Debug, Clone)]
pub enum Pixels {
    /// Interleaved red, green, blue of `0..=255`, row by row.
    Rgb8(std::sync::Arc<[u8]>),
    /// `[3, H, W]` f32 in `0..=1`.
    Planar(Tensor),
}

impl ImageInput {
    /// Decodes a file.
    pub fn open(_path: &Path) -> Result<Self> {
        todo!()
    }

    /// Height and width in pixels.
    pub fn size(&self) -> ImageSize {
        self.size
    }

    /// The pixels, in the form they came.
    pub fn pixels(&self) -> &Pixels {
        &self.pixels
    }
}
