//! From predictions to detections.

use candle_core::Tensor;

use crate::config::DetectionsConfig;
use crate::error::Result;
use crate::ops::{NmsParams, SelectCandidatesParams, gather_slots, nms, select_candidates};
use crate::structures::{BatchGeometry, Instances, Proposals};

/// Selects candidates, suppresses per class, keeps the best.
#[derive(Debug, Clone, Copy)]
pub struct BoxPostprocess {
    box_weights: [f32; 4],
}

impl BoxPostprocess {
    /// `box_weights` are the divisors of dx, dy, dw, dh.
    pub fn new(box_weights: [f32; 4]) -> Self {
        Self { box_weights }
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
            min_side: config.min_box_side,
        };
        let Proposals { boxes, counts, .. } = proposals;
        let candidates = select_candidates(class_logits, box_regression, boxes, counts, &params)?;
        let params = NmsParams { iou_threshold: config.nms_threshold, capacity: config.per_image };
        let kept = nms(
            &candidates.boxes,
            &candidates.scores,
            &candidates.labels,
            &candidates.valid,
            &params,
        )?;
        Ok(Instances {
            boxes: gather_slots(&candidates.boxes, &kept.index, &kept.counts)?,
            scores: gather_slots(&candidates.scores, &kept.index, &kept.counts)?,
            labels: gather_slots(&candidates.labels, &kept.index, &kept.counts)?,
            counts: kept.counts,
        })
    }
}
