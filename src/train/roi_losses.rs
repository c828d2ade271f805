//! What the heads learn from the proposals of a batch.

use candle_core::{DType, Device, Tensor};
use rayon::prelude::*;

use super::assign::{AssignParams, Match, Unfound, assign};
use super::encode::encode;
use super::ground_truth::GroundTruth;
use super::losses::{box_loss, classifier_loss, mask_loss};
use super::mask_targets::ObjectMask;
use super::network::Network;
use super::sample::{self, Candidates, SampleParams, Sampler, Stage};
use super::step::LossTerm;
use crate::error::Result;
use crate::ops::{FilledRows, gather_rows, pack_results};
use crate::roi_heads::MaskHead;
use crate::structures::{BatchGeometry, FeatureMaps, Proposals};

/// `loss_classifier`, `loss_box_reg` and, where the model has a mask head, `loss_mask`.
pub(super) fn losses(
    network: &Network,
    features: &FeatureMaps,
    proposals: &Proposals,
    truths: &[GroundTruth],
    geometry: &BatchGeometry,
    sampler: &mut dyn Sampler,
) -> Result<(LossTerm, LossTerm, Option<LossTerm>)> {
    let proposals = on_host(proposals)?;
    let samples = proposals
        .into_iter()
        .zip(truths)
        .enumerate()
        .map(|(image, (boxes, truth))| sample_image(network, image, boxes, truth, sampler))
        .collect::<Result<Vec<Vec<Sample>>>>()?;
    let classes = network.config.num_classes;
    let labels: Vec<u32> = samples.iter().flatten().map(|sample| sample.label).collect();
    let targets: Vec<[f32; 4]> = samples.iter().flatten().map(|sample| sample.target).collect();
    let (logits, deltas) = match Slots::new(&samples, &network.device)? {
        None => (None, None),
        Some(slots) => {
            let pooled = network.roi_heads.pool(features, &slots.proposals()?, geometry)?;
            let valid = slots.valid(&pooled)?;
            let (logits, deltas) = network.roi_heads.predict(&valid, FilledRows::All)?;
            (Some(logits), Some(deltas))
        }
    };
    let classifier = LossTerm::of(logits, |logits| classifier_loss(logits, classes, &labels))?;
    let boxes = LossTerm::of(deltas, |deltas| box_loss(deltas, classes, &labels, &targets))?;
    let masks = network.mask_head.as_ref();
    let masks = masks.map(|head| masks_of(head, features, &samples, truths, geometry));
    Ok((classifier, boxes, masks.transpose()?))
}

/// A sampled proposal.
#[derive(Clone)]
struct Sample {
    corners: [f32; 4],
    /// 0 for background.
    label: u32,
    /// Deltas to the object that it has found.
    target: [f32; 4],
    /// The object that it has found.
    object: u32,
}

/// The valid proposals of each image.
fn on_host(proposals: &Proposals) -> Result<Vec<Vec<[f32; 4]>>> {
    let (images, capacity, _) = proposals.boxes.dims3()?;
    // In one copy.
    let packed = pack_results(&[&proposals.boxes, &proposals.counts])?.to_vec1::<f32>()?;
    let (boxes, counts) = packed.split_at(images * capacity * 4);
    let (boxes, _) = boxes.as_chunks::<4>();
    let boxes_of =
        |(image, count): (usize, &f32)| boxes[image * capacity..][..*count as usize].to_vec();
    Ok(counts.iter().enumerate().map(boxes_of).collect())
}

/// Samples from the proposals of an image and its objects, in this order, by ascending index.
///
/// The objects are among them, so that a network that proposes nothing useful yet has something to learn from.
fn sample_image(
    network: &Network,
    image: usize,
    mut boxes: Vec<[f32; 4]>,
    truth: &GroundTruth,
    sampler: &mut dyn Sampler,
) -> Result<Vec<Sample>> {
    boxes.extend(&truth.boxes);
    let config = &network.training().roi;
    let params = AssignParams {
        positive_iou: config.positive_iou,
        negative_iou: config.negative_iou,
        unfound: Unfound::Dropped,
    };
    let matches = assign(&boxes, &truth.boxes, &params);
    let params = SampleParams {
        samples: config.samples_per_image,
        positive_fraction: config.positive_fraction,
    };
    let chosen = sampler.sample(Stage::Roi, image, Candidates::of(&matches), &params)?;
    sample::check(Stage::Roi, image, &chosen, &matches)?;
    let mut indices = [chosen.positives, chosen.negatives].concat();
    indices.sort_unstable();
    let weights = network.config.box_head.box_weights;
    Ok(indices
        .into_iter()
        .map(|index| {
            let corners = boxes[index as usize];
            match matches[index as usize] {
                Match::Object(object) => Sample {
                    corners,
                    label: truth.labels[object as usize],
                    target: encode(truth.boxes[object as usize], corners, weights),
                    object,
                },
                Match::Background | Match::Ignored => {
                    Sample { corners, label: 0, target: [0.0; 4], object: 0 }
                }
            }
        })
        .collect())
}

