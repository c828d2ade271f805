//! From predictions to detections.

use candle_core::Tensor;

use super::BoxHeadConfig;
use crate::error::Result;
use crate::ops::{SelectCandidatesParams, select_candidates};
use crate::postprocess::{DetectionsConfig, best_instances};
use crate::structures::{BatchGeometry, Instances, Proposals};

/// Selects candidates, suppresses per class, keeps the best.
#[derive(Debug, Clone, Copy)]
pub struct BoxPostprocess {
    box_weights: [f32; 4],
    min_box_side: f32,
}

impl BoxPostprocess {
    /// With the divisors of deltas and the smallest side that the head's section says.
    pub fn new(config: &BoxHeadConfig) -> Self {
        Self { box_weights: config.box_weights, min_box_side: config.min_box_side }
    }

    /// `class_logits` `[N·K, C]`, `box_regression` `[N·K, 4·C]` of `proposals` → the best `config.per_image` detections.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    pub fn forward(
        &self,
        class_logits: &Tensor,
        box_regression: &Tensor,
        proposals: &Proposals,
        geometry: &BatchGeometry,
        config: &DetectionsConfig,
    ) -> Result<Instances> {
        let params = SelectCandidatesParams {
            image_sizes: geometry.resized_sizes(),
            box_weights: self.box_weights,
            score_threshold: config.score_threshold,
            min_side: self.min_box_side,
        };
        let Proposals { boxes, counts, .. } = proposals;
        let candidates = select_candidates(class_logits, box_regression, boxes, counts, &params)?;
        best_instances(&candidates, config)
    }
}
