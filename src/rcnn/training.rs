//! How a model learns: which boxes count as found, and how many of them a step looks at.

use serde::{Deserialize, Serialize};

use super::rpn::ProposalLimits;
use crate::error::Result;
use crate::section::Checks;

/// Numbers of the training flow that belong to the model, not to a run; torchvision's unless a file says otherwise.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RcnnTrainingConfig {
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
    /// Best anchors kept per level and image, by logit, in place of the section `rpn`'s.
    pub pre_nms_top_n: usize,
    /// Proposals kept per image, in place of the section `rpn`'s.
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

impl RcnnTrainingConfig {
    /// Checks the numbers of the section.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), naming the field at fault.
    pub fn validate(&self, checks: &Checks) -> Result<()> {
        let Self { rpn, roi } = self;
        let of_rpn = checks.section("rpn");
        of_rpn.at_least_one(&[
            ("samples_per_image", rpn.samples_per_image),
            ("pre_nms_top_n", rpn.pre_nms_top_n),
            ("post_nms_top_n", rpn.post_nms_top_n),
        ])?;
        of_rpn.fractions(&[("positive_fraction", rpn.positive_fraction)])?;
        of_rpn.matching(rpn.positive_iou, rpn.negative_iou)?;
        let of_roi = checks.section("roi");
        of_roi.at_least_one(&[("samples_per_image", roi.samples_per_image)])?;
        of_roi.fractions(&[("positive_fraction", roi.positive_fraction)])?;
        of_roi.matching(roi.positive_iou, roi.negative_iou)
    }
}

impl RpnTrainingConfig {
    /// How many proposals training keeps.
    pub fn limits(&self) -> ProposalLimits {
        ProposalLimits { pre_nms_top_n: self.pre_nms_top_n, post_nms_top_n: self.post_nms_top_n }
    }
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
