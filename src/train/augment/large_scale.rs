//! Another scale, and a part of the image.

use image::imageops::{self, FilterType};
use image::{GrayImage, Luma, Rgb, RgbImage};

use super::{CopyPaste, LabelledImage, Object, between};
use crate::structures::{BoxXyxy, ImageSize};
use crate::train::Random;

/// Scales an image by a random factor and shows a random part of it on a canvas of fixed size; what the image does not
/// cover is filled.
///
/// Reference: Ghiasi et al., "Simple Copy-Paste" (arXiv:2012.07177), "large scale jittering".
#[derive(Debug, Clone, PartialEq)]
pub struct LargeScaleJitter {
    /// The canvas.
    pub size: ImageSize,
    /// Least and largest factor, relative to the scale at which the image just fits the canvas: 0.1 and 2.0 in the paper.
    pub scale: (f64, f64),
    /// Color of what the image does not cover: the mean of the data, which becomes 0 when the image is normalised.
    pub fill: [u8; 3],
    /// Objects of other images, added.
    pub copy_paste: Option<CopyPaste>,
}

/// Sides of a box that is still an object, in pixels of the canvas.
const LEAST_SIDE: f32 = 1.0;

impl LargeScaleJitter {
    pub(super) fn apply(&self, image: &LabelledImage, random: &mut Random) -> LabelledImage {
        let ImageSize { height, width } = image.size();
        let fits =
            (self.size.height as f64 / height as f64).min(self.size.width as f64 / width as f64);
        let factor = fits * between(random, self.scale.0, self.scale.1);
        let side = |pixels: usize| ((pixels as f64 * factor).round() as usize).max(1);
        let scaled = ImageSize { height: side(height), width: side(width) };
        // Where the canvas begins in the scaled image.
        let top = random.below(scaled.height.saturating_sub(self.size.height) + 1);
        let left = random.below(scaled.width.saturating_sub(self.size.width) + 1);
        self.show(image, scaled, [left, top])
    }

    /// The canvas with an image of size `scaled`, from its pixel `origin` (column, row) on.
    pub(super) fn show(
        &self,
        image: &LabelledImage,
        scaled: ImageSize,
        [left, top]: [usize; 2],
    ) -> LabelledImage {
        let canvas = (self.size.width as u32, self.size.height as u32);
        let (width, height) = (scaled.width as u32, scaled.height as u32);
        // The mean over the area where it shrinks, linear where it grows.
        let resized = imageops::resize(&image.pixels, width, height, FilterType::Triangle);
        let mut pixels = RgbImage::from_pixel(canvas.0, canvas.1, Rgb(self.fill));
        imageops::replace(&mut pixels, &resized, -(left as i64), -(top as i64));
        let original = image.size();
        let ratio_x = scaled.width as f32 / original.width as f32;
        let ratio_y = scaled.height as f32 / original.height as f32;
        let (shift_x, shift_y) = (left as f32, top as f32);
        let objects = image.objects.iter().filter_map(|object| {
            let BoxXyxy { x1, y1, x2, y2 } = object.bbox;
            let moved = BoxXyxy {
                x1: x1 * ratio_x - shift_x,
                y1: y1 * ratio_y - shift_y,
                x2: x2 * ratio_x - shift_x,
                y2: y2 * ratio_y - shift_y,
            };
            let mask = object.mask.as_ref();
            let mask = mask.map(|mask| place(mask, scaled, [left, top], self.size));
            let bbox = clipped(moved, self.size);
            let keypoints = object.keypoints.as_ref().map(|keypoints| {
                let place = |x, y| [x * ratio_x - shift_x, y * ratio_y - shift_y];
                keypoints.moved(self.size, place)
            });
            let mut object = Object { label: object.label, bbox, mask, keypoints };
            let whole = object.mask.is_none() || (bbox == moved && has_pixels(&object));
            let stands = whole || object.fit_box();
            let large = object.bbox.width() >= LEAST_SIDE && object.bbox.height() >= LEAST_SIDE;
            (stands && large).then_some(object)
        });
        LabelledImage { image_id: image.image_id, objects: objects.collect(), pixels }
    }
}

fn has_pixels(object: &Object) -> bool {
    object.mask.as_ref().is_some_and(|mask| mask.iter().any(|&value| value > 0))
}

fn clipped(bbox: BoxXyxy, size: ImageSize) -> BoxXyxy {
    let (width, height) = (size.width as f32, size.height as f32);
    BoxXyxy {
        x1: bbox.x1.clamp(0.0, width),
        y1: bbox.y1.clamp(0.0, height),
        x2: bbox.x2.clamp(0.0, width),
        y2: bbox.y2.clamp(0.0, height),
    }
}

/// The part of a scaled mask that the canvas shows: each pixel is that of the mask under its centre.
fn place(
    mask: &GrayImage,
    scaled: ImageSize,
    [left, top]: [usize; 2],
    canvas: ImageSize,
) -> GrayImage {
    let source = |position: usize, scaled: usize, original: u32| {
        // Beyond the image there is nothing.
        (position < scaled).then(|| {
            let centre = (position as f64 + 0.5) * f64::from(original) / scaled as f64;
            (centre as u32).min(original - 1)
        })
    };
    let columns: Vec<Option<u32>> =
        (0..canvas.width).map(|x| source(x + left, scaled.width, mask.width())).collect();
    let rows: Vec<Option<u32>> =
        (0..canvas.height).map(|y| source(y + top, scaled.height, mask.height())).collect();
    GrayImage::from_fn(canvas.width as u32, canvas.height as u32, |x, y| {
        match (columns[x as usize], rows[y as usize]) {
            (Some(x), Some(y)) => *mask.get_pixel(x, y),
            _ => Luma([0]),
        }
    })
}
