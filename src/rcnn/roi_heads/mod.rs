//! The second stage: class, box and whatever else is asked of each proposal.
//!
//! In: [`FeatureMaps`] and [`Proposals`]. Out: [`Instances`]; from these, instance heads make their extras. This room
//! knows nothing of anchors, nor of what made the features.

mod box_head;
mod box_postprocess;
mod box_predictor;
mod instance_head;
mod keypoint_head;
mod losses;
mod mask_head;
mod roi_pool;
#[cfg(test)]
mod tests;

use candle_core::Tensor;
use candle_nn::VarBuilder;

pub use box_head::{BoxHead, BoxHeadConfig, BoxHeadKind};
pub use box_postprocess::BoxPostprocess;
pub use box_predictor::BoxPredictor;
pub use instance_head::InstanceHead;
pub use keypoint_head::{KeypointHead, KeypointHeadConfig};
pub use losses::Candidates;
pub use mask_head::{MaskHead, MaskHeadConfig};
pub use roi_pool::MultiScaleRoiAlign;

use crate::error::Result;
use crate::ops::FilledRows;
use crate::postprocess::DetectionsConfig;
use crate::structures::{BatchGeometry, FeatureLevel, FeatureMaps, Instances, Proposals};

/// Pooling, box head, box predictor, and the choice of detections.
pub struct RoiHeads {
    box_roi_pool: MultiScaleRoiAlign,
    box_head: BoxHead,
    box_predictor: BoxPredictor,
    box_postprocess: BoxPostprocess,
    /// Divisors of dx, dy, dw, dh.
    box_weights: [f32; 4],
}

impl RoiHeads {
    /// Loads the heads from `box_head.` and `box_predictor.`, on levels of so many channels.
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn load(
        weights: &VarBuilder,
        levels: &[FeatureLevel],
        num_classes: usize,
        head: &BoxHeadConfig,
    ) -> Result<Self> {
        let channels = levels.first().map_or(0, |level| level.channels);
        let predictor = weights.pp("box_predictor");
        Ok(Self {
            box_roi_pool: MultiScaleRoiAlign::new(levels, head.roi_output, head.roi_sampling),
            box_head: BoxHead::load(&weights.pp("box_head"), channels, head)?,
            box_predictor: BoxPredictor::load(&predictor, head.hidden, num_classes)?,
            box_postprocess: BoxPostprocess::new(head),
            box_weights: head.box_weights,
        })
    }

    /// Pools the features of `boxes` `[N, K, 4]`, xyxy in pixels of the resized images: `[N·K, side, side, C]`, zero above
    /// `counts` `[N]`.
    ///
    /// # Errors
    /// Those of [`crate::ops::roi_align`].
    pub fn pool(
        &self,
        features: &FeatureMaps,
        boxes: &Tensor,
        counts: &Tensor,
        geometry: &BatchGeometry,
    ) -> Result<Tensor> {
        self.box_roi_pool.forward(features, boxes, counts, geometry)
    }

    /// Class logits `[N·K, C]` and box regression `[N·K, 4·C]` of pooled features; those of rows that are not `filled` mean
    /// nothing.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    pub fn predict(&self, pooled: &Tensor, filled: FilledRows) -> Result<(Tensor, Tensor)> {
        self.box_predictor.forward(&self.box_head.forward(pooled, filled)?)
    }

    /// Classifies the proposals, and keeps the detections.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    pub fn detect(
        &self,
        features: &FeatureMaps,
        proposals: &Proposals,
        geometry: &BatchGeometry,
        config: &DetectionsConfig,
    ) -> Result<Instances> {
        let pooled = self.pool(features, &proposals.boxes, &proposals.counts, geometry)?;
        let (class_logits, box_regression) = self.predict(&pooled, FilledRows::All)?;
        self.box_postprocess.forward(&class_logits, &box_regression, proposals, geometry, config)
    }
}
