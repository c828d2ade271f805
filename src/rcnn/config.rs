//! The section `architecture` of a two-stage detector.

use serde::{Deserialize, Serialize};

use super::roi_heads::{BoxHeadConfig, KeypointHeadConfig, MaskHeadConfig};
use super::rpn::RpnConfig;
use super::training::RcnnTrainingConfig;
use crate::anchor_utils::AnchorsConfig;
use crate::error::Result;
use crate::layers::Norm;
use crate::section::Checks;
use crate::structures::{FeatureLevel, InstanceParts};

/// A two-stage detector: Faster R-CNN; Mask R-CNN or Keypoint R-CNN where it has such a head.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RcnnConfig {
    /// Reference boxes of the region proposal network.
    pub anchors: AnchorsConfig,
    /// The region proposal network.
    pub rpn: RpnConfig,
    /// Classification and box regression of proposals.
    pub box_head: BoxHeadConfig,
    /// Masks of the detections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask_head: Option<MaskHeadConfig>,
    /// Keypoints of the detections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keypoint_head: Option<KeypointHeadConfig>,
    /// How the model learns.
    #[serde(default)]
    pub training: RcnnTrainingConfig,
}

impl RcnnConfig {
    /// Checks the numbers of the section for a backbone of these levels.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), naming the field at fault.
    pub fn validate(&self, levels: &[FeatureLevel], checks: &Checks) -> Result<()> {
        self.anchors.validate(levels.len(), &checks.section("anchors"))?;
        self.rpn.validate(&checks.section("rpn"))?;
        self.box_head.validate(&checks.section("box_head"))?;
        if let Some(mask_head) = &self.mask_head {
            mask_head.validate(&checks.section("mask_head"))?;
        }
        if let Some(keypoint_head) = &self.keypoint_head {
            keypoint_head.validate(&checks.section("keypoint_head"))?;
        }
        self.training.validate(&checks.section("training"))
    }

    /// What detections have besides boxes.
    pub fn parts(&self) -> InstanceParts {
        InstanceParts {
            masks: self.mask_head.is_some(),
            keypoints: self.keypoint_head.as_ref().map(|head| head.keypoints),
        }
    }

    /// Prefixes of the parameters of norms that are never trained.
    pub fn fixed_norms(&self) -> Vec<String> {
        let norm = self.mask_head.as_ref().map_or(Norm::None, |head| head.norm);
        norm.fixed_at("roi_heads.mask_head.")
    }
}
