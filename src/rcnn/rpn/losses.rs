//! What the region proposal network learns from a batch.

use candle_core::Tensor;

use super::{RegionProposalNetwork, RpnOutput};
use crate::error::Result;
use crate::ops::{
    AssignParams, BoxSet, SampleParams, Unfound, box_loss, gather_rows, objectness_loss,
};
use crate::rcnn::training::RpnTrainingConfig;
use crate::structures::BatchGeometry;
use crate::targets::{ObjectBatch, Rules, Sampled, Sampler, Stage};

impl RegionProposalNetwork {
    /// Names of [`Self::losses`].
    pub const LOSSES: [&str; 2] = ["loss_objectness", "loss_rpn_box_reg"];

    /// `loss_objectness` and `loss_rpn_box_reg`, of sampled anchors.
    ///
    /// # Errors
    /// Those of the sampler, and of the ops it is made of.
    pub fn losses(
        &self,
        output: &RpnOutput,
        objects: &ObjectBatch,
        geometry: &BatchGeometry,
        config: &RpnTrainingConfig,
        sampler: &mut dyn Sampler,
    ) -> Result<[Tensor; 2]> {
        let anchors = self.anchors.generate(geometry, &output.objectness)?;
        let sampled = Sampled::new(BoxSet::Shared(&anchors), objects, &rules(config), sampler)?;
        let samples = &sampled.samples.all;
        let targets = sampled.targets(samples)?;
        let labels = targets.labels.flatten_all()?;
        let levels = |levels: &[Tensor], width| {
            gather_rows(&levels.iter().collect::<Vec<_>>(), width, &samples.index)
        };
        let objectness = objectness_loss(&levels(&output.objectness, 1)?, &labels)?;
        let deltas = levels(&output.deltas, 4)?;
        let boxes = box_loss(&deltas, &labels, &targets.deltas.flatten_to(1)?)?;
        Ok([objectness, boxes])
    }
}

fn rules(config: &RpnTrainingConfig) -> Rules {
    Rules {
        stage: Stage::Rpn,
        assign: AssignParams {
            positive_iou: config.positive_iou,
            negative_iou: config.negative_iou,
            unfound: Unfound::GivenToBestBoxes,
        },
        sample: SampleParams {
            samples: config.samples_per_image,
            positive_fraction: config.positive_fraction,
        },
        // Deltas of anchors have none.
        box_weights: [1.0; 4],
    }
}
