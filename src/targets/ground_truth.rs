//! Targets in pixels of the batch.

use super::object_mask::ObjectMask;
use crate::error::{Error, Result};
use crate::structures::{
    BoxXyxy, ImageGeometry, KeypointUse, MaskUse, Target, TargetKeypoint, TargetNeeds,
};

/// What an image of a batch shows, in pixels of the resized image.
#[derive(Debug, Clone)]
pub struct GroundTruth {
    /// xyxy of each object.
    pub boxes: Vec<[f32; 4]>,
    /// Category id of each object, above 0.
    pub labels: Vec<u32>,
    /// Outline of each object; empty where the model learns no masks.
    pub masks: Vec<ObjectMask>,
    /// x, y and visibility (0, 1, 2) of each keypoint of each object; empty where the model learns no keypoints.
    pub keypoints: Vec<Vec<[f32; 3]>>,
    /// Keypoints of an object, also where there is none; 0 where the model learns no keypoints.
    pub points: usize,
}

impl GroundTruth {
    /// Scales a target as its image was scaled, after checking it.
    ///
    /// Boxes and keypoints are multiplied by resized / original per axis, in f32; they are not clipped.
    ///
    /// # Errors
    /// Those of [`Target::validate`], also for a box whose sides vanish when it is scaled.
    ///
    /// Reference: torchvision `models/detection/transform.py`, `resize_boxes`, `resize_keypoints`,
    /// `_resize_image_and_masks`.
    pub fn new(
        target: &Target,
        geometry: &ImageGeometry,
        num_classes: usize,
        needs: TargetNeeds,
    ) -> Result<Self> {
        let ImageGeometry { original, resized } = *geometry;
        target.validate(original, num_classes, needs)?;
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
        let masks = match needs.masks {
            MaskUse::Ignored => Vec::new(),
            MaskUse::Needed => target
                .masks
                .iter()
                .map(|mask| ObjectMask::new(mask, resized))
                .collect::<Result<_>>()?,
        };
        let (keypoints, points) = match needs.keypoints {
            KeypointUse::Ignored => (Vec::new(), 0),
            KeypointUse::Needed(points) => {
                let scaled = |point: &TargetKeypoint| {
                    [point.x * scale_x, point.y * scale_y, f32::from(point.visibility.number())]
                };
                let of_objects = target.keypoints.iter();
                (of_objects.map(|points| points.iter().map(scaled).collect()).collect(), points)
            }
        };
        Ok(Self {
            boxes: target.boxes.iter().enumerate().map(scaled).collect::<Result<_>>()?,
            labels: target.labels.clone(),
            masks,
            keypoints,
            points,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::structures::{ImageSize, Visibility};

    fn target(bbox: [f32; 4]) -> Target {
        let [x1, y1, x2, y2] = bbox;
        Target {
            image_id: 3,
            boxes: vec![BoxXyxy { x1, y1, x2, y2 }],
            labels: vec![1],
            masks: Vec::new(),
            keypoints: Vec::new(),
        }
    }

    fn truth(target: &Target, original: [usize; 2], resized: [usize; 2]) -> Result<GroundTruth> {
        let size = |[height, width]: [usize; 2]| ImageSize { height, width };
        let geometry = ImageGeometry { original: size(original), resized: size(resized) };
        GroundTruth::new(target, &geometry, 2, TargetNeeds::BOXES)
    }

    /// Values measured with torchvision.
    #[test]
    fn axes_are_scaled_separately() {
        let found = truth(&target([0.0, 0.0, 1000.0, 900.0]), [1000, 900], [888, 800]).unwrap();
        let [x1, y1, x2, y2] = found.boxes[0];
        assert_eq!([x1, y1], [0.0, 0.0]);
        assert!((x2 - 888.8889).abs() < 1e-3 && (y2 - 799.2).abs() < 1e-3, "{x2} {y2}");
    }

    /// Values computed with torchvision's `resize_keypoints`, in f32.
    #[test]
    fn keypoints_are_scaled_and_keep_their_visibility() {
        let point = |x, y, visibility| TargetKeypoint { x, y, visibility };
        let points = vec![
            point(10.5, 900.0, Visibility::Visible),
            TargetKeypoint::default(),
            point(-9.0, 1001.0, Visibility::Hidden),
        ];
        let target = Target { keypoints: vec![points], ..target([0.0, 0.0, 900.0, 900.0]) };
        let size = |height, width| ImageSize { height, width };
        let geometry = ImageGeometry { original: size(1000, 900), resized: size(888, 800) };
        let truth = |needs| GroundTruth::new(&target, &geometry, 2, needs).unwrap();
        let found = truth(TargetNeeds::keypoints(3)).keypoints;
        let expected = [[9.333_333, 799.2, 2.0], [0.0; 3], [-8.0, 888.888, 1.0]];
        for (found, expected) in found[0].as_flattened().iter().zip(expected.as_flattened()) {
            assert!((found - expected).abs() < 1e-3, "{found} {expected}");
        }
        assert!(truth(TargetNeeds::BOXES).keypoints.is_empty());
        let message = GroundTruth::new(&target, &geometry, 2, TargetNeeds::keypoints(17));
        let message = message.unwrap_err().to_string();
        assert!(message.contains("`keypoints[0]` is 3 keypoints, expected 17"), "{message}");
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
