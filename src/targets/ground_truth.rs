//! Targets in pixels of the batch.

use super::object_mask::ObjectMask;
use crate::error::{Error, Result};
use crate::structures::{BoxXyxy, ImageGeometry, MaskUse, Target};

/// What an image of a batch shows, in pixels of the resized image.
#[derive(Debug, Clone)]
pub struct GroundTruth {
    /// xyxy of each object.
    pub boxes: Vec<[f32; 4]>,
    /// Category id of each object, above 0.
    pub labels: Vec<u32>,
    /// Outline of each object; empty where the model learns no masks.
    pub masks: Vec<ObjectMask>,
}

impl GroundTruth {
    /// Scales a target as its image was scaled, after checking it.
    ///
    /// Boxes are multiplied by resized / original per axis, in f32; they are not clipped.
    ///
    /// # Errors
    /// Those of [`Target::validate`], also for a box whose sides vanish when it is scaled.
    ///
    /// Reference: torchvision `models/detection/transform.py`, `resize_boxes`, `_resize_image_and_masks`.
    pub fn new(
        target: &Target,
        geometry: &ImageGeometry,
        num_classes: usize,
        masks: MaskUse,
    ) -> Result<Self> {
        let ImageGeometry { original, resized } = *geometry;
        target.validate(original, num_classes, masks)?;
        let scale_x = resized.width as f32 / original.width as f32;
        let scale_y = resized.height as f32 / original.height as f32;
        let scaled = |(index, bbox): (usize, &BoxXyxy)| {
            let BoxXyxy { x1, y1, x2, y2 } = *bbox;
            let scaled = [x1 * scale_x, y1 * scale_y, x2 * scale_x, y2 * scale_y];
            if scaled[0] < scaled[2] && scaled[1] < scaled[3] {
                return Ok(scaled);
            }
            Err(Error::Target {
                image_id: target.image_id,
                entry: format!("boxes[{index}]"),
                found: format!("[{x1}, {y1}, {x2}, {y2}]"),
                expected: format!("sides that don't vanish when {original} become {resized}"),
            })
        };
        let masks = match masks {
            MaskUse::Ignored => Vec::new(),
            MaskUse::Needed => target
                .masks
                .iter()
                .map(|mask| ObjectMask::new(mask, resized))
                .collect::<Result<_>>()?,
        };
        Ok(Self {
            boxes: target.boxes.iter().enumerate().map(scaled).collect::<Result<_>>()?,
            labels: target.labels.clone(),
            masks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::structures::ImageSize;

    fn target(bbox: [f32; 4]) -> Target {
        let [x1, y1, x2, y2] = bbox;
        Target {
            image_id: 3,
            boxes: vec![BoxXyxy { x1, y1, x2, y2 }],
            labels: vec![1],
            masks: Vec::new(),
        }
    }

    fn truth(target: &Target, original: [usize; 2], resized: [usize; 2]) -> Result<GroundTruth> {
        let size = |[height, width]: [usize; 2]| ImageSize { height, width };
        let geometry = ImageGeometry { original: size(original), resized: size(resized) };
        GroundTruth::new(target, &geometry, 2, MaskUse::Ignored)
    }

    /// Values measured with torchvision.
    #[test]
    fn axes_are_scaled_separately() {
        let found = truth(&target([0.0, 0.0, 1000.0, 900.0]), [1000, 900], [888, 800]).unwrap();
        let [x1, y1, x2, y2] = found.boxes[0];
        assert_eq!([x1, y1], [0.0, 0.0]);
        assert!((x2 - 888.8889).abs() < 1e-3 && (y2 - 799.2).abs() < 1e-3, "{x2} {y2}");
    }

    /// The message has the box as the user gave it.
    #[test]
    fn a_box_that_vanishes_is_refused_in_original_pixels() {
        let thin = target([1023.999, 5.0, 1023.9991, 9.0]);
        truth(&thin, [2000, 2000], [2000, 2000]).unwrap();
        let message = truth(&thin, [2000, 2000], [510, 510]).unwrap_err().to_string();
        assert!(
            message.contains("image 3") && message.contains("[1023.999, 5, 1023.9991, 9]"),
            "{message}"
        );
        let reversed = target([10.0, 10.0, 10.0, 20.0]);
        let message = truth(&reversed, [100, 100], [800, 800]).unwrap_err().to_string();
        assert!(message.contains("[10, 10, 10, 20]"), "{message}");
    }
}
