//! The mask of one detection: small probabilities in a box, until somebody needs pixels.

use std::sync::Arc;

use image::{GrayImage, ImageBuffer, Luma};

use super::detections::BoxXyxy;
use super::image::ImageSize;
use crate::error::{Error, Result};

/// Mask probabilities of one box, at the head's resolution until somebody needs pixels.
#[derive(Debug, Clone)]
pub struct Mask {
    side: usize,
    probabilities: Arc<[f32]>,
    bbox: BoxXyxy,
    image_size: ImageSize,
}

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

/// Run lengths of a binary mask as COCO has them: down the columns, starting with zeros.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rle {
    /// Size of the image.
    pub size: ImageSize,
    /// Alternating lengths of runs of 0 and of 1; they sum up to height · width.
    pub counts: Vec<u32>,
}

/// A closed outline: `[x, y]` corners in pixels.
pub type Polygon = Vec<[f32; 2]>;

impl Mask {
    /// A mask of `side · side` probabilities, row by row, that fills `bbox` of an image of `image_size`.
    ///
    /// # Errors
    /// [`Error::Pixels`] when the number of probabilities is not `side · side`.
    pub fn new(
        side: usize,
        probabilities: Arc<[f32]>,
        bbox: BoxXyxy,
        image_size: ImageSize,
    ) -> Result<Self> {
        if side == 0 || probabilities.len() != side * side {
            return Err(Error::Pixels {
                what: "a mask".to_owned(),
                found: format!("{} probabilities", probabilities.len()),
                expected: format!("{side} × {side}, at least one"),
            });
        }
        Ok(Self { side, probabilities, bbox, image_size })
    }

    /// The probabilities in the pixels that the box covers.
    pub fn region(&self) -> MaskRegion {
        todo!()
    }

    /// The mask as an image of probabilities, as torchvision returns it.
    pub fn paste(&self) -> ImageBuffer<Luma<f32>, Vec<f32>> {
        todo!()
    }

    /// 255 where the probability is strictly above the threshold, else 0.
    pub fn binarize(&self, _threshold: f32) -> GrayImage {
        todo!()
    }

    /// COCO's run lengths of the pixels strictly above the threshold.
    pub fn to_rle(&self, threshold: f32) -> Rle {
        todo!()
    }

    /// Outlines of the pixels strictly above the threshold.
    pub fn to_polygons(&self, threshold: f32) -> Vec<Polygon> {
        todo!()
    }
}
