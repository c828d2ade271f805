//! From chosen anchors to instances.

use candle_core::Tensor;

use crate::error::Result;
use crate::ops::{BoxCoding, Candidates, DecodeBoxesParams, Pairs, decode_boxes};
use crate::postprocess::{DetectionsConfig, best_instances};
use crate::structures::{BatchGeometry, Instances};

/// What the boxes of anchors follow from.
pub(super) struct Regression<'a> {
    /// `[A, 4]` f32, xyxy in pixels.
    pub anchors: &'a Tensor,
    /// `[N, A_l, 4]` f32 of each level.
    pub levels: &'a [Tensor],
    /// What these say.
    pub coding: BoxCoding,
}

/// Decodes the boxes of chosen (anchor, class) pairs, clips them, suppresses per class and keeps the best.
///
/// # Errors
/// Those of the ops it is made of.
pub(super) fn instances(
    pairs: &Pairs,
    regression: &Regression<'_>,
    geometry: &BatchGeometry,
    config: &DetectionsConfig,
) -> Result<Instances> {
    let Pairs { index, labels, scores, valid } = pairs;
    let params =
        DecodeBoxesParams { image_sizes: geometry.resized_sizes(), coding: regression.coding };
    let levels = by_ref(regression.levels);
    let decoded = decode_boxes(regression.anchors, &levels, index, valid, &params)?;
    let candidates = Candidates {
        boxes: decoded.boxes,
        scores: scores.clone(),
        labels: labels.clone(),
        valid: decoded.valid,
    };
    best_instances(&candidates, config)
}

/// References to tensors.
pub(super) fn by_ref(tensors: &[Tensor]) -> Vec<&Tensor> {
    tensors.iter().collect()
}
