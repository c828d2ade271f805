//! How a model learns: which boxes count as found, and how many of them a step looks at.

use serde::{Deserialize, Serialize};

/// Numbers of the training flow that belong to the model, not to a run; torchvision's unless a file says otherwise.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainingConfig {
    /// Training of the region proposal network.
    pub rpn: RpnTrainingConfig,
    /// Training of the heads on proposals.
    pub roi: RoiTrainingConfig,
}

/// Training of the region proposal network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RpnTrainingConfig {
    /// An anchor is positive when its IoU with an object is at least this.
    pub positive_iou: f32,
    /// An anchor is negative when its IoU with every object is below this; in between it is ignored.
    pub negative_iou: f32,
    /// Anchors sampled per image.
    pub samples_per_image: usize,
    /// The most positives, as a fraction of the samples.
    pub positive_fraction: f64,
    /// Best anchors kept per level and image, by logit, in place of `rpn.pre_nms_top_n`.
    pub pre_nms_top_n: usize,
    /// Proposals kept per image, in place of `rpn.post_nms_top_n`.
    pub post_nms_top_n: usize,
}

/// Training of the heads on proposals.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RoiTrainingConfig {
    /// A proposal has the class of an object when their IoU is at least this.
    pub positive_iou: f32,
    /// A proposal is background when its IoU with every object is below this; in between it is ignored.
    pub negative_iou: f32,
    /// Proposals sampled per image.
    pub samples_per_image: usize,
    /// The most positives, as a fraction of the samples.
    pub positive_fraction: f64,
}

impl Default for RpnTrainingConfig {
    fn default() -> Self {
        Self {
            positive_iou: 0.7,
            negative_iou: 0.3,
            samples_per_image: 256,
            positive_fraction: 0.5,
            pre_nms_top_n: 2000,
            post_nms_top_n: 2000,
        }
    }
}

impl Default for RoiTrainingConfig {
    fn default() -> Self {
        Self {
            positive_iou: 0.5,
            negative_iou: 0.5,
            samples_per_image: 512,
            positive_fraction: 0.25,
        }
    }
}
