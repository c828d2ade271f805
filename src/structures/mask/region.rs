//! The pixels that a mask's box covers.

use crate::ops::support::paste;
use crate::structures::{BoxXyxy, ImageSize};

/// The part of an image that a mask's box covers, with a probability per pixel; everything outside is 0.
#[derive(Debug, Clone, PartialEq)]
pub struct MaskRegion {
    /// First column.
    pub x: usize,
    /// First row.
    pub y: usize,
    /// Columns; 0 when the box misses the image.
    pub width: usize,
    /// Rows; 0 when the box misses the image.
    pub height: usize,
    /// `height · width` values in `0..=1`, row by row.
    pub probabilities: Vec<f32>,
}

impl MaskRegion {
    /// The pixels of `bbox` inside the image.
    pub(super) fn new(
        side: usize,
        probabilities: &[f32],
        bbox: BoxXyxy,
        image_size: ImageSize,
    ) -> Self {
        let BoxXyxy { x1, y1, x2, y2 } = bbox;
        let size = (image_size.height, image_size.width);
        let paste::Region { x, y, width, height, probabilities } =
            paste::region(side, probabilities, [x1, y1, x2, y2], size);
        Self { x, y, width, height, probabilities }
    }

    /// The rows, top to bottom, of `width` probabilities each.
    pub fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.probabilities.chunks_exact(self.width.max(1))
    }
}
