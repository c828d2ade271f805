//! What the heads learn from the proposals of a batch.

use candle_core::Tensor;

use super::network::Network;
use super::objects::ObjectBatch;
use super::sample::{Rules, Sampled, Sampler, Stage};
use crate::error::Result;
use crate::ops::{
    AssignParams, BoxSet, SampleParams, Unfound, append_slots, box_loss, classifier_loss,
    mask_loss, mask_targets,
};
use crate::roi_heads::MaskHead;
use crate::structures::{BatchGeometry, FeatureMaps, Proposals, SlotRows, trim_samples};

/// `loss_classifier`, `loss_box_reg` and, where the model has a mask head, `loss_mask`.
pub(super) fn losses(
    network: &Network,
    features: &FeatureMaps,
    proposals: &Proposals,
    objects: &ObjectBatch,
    geometry: &BatchGeometry,
    sampler: &mut dyn Sampler,
) -> Result<Vec<Tensor>> {
    // The objects are among the boxes, so that a network that proposes nothing useful yet has something to learn from.
    let (boxes, counts) =
        append_slots((&proposals.boxes, &proposals.counts), (&objects.boxes, &objects.counts))?;
    let boxes = BoxSet::PerImage { boxes: &boxes, counts: &counts };
    let sampled = Sampled::new(boxes, objects, &rules(network), sampler)?;
    let mut losses = of_boxes(network, features, &sampled, geometry)?;
    if let Some(head) = &network.mask_head {
        losses.push(of_masks(head, features, &sampled, objects, geometry)?);
    }
    Ok(losses)
}

fn rules(network: &Network) -> Rules {
    let config = &network.training().roi;
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
        box_weights: network.config.box_head.box_weights,
    }
}

/// `loss_classifier` and `loss_box_reg`, of all samples.
fn of_boxes(
    network: &Network,
    features: &FeatureMaps,
    sampled: &Sampled<'_>,
    geometry: &BatchGeometry,
) -> Result<Vec<Tensor>> {
    let samples = trim_samples(sampled.samples.all.clone())?;
    let targets = sampled.targets(&samples)?;
    let rows = SlotRows::new(&samples.counts, samples.index.dim(1)?)?;
    let pooled = network.roi_heads.pool(features, &targets.boxes, &samples.counts, geometry)?;
    let (logits, deltas) = network.roi_heads.predict(&rows.of(&pooled)?, rows.filled())?;
    let labels = rows.of(&targets.labels.flatten_all()?)?;
    let wanted = rows.of(&targets.deltas.flatten_to(1)?)?;
    Ok(vec![classifier_loss(&logits, &labels)?, box_loss(&deltas, &labels, &wanted)?])
}

/// `loss_mask`, of the samples that have found an object.
fn of_masks(
    head: &MaskHead,
    features: &FeatureMaps,
    sampled: &Sampled<'_>,
    objects: &ObjectBatch,
    geometry: &BatchGeometry,
) -> Result<Tensor> {
    let samples = trim_samples(sampled.samples.positives.clone())?;
    let targets = sampled.targets(&samples)?;
    let rows = SlotRows::new(&samples.counts, samples.index.dim(1)?)?;
    let pooled = head.pool(features, &targets.boxes, &samples.counts, geometry)?;
    let labels = rows.of(&targets.labels.flatten_all()?)?;
    let logits = head.predict(&rows.of(&pooled)?, &labels, rows.filled())?;
    let side = logits.dim(2)?;
    let shares =
        mask_targets(&objects.masks, &targets.boxes, &targets.objects, &samples.counts, side)?;
    mask_loss(&logits, &labels, &rows.of(&shares.flatten_to(1)?)?)
}