/// Samples as pooling takes them: as many slots for every image as the image with the most samples needs.
struct Slots {
    /// `[N, capacity, 4]`.
    boxes: Tensor,
    /// `[N]`.
    counts: Tensor,
    /// Slots that hold a sample, image after image; `None` when all do.
    used: Option<Tensor>,
}

impl Slots {
    /// `None` without samples.
    fn new(samples: &[Vec<Sample>], device: &Device) -> Result<Option<Self>> {
        let capacity = samples.iter().map(Vec::len).max().unwrap_or(0);
        if capacity == 0 {
            return Ok(None);
        }
        let slots = samples.iter().flat_map(|list| (0..capacity).map(|slot| list.get(slot)));
        let corners = slots.clone().flat_map(|s| s.map_or([0.0; 4], |s| s.corners)).collect();
        let used: Vec<u32> =
            (0..).zip(slots).filter_map(|(slot, sample)| sample.map(|_| slot)).collect();
        let all = used.len() == samples.len() * capacity;
        Ok(Some(Self {
            boxes: Tensor::from_vec(corners, (samples.len(), capacity, 4), device)?,
            counts: Tensor::from_iter(samples.iter().map(|list| list.len() as u32), device)?,
            used: if all { None } else { Some(Tensor::new(used, device)?) },
        }))
    }

    /// Scores are not looked at by the heads.
    fn proposals(&self) -> Result<Proposals> {
        let (images, capacity, _) = self.boxes.dims3()?;
        Ok(Proposals {
            boxes: self.boxes.clone(),
            scores: Tensor::zeros((images, capacity), DType::F32, self.boxes.device())?,
            counts: self.counts.clone(),
        })
    }

    /// Without the rows of slots that hold nothing: they would cost time, and enter the statistics of batch norms.
    fn valid(&self, pooled: &Tensor) -> Result<Tensor> {
        match &self.used {
            None => Ok(pooled.clone()),
            Some(used) => {
                let (_, dims) = pooled.dims().split_first().unwrap_or((&0, &[]));
                let width = dims.iter().product();
                let shape = [&[used.elem_count()], dims].concat();
                Ok(gather_rows(&[pooled], width, used)?.reshape(shape)?)
            }
        }
    }
}

/// `loss_mask`, of the samples that have found an object.
fn masks_of(
    head: &MaskHead,
    features: &FeatureMaps,
    samples: &[Vec<Sample>],
    truths: &[GroundTruth],
    geometry: &BatchGeometry,
) -> Result<LossTerm> {
    let positive = |list: &Vec<Sample>| list.iter().filter(|s| s.label > 0).cloned().collect();
    let positives: Vec<Vec<Sample>> = samples.iter().map(positive).collect();
    let device = features.levels.first().map_or(&Device::Cpu, Tensor::device);
    let Some(slots) = Slots::new(&positives, device)? else {
        return LossTerm::of(None, |logits| mask_loss(logits, 0, &[]));
    };
    let pooled = head.pool(features, &slots.boxes, &slots.counts, geometry)?;
    let labels = Tensor::from_iter(positives.iter().flatten().map(|s| s.label), device)?;
    let logits = head.predict(&slots.valid(&pooled)?, &labels, FilledRows::All)?;
    let side = logits.dim(2)?;
    let objects: Vec<(&ObjectMask, [f32; 4])> = positives
        .iter()
        .zip(truths)
        .flat_map(|(list, truth)| {
            list.iter().map(|sample| (&truth.masks[sample.object as usize], sample.corners))
        })
        .collect();
    let targets: Vec<Vec<f32>> =
        objects.into_par_iter().map(|(mask, corners)| mask.pool(corners, side)).collect();
    LossTerm::of(Some(logits), |logits| mask_loss(logits, side * side, &targets))
}
