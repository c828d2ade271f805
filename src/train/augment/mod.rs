//! Variety: an image and what it shows, changed together, so that a model never sees the same picture twice.
//!
//! In: a [`LabelledImage`]. Out: another one. What is done to it follows from an [`Augmentation`] and a [`Random`]
//! alone. Boxes and keypoints follow the pixels in f32, masks pixel by pixel; an object of which nothing is left is left out.

mod color;
mod copy_paste;
mod keypoints;
mod large_scale;

use image::{GrayImage, RgbImage};

pub use color::ColorJitter;
pub use copy_paste::CopyPaste;
pub use keypoints::{Mirror, ObjectKeypoints};
pub use large_scale::LargeScaleJitter;

use super::random::Random;
use crate::error::Result;
use crate::image_input::ImageInput;
use crate::structures::{BoxXyxy, ImageSize, Rle, Target};

/// An image with the objects in it, in pixels of that image.
#[derive(Debug, Clone, PartialEq)]
pub struct LabelledImage {
    /// Which image, as errors and logs name it.
    pub image_id: u64,
    /// The image.
    pub pixels: RgbImage,
    /// What it shows.
    pub objects: Vec<Object>,
}

/// An object in an image.
#[derive(Debug, Clone, PartialEq)]
pub struct Object {
    /// Category id, above 0.
    pub label: u32,
    /// Where it is.
    pub bbox: BoxXyxy,
    /// Its pixels, 255 inside and 0 outside, of the image's size; `None` where the data has no masks.
    pub mask: Option<GrayImage>,
    /// Its keypoints; `None` where the data has none.
    pub keypoints: Option<ObjectKeypoints>,
}

/// How images are varied; nothing unless a field says so.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Augmentation {
    /// Mirrors left and right with this probability, `0..=1`; torchvision's recipes have 0.5.
    pub flip: f64,
    /// Other colors.
    pub color: Option<ColorJitter>,
    /// Another scale and a part of the image, on a canvas of fixed size.
    pub large_scale: Option<LargeScaleJitter>,
}

impl Augmentation {
    /// Changes an image. `other` yields another image of the same data, chosen by the random numbers it is given, for
    /// objects to be copied from.
    ///
    /// # Errors
    /// Those of `other`.
    pub fn apply(
        &self,
        image: LabelledImage,
        random: &mut Random,
        other: &dyn Fn(&mut Random) -> Result<LabelledImage>,
    ) -> Result<LabelledImage> {
        let mut changed = self.apply_alone(image, random);
        if let Some(paste) = self.large_scale.as_ref().and_then(|scale| scale.copy_paste.as_ref())
            && random.unit() < paste.probability
        {
            let from = self.apply_alone(other(random)?, random);
            paste.apply(&mut changed, &from, random);
        }
        Ok(changed)
    }

    fn apply_alone(&self, mut image: LabelledImage, random: &mut Random) -> LabelledImage {
        if random.unit() < self.flip {
            image.flip();
        }
        if let Some(jitter) = &self.large_scale {
            image = jitter.apply(&image, random);
        }
        if let Some(jitter) = &self.color {
            jitter.apply(&mut image.pixels, random);
        }
        image
    }
}

impl LabelledImage {
    /// Height and width in pixels.
    pub fn size(&self) -> ImageSize {
        ImageSize { height: self.pixels.height() as usize, width: self.pixels.width() as usize }
    }

    /// Mirrors left and right: pixels, boxes, masks and keypoints, of which a left one becomes the right one.
    pub fn flip(&mut self) {
        image::imageops::flip_horizontal_in_place(&mut self.pixels);
        let width = self.pixels.width() as f32;
        for object in &mut self.objects {
            let BoxXyxy { x1, x2, .. } = object.bbox;
            (object.bbox.x1, object.bbox.x2) = (width - x2, width - x1);
            if let Some(mask) = &mut object.mask {
                image::imageops::flip_horizontal_in_place(mask);
            }
            if let Some(keypoints) = &mut object.keypoints {
                keypoints.flip(width);
            }
        }
    }

    /// The form that training takes: an image, and its target.
    ///
    /// # Errors
    /// [`Error::Pixels`](crate::Error::Pixels) for more pixels than run lengths can count.
    pub fn into_input(self) -> Result<(ImageInput, Target)> {
        let Self { image_id, pixels, objects } = self;
        let target = Target {
            image_id,
            boxes: objects.iter().map(|object| object.bbox).collect(),
            labels: objects.iter().map(|object| object.label).collect(),
            masks: objects
                .iter()
                .filter_map(|object| object.mask.as_ref())
                .map(Rle::from_bitmap)
                .collect::<Result<_>>()?,
            keypoints: objects
                .into_iter()
                .filter_map(|object| object.keypoints)
                .map(|keypoints| keypoints.points)
                .collect(),
        };
        Ok((ImageInput::from(pixels), target))
    }
}

impl Object {
    /// Draws the box tightly around the mask; `false` when the mask has no pixel.
    fn fit_box(&mut self) -> bool {
        let Some(extent) = self.mask.as_ref().and_then(extent) else { return false };
        self.bbox = extent;
        true
    }
}

/// The smallest box around a mask's pixels.
pub(super) fn extent(mask: &GrayImage) -> Option<BoxXyxy> {
    let width = mask.width() as usize;
    let (mut x1, mut x2) = (width, 0);
    let (mut y1, mut y2) = (usize::MAX, 0);
    for (y, row) in mask.as_raw().chunks_exact(width.max(1)).enumerate() {
        let Some(first) = row.iter().position(|&value| value > 0) else { continue };
        let last = row.iter().rposition(|&value| value > 0).unwrap_or(first);
        (x1, x2) = (x1.min(first), x2.max(last + 1));
        (y1, y2) = (y1.min(y), y + 1);
    }
    (x2 > 0).then_some(BoxXyxy { x1: x1 as f32, y1: y1 as f32, x2: x2 as f32, y2: y2 as f32 })
}

/// A number in `low..high`.
fn between(random: &mut Random, low: f64, high: f64) -> f64 {
    low + (high - low) * random.unit()
}

#[cfg(test)]
mod tests;
