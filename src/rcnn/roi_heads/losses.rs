//! What the heads learn from the proposals of a batch.

use candle_core::Tensor;

use super::RoiHeads;
use crate::error::Result;
use crate::ops::{
    AssignParams, BoxSet, SampleParams, Unfound, append_slots, box_loss, classifier_loss,
};
use crate::rcnn::training::RoiTrainingConfig;
use crate::structures::{BatchGeometry, FeatureMaps, Proposals, SlotRows, trim_samples};
use crate::targets::{ObjectBatch, Rules, Sampled, Sampler, Stage};

/// Boxes that are sampled from, `[N, K + G, 4]` and their counts `[N]`.
pub struct Candidates {
    boxes: Tensor,
    counts: Tensor,
}

impl Candidates {
    /// The proposals, and the objects among them, so that a network that proposes nothing useful yet has something to
    /// learn from.
    ///
    /// # Errors
    /// Those of [`append_slots`].
    pub fn new(proposals: &Proposals, objects: &ObjectBatch) -> Result<Self> {
        let (boxes, counts) =
            append_slots((&proposals.boxes, &proposals.counts), (&objects.boxes, &objects.counts))?;
        Ok(Self { boxes, counts })
    }
}

impl RoiHeads {
    /// Names of [`Self::losses`].
    pub const LOSSES: [&str; 2] = ["loss_classifier", "loss_box_reg"];

    /// Draws the boxes that a step learns from.
    ///
    /// # Errors
    /// Those of the sampler, and of the ops it is made of.
    pub fn sample<'a>(
        &self,
        candidates: &'a Candidates,
        objects: &'a ObjectBatch,
        config: &RoiTrainingConfig,
        sampler: &mut dyn Sampler,
    ) -> Result<Sampled<'a>> {
        let boxes = BoxSet::PerImage { boxes: &candidates.boxes, counts: &candidates.counts };
        Sampled::new(boxes, objects, &self.rules(config), sampler)
    }

    fn rules(&self, config: &RoiTrainingConfig) -> Rules {
        Rules {
            stage: Stage::Roi,
            assign: AssignParams {
                positive_iou: config.positive_iou,
                negative_iou: config.negative_iou,
                unfound: Unfound::Dropped,
            },
            sample: SampleParams {
                samples: config.samples_per_image,
                positive_fraction: config.positive_fraction,
            },
            box_weights: self.box_weights,
        }
    }

    /// `loss_classifier` and `loss_box_reg`, of all samples.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    pub fn losses(
        &self,
        features: &FeatureMaps,
        sampled: &Sampled<'_>,
        geometry: &BatchGeometry,
    ) -> Result<[Tensor; 2]> {
        let samples = trim_samples(sampled.samples.all.clone())?;
        let targets = sampled.targets(&samples)?;
        let rows = SlotRows::new(&samples.counts, samples.index.dim(1)?)?;
        let pooled = self.pool(features, &targets.boxes, &samples.counts, geometry)?;
        let (logits, deltas) = self.predict(&rows.of(&pooled)?, rows.filled())?;
        let labels = rows.of(&targets.labels.flatten_all()?)?;
        let wanted = rows.of(&targets.deltas.flatten_to(1)?)?;
        Ok([classifier_loss(&logits, &labels)?, box_loss(&deltas, &labels, &wanted)?])
    }
}
