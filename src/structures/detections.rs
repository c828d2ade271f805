//! Results on the host, as users take them.

use candle_core::{Device, Tensor};

use super::image::ImageSize;
use super::mask::Mask;
use crate::error::Result;

/// A box: `x1, y1, x2, y2` in pixels of the original image, top-left origin, area `(x2 − x1)(y2 − y1)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BoxXyxy {
    /// Left edge.
    pub x1: f32,
    /// Top edge.
    pub y1: f32,
    /// Right edge.
    pub x2: f32,
    /// Bottom edge.
    pub y2: f32,
}

impl BoxXyxy {
    /// Width in pixels.
    pub fn width(&self) -> f32 {
        self.x2 - self.x1
    }

    /// Height in pixels.
    pub fn height(&self) -> f32 {
        self.y2 - self.y1
    }

    /// `[x, y, width, height]`, as COCO files have boxes.
    pub fn to_xywh(&self) -> [f32; 4] {
        [self.x1, self.y1, self.width(), self.height()]
    }
}

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
}

/// What was found in one image, by descending score.
#[derive(Debug, Clone)]
pub struct Detections {
    /// Size of the image, whose pixels boxes and masks refer to.
    pub image_size: ImageSize,
    /// The objects.
    pub instances: Vec<Instance>,
    /// Whether the model has a mask head, so that every instance carries a mask.
    pub has_masks: bool,
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
        let masks = if self.has_masks {
            let masks = self.instances.iter().filter_map(|i| i.mask.as_ref());
            let planes: Vec<f32> = masks.flat_map(|mask| mask.paste().into_raw()).collect();
            Some(Tensor::from_vec(planes, (n, 1, height, width), device)?)
        } else {
            None
        };
        Ok(DetectionTensors {
            boxes: Tensor::from_vec(boxes, (n, 4), device)?,
            labels: Tensor::from_vec(labels, n, device)?,
            scores: Tensor::from_vec(scores, n, device)?,
            masks,
        })
    }
}
