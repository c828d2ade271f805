//! Predictions and what they should be, checked.

use candle_core::Tensor;

use super::{DenseTruth, Loss, Normalization, check};
use crate::error::Result;
use crate::ops::support::levels::Levels;

/// Predictions and what they should be, cut off from any graph.
pub(super) struct Compared {
    pub loss: Loss,
    pub normalization: Normalization,
    pub plan: Levels,
    /// Objects of an image, valid or not.
    pub n_objects: usize,
    /// Predictions.
    pub levels: Vec<Tensor>,
    pub anchors: Option<Tensor>,
    pub matches: Tensor,
    pub boxes: Tensor,
    pub labels: Tensor,
}

impl Compared {
    pub fn new(
        loss: Loss,
        levels: &[&Tensor],
        width: usize,
        anchors: Option<&Tensor>,
        truth: DenseTruth<'_>,
        normalization: Normalization,
    ) -> Result<Self> {
        let (plan, n_objects) = check(loss, levels, width, anchors, truth)?;
        let levels = levels.iter().map(|level| level.detach().contiguous());
        Ok(Self {
            loss,
            normalization,
            plan,
            n_objects,
            levels: levels.collect::<Result<_, _>>()?,
            anchors: anchors.map(|anchors| anchors.detach().contiguous()).transpose()?,
            matches: truth.matches.contiguous()?,
            boxes: truth.objects.boxes.detach().contiguous()?,
            labels: truth.objects.labels.contiguous()?,
        })
    }
}
