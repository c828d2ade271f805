//! Region proposal network (Ren et al., arXiv:1506.01497): where there may be an object, of whatever class.
//!
//! In: [`FeatureMaps`]. Out: [`Proposals`]. This room knows nothing of classes, nor of what made the features.

mod head;
mod losses;

use candle_core::Tensor;
use candle_nn::VarBuilder;
use serde::{Deserialize, Serialize};

pub use head::RpnHead;

use crate::anchor_utils::{AnchorGenerator, AnchorsConfig, per_anchor};
use crate::error::Result;
use crate::ops::{DecodeProposalsParams, NmsParams, decode_proposals, gather_slots, nms, top_k};
use crate::section::Checks;
use crate::structures::{BatchGeometry, FeatureMaps, Proposals};

/// The section `rpn` of the architecture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RpnConfig {
    /// 3×3 convolutions before the two predictors.
    pub conv_depth: usize,
    /// Best anchors kept per level and image, by logit.
    pub pre_nms_top_n: usize,
    /// Proposals kept per image: the capacity K of `Proposals`.
    pub post_nms_top_n: usize,
    /// A proposal is dropped when its IoU with a better one of its level is greater.
    pub nms_threshold: f64,
    /// A proposal stays when its score is at least this.
    pub score_threshold: f32,
    /// Pixels; a proposal stays when both sides are at least this.
    pub min_box_side: f32,
}

impl RpnConfig {
    /// Checks the numbers of the section.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), naming the field at fault.
    pub fn validate(&self, checks: &Checks) -> Result<()> {
        checks.at_least_one(&[
            ("conv_depth", self.conv_depth),
            ("pre_nms_top_n", self.pre_nms_top_n),
            ("post_nms_top_n", self.post_nms_top_n),
        ])?;
        checks.fractions(&[
            ("nms_threshold", self.nms_threshold),
            ("score_threshold", f64::from(self.score_threshold)),
        ])?;
        checks.side("min_box_side", self.min_box_side)
    }

    /// How many proposals inference keeps.
    pub fn limits(&self) -> ProposalLimits {
        ProposalLimits { pre_nms_top_n: self.pre_nms_top_n, post_nms_top_n: self.post_nms_top_n }
    }
}

/// How many proposals are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProposalLimits {
    /// Best anchors per level and image, by logit.
    pub pre_nms_top_n: usize,
    /// Proposals per image.
    pub post_nms_top_n: usize,
}

/// What the head predicts, per level.
#[derive(Debug, Clone)]
pub struct RpnOutput {
    /// `[N, H_l, W_l, a]` f32, one logit per anchor of a cell.
    pub objectness: Vec<Tensor>,
    /// `[N, H_l, W_l, 4·a]` f32, dx, dy, dw, dh per anchor of a cell.
    pub deltas: Vec<Tensor>,
}

impl RpnOutput {
    /// The same numbers, of which no gradient is taken.
    pub fn detached(&self) -> Self {
        let detached = |levels: &[Tensor]| levels.iter().map(Tensor::detach).collect();
        Self { objectness: detached(&self.objectness), deltas: detached(&self.deltas) }
    }
}

/// Head, anchors and selection of proposals.
pub struct RegionProposalNetwork {
    head: RpnHead,
    anchors: AnchorGenerator,
    config: RpnConfig,
}

impl RegionProposalNetwork {
    /// Loads the network from `head.`, on levels of so many channels.
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn load(
        weights: &VarBuilder,
        channels: usize,
        anchors: &AnchorsConfig,
        config: &RpnConfig,
    ) -> Result<Self> {
        let anchors = AnchorGenerator::new(anchors);
        let per_cell = anchors.num_anchors_per_location();
        let head = RpnHead::load(&weights.pp("head"), channels, per_cell, config)?;
        Ok(Self { head, anchors, config: config.clone() })
    }

    /// How many proposals inference keeps.
    pub fn limits(&self) -> ProposalLimits {
        self.config.limits()
    }

    /// The anchors, for those who want to look at them.
    pub fn anchor_generator(&self) -> &AnchorGenerator {
        &self.anchors
    }

    /// Predicts objectness and deltas of every anchor.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    pub fn predict(&self, features: &FeatureMaps) -> Result<RpnOutput> {
        self.head.forward(features)
    }

    /// Turns predictions into proposals: the best anchors of each level by logit, decoded, clipped to the resized
    /// image, without those that are small or overlap a better one of their level, and of these the best over all
    /// levels.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    pub fn propose(
        &self,
        output: &RpnOutput,
        geometry: &BatchGeometry,
        limits: ProposalLimits,
    ) -> Result<Proposals> {
        let logits = per_anchor(&output.objectness, &[])?;
        let deltas = per_anchor(&output.deltas, &[4])?;
        let anchors = self.anchors.generate(geometry, &output.objectness)?;
        let best = top_k(&by_ref(&logits), limits.pre_nms_top_n)?;
        let params = DecodeProposalsParams {
            image_sizes: geometry.resized_sizes(),
            score_threshold: self.config.score_threshold,
            min_side: self.config.min_box_side,
        };
        let decoded =
            decode_proposals(&anchors, &by_ref(&deltas), &best.index, &best.values, &params)?;
        let params =
            NmsParams { iou_threshold: self.config.nms_threshold, capacity: limits.post_nms_top_n };
        let kept = nms(&decoded.boxes, &decoded.scores, &best.segment, &decoded.valid, &params)?;
        Ok(Proposals {
            boxes: gather_slots(&decoded.boxes, &kept.index, &kept.counts)?,
            scores: gather_slots(&decoded.scores, &kept.index, &kept.counts)?,
            counts: kept.counts,
        })
    }
}

fn by_ref(tensors: &[Tensor]) -> Vec<&Tensor> {
    tensors.iter().collect()
}
