//! Results on the host, as users take them.

use candle_core::{Device, Tensor};

use super::boxes::BoxXyxy;
use super::image::ImageSize;
use super::keypoints::Keypoint;
use super::mask::Mask;
use crate::error::Result;

/// One detected object.
#[derive(Debug, Clone)]
pub struct Instance {
    /// Where it is, in pixels of the original image.
    pub bbox: BoxXyxy,
    /// Category id; never 0, the background.
    pub label: u32,
    /// Probability of the label, `0..=1`.
    pub score: f32,
    /// Its outline, where the model has a mask head.
    pub mask: Option<Mask>,
    /// Its keypoints in the order of the data, where the model has a keypoint head.
    pub keypoints: Option<Vec<Keypoint>>,
}

/// What a model says of every object beside its box, label and score.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InstanceParts {
    /// Whether it has a mask head, so that every instance carries a mask.
    pub masks: bool,
    /// How many keypoints its keypoint head gives every instance; `None` without such a head.
    pub keypoints: Option<usize>,
}

impl InstanceParts {
    /// Nothing more than boxes.
    pub const BOXES: Self = Self { masks: false, keypoints: None };
    /// Masks.
    pub const MASKS: Self = Self { masks: true, keypoints: None };
}

/// What was found in one image, by descending score.
#[derive(Debug, Clone)]
pub struct Detections {
    /// Size of the image, whose pixels boxes, masks and keypoints refer to.
    pub image_size: ImageSize,
    /// The objects.
    pub instances: Vec<Instance>,
    /// What the model says of every instance, told also where there is none.
    pub parts: InstanceParts,
}

/// The dictionary that torchvision's models return, on a device of choice.
#[derive(Debug, Clone)]
pub struct DetectionTensors {
    /// `[D, 4]` f32, xyxy in pixels of the original image.
    pub boxes: Tensor,
    /// `[D]` i64, category ids.
    pub labels: Tensor,
    /// `[D]` f32, descending.
    pub scores: Tensor,
    /// `[D, 1, H, W]` f32 probabilities, where the model has a mask head.
    pub masks: Option<Tensor>,
    /// `[D, P, 3]` f32: x, y in pixels of the original image, and 1, where the model has a keypoint head.
    pub keypoints: Option<Tensor>,
    /// `[D, P]` f32, the score of each keypoint (torchvision's `keypoints_scores`), where the model has a keypoint head.
    pub keypoint_scores: Option<Tensor>,
}

impl Detections {
    /// The objects with a score strictly above a threshold.
    pub fn above(&self, score: f32) -> impl Iterator<Item = &Instance> {
        self.instances.iter().filter(move |instance| instance.score > score)
    }

    /// Converts to the tensors that torchvision returns. Full-size masks take 4·D·H·W bytes.
    ///
    /// # Errors
    /// Those of candle, such as a device out of memory.
    pub fn to_tensors(&self, device: &Device) -> Result<DetectionTensors> {
        let n = self.instances.len();
        let ImageSize { height, width } = self.image_size;
        let boxes: Vec<f32> = self
            .instances
            .iter()
            .flat_map(|i| [i.bbox.x1, i.bbox.y1, i.bbox.x2, i.bbox.y2])
            .collect();
        let labels: Vec<i64> = self.instances.iter().map(|i| i64::from(i.label)).collect();
        let scores: Vec<f32> = self.instances.iter().map(|i| i.score).collect();
        let masks = if self.parts.masks {
            let masks = self.instances.iter().filter_map(|i| i.mask.as_ref());
            let planes: Vec<f32> = masks.flat_map(|mask| mask.paste().into_raw()).collect();
            Some(Tensor::from_vec(planes, (n, 1, height, width), device)?)
        } else {
            None
        };
        let (keypoints, keypoint_scores) = match self.parts.keypoints {
            Some(each) => {
                let all = || self.instances.iter().filter_map(|i| i.keypoints.as_ref()).flatten();
                let places: Vec<f32> = all().flat_map(|point| [point.x, point.y, 1.0]).collect();
                let scores: Vec<f32> = all().map(|point| point.score).collect();
                let places = Tensor::from_vec(places, (n, each, 3), device)?;
                (Some(places), Some(Tensor::from_vec(scores, (n, each), device)?))
            }
            None => (None, None),
        };
        Ok(DetectionTensors {
            boxes: Tensor::from_vec(boxes, (n, 4), device)?,
            labels: Tensor::from_vec(labels, n, device)?,
            scores: Tensor::from_vec(scores, n, device)?,
            masks,
            keypoints,
            keypoint_scores,
        })
    }
}
