//! Arithmetic of sizes, in f64.

use super::ImageConfig;
use crate::structures::ImageSize;

/// Size of an image in the batch: the shorter side becomes `min_size`, unless the longer one would exceed `max_size`.
///
/// Always applied, to images in range too. A side is rounded down, and is at least 1. A model with a fixed size has
/// that instead.
///
/// Reference: torchvision `models/detection/transform.py`, `_resize_image_and_masks`. The reference fails where a side
/// rounds down to nothing; here it keeps one pixel.
pub fn resized_size(original: ImageSize, config: &ImageConfig) -> ImageSize {
    if let Some([height, width]) = config.fixed_size {
        return ImageSize { height, width };
    }
    let shorter = original.height.min(original.width).max(1) as f64;
    let longer = original.height.max(original.width).max(1) as f64;
    let scale = (config.min_size as f64 / shorter).min(config.max_size as f64 / longer);
    let resize = |side: usize| ((side as f64 * scale).floor() as usize).max(1);
    ImageSize { height: resize(original.height), width: resize(original.width) }
}

/// Size of the canvas that holds all images: each side the largest of the batch, rounded up to the divisor.
pub fn padded_size(resized: impl Iterator<Item = ImageSize>, divisor: usize) -> ImageSize {
    let largest = resized.fold(ImageSize { height: 0, width: 0 }, |largest, size| ImageSize {
        height: largest.height.max(size.height),
        width: largest.width.max(size.width),
    });
    ImageSize {
        height: largest.height.next_multiple_of(divisor),
        width: largest.width.next_multiple_of(divisor),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn resized(height: usize, width: usize) -> (usize, usize) {
        let config = config::get("maskrcnn_resnet50_fpn").unwrap().image;
        let size = resized_size(ImageSize { height, width }, &config);
        (size.height, size.width)
    }

    /// Values measured with torchvision.
    #[test]
    fn sizes_are_the_references() {
        let table = [
            ((480, 640), (800, 1066)),
            ((427, 640), (800, 1199)),
            ((426, 640), (800, 1201)),
            ((600, 1000), (799, 1333)),
            ((801, 1334), (800, 1332)),
            ((10, 5000), (2, 1333)),
            ((1, 1000), (1, 1333)),
            ((900, 1000), (800, 888)),
            ((300, 400), (800, 1066)),
            ((1, 1), (800, 800)),
        ];
        for ((height, width), expected) in table {
            assert_eq!(resized(height, width), expected, "{height}×{width}");
        }
    }

    #[test]
    fn a_fixed_size_is_that_of_every_image() {
        let mut config = config::get("maskrcnn_resnet50_fpn").unwrap().image;
        config.fixed_size = Some([300, 320]);
        for (height, width) in [(480, 640), (10, 5000), (300, 300)] {
            let size = resized_size(ImageSize { height, width }, &config);
            assert_eq!(size, ImageSize { height: 300, width: 320 });
        }
    }

    #[test]
    fn no_side_vanishes() {
        assert_eq!(resized(1, 5000), (1, 1333));
        assert_eq!(resized(5000, 1), (1333, 1));
    }

    #[test]
    fn images_in_range_are_resized_too() {
        let mut config = config::get("maskrcnn_resnet50_fpn").unwrap().image;
        config.min_size = 32;
        let size = resized_size(ImageSize { height: 512, width: 512 }, &config);
        assert_eq!(size, ImageSize { height: 32, width: 32 });
    }

    #[test]
    fn the_canvas_holds_the_largest_sides() {
        let sizes = [(800, 1066), (1066, 800)].map(|(height, width)| ImageSize { height, width });
        let padded = padded_size(sizes.into_iter(), 32);
        assert_eq!(padded, ImageSize { height: 1088, width: 1088 });
        assert_eq!(padded_size(std::iter::empty(), 32), ImageSize { height: 0, width: 0 });
    }
}
