//! The mask of one detection: small probabilities in a box, until somebody needs pixels.
//!
//! `region` has the pixels that torchvision computes, `rle` and `polygon` turn pixels into the two forms of COCO files.

mod polygon;
mod region;
mod rle;

use std::sync::Arc;

use image::{GrayImage, ImageBuffer, Luma};

use super::boxes::BoxXyxy;
use super::image::ImageSize;
use crate::error::{Error, Result};

pub use polygon::{Polygon, PolygonKind};
pub use region::MaskRegion;
pub use rle::Rle;

/// Mask probabilities of one box, at the head's resolution until somebody needs pixels.
#[derive(Debug, Clone)]
pub struct Mask {
    side: usize,
    probabilities: Arc<[f32]>,
    bbox: BoxXyxy,
    image_size: ImageSize,
}

impl Mask {
    /// A mask of `side · side` probabilities, row by row, that fills `bbox` of an image of `image_size`.
    ///
    /// Any box is fine: one outside the image, reversed, infinite or NaN has no pixels.
    ///
    /// # Errors
    /// [`Error::Pixels`] when the number of probabilities is not `side · side`, or when the image has more pixels than
    /// run lengths can count (`u32::MAX`).
    pub fn new(
        side: usize,
        probabilities: Arc<[f32]>,
        bbox: BoxXyxy,
        image_size: ImageSize,
    ) -> Result<Self> {
        if side == 0 || side.checked_mul(side) != Some(probabilities.len()) {
            return Err(Error::Pixels {
                what: "a mask".to_owned(),
                found: format!("{} probabilities", probabilities.len()),
                expected: format!("{side} × {side}, at least one"),
            });
        }
        rle::pixel_count(image_size)?;
        Ok(Self { side, probabilities, bbox, image_size })
    }

    /// The box that the probabilities fill, in pixels of the image.
    pub fn bbox(&self) -> BoxXyxy {
        self.bbox
    }

    /// Size of the image that the mask belongs to.
    pub fn image_size(&self) -> ImageSize {
        self.image_size
    }

    /// Rows, and columns, of the probabilities as the mask head gave them: 28 for the published models.
    pub fn side(&self) -> usize {
        self.side
    }

    /// The `side · side` probabilities as the mask head gave them, row by row, in `0..=1`.
    pub fn probabilities(&self) -> &[f32] {
        &self.probabilities
    }

    /// The probabilities in the pixels that the box covers.
    ///
    /// Cost and memory follow the part of the image that the box covers, not the image. It is the box after torchvision's
    /// growth by `(side + 2) / side`, so up to 4 % wider on each side than the detection's for a side of 28.
    pub fn region(&self) -> MaskRegion {
        MaskRegion::new(self.side, &self.probabilities, self.bbox, self.image_size)
    }

    /// The mask as an image of probabilities, as torchvision returns it: 0 outside the box, 4 · height · width bytes.
    pub fn paste(&self) -> ImageBuffer<Luma<f32>, Vec<f32>> {
        self.on_canvas(&self.region(), |probability| probability)
    }

    /// 255 where the probability is strictly above the threshold, else 0. torchvision's examples use 0.5.
    ///
    /// The threshold applies to the pixels, after interpolation: the outline is finer than the head's resolution.
    pub fn binarize(&self, threshold: f32) -> GrayImage {
        self.on_canvas(&self.region(), |probability| if probability > threshold { 255 } else { 0 })
    }

    /// COCO's run lengths of the pixels strictly above the threshold.
    ///
    /// The threshold is at least 0, as pixels outside the box are 0; a negative one counts as 0.
    pub fn to_rle(&self, threshold: f32) -> Rle {
        Rle::from_region(&self.region(), self.image_size, threshold.max(0.0))
    }

    /// Outlines of the pixels strictly above the threshold, along the edges of pixels: per 4-connected part the outer
    /// one, and one per hole.
    ///
    /// Corners have whole coordinates; pixel `(x, y)` is the square from `[x, y]` to `[x + 1, y + 1]`. Filling all of
    /// them by the even-odd rule gives exactly the mask. COCO files have no holes, so a COCO segmentation is made of the
    /// outer outlines alone ([`PolygonKind::Outer`]), and pycocotools fills each of them exactly.
    ///
    /// The threshold is at least 0, as pixels outside the box are 0; a negative one counts as 0.
    pub fn to_polygons(&self, threshold: f32) -> Vec<Polygon> {
        polygon::trace(&self.region(), threshold.max(0.0))
    }

    /// An image of 0 with the converted region in its place.
    fn on_canvas<T>(
        &self,
        region: &MaskRegion,
        convert: impl Fn(f32) -> T,
    ) -> ImageBuffer<Luma<T>, Vec<T>>
    where
        Luma<T>: image::Pixel<Subpixel = T>,
        T: image::Primitive,
    {
        let ImageSize { height, width } = self.image_size;
        // `new` keeps the number of pixels, and so each side of an image that has any, within u32.
        let mut canvas = ImageBuffer::new(width as u32, height as u32);
        let pixels: &mut [T] = &mut canvas;
        for (row, values) in region.rows().enumerate() {
            let start = (region.y + row) * width + region.x;
            for (pixel, &value) in pixels[start..start + region.width].iter_mut().zip(values) {
                *pixel = convert(value);
            }
        }
        canvas
    }
}
