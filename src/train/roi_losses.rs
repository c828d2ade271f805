//! What the heads learn from the proposals of a batch.

use candle_core::{DType, Device, Tensor};
use rayon::prelude::*;

use super::assign::{AssignParams, Match, Unfound, assign};
use super::encode::encode;
use super::ground_truth::GroundTruth;
use super::losses::{box_loss, classifier_loss, mask_loss};
use super::network::Network;
use super::sample::{self, Candidates, SampleParams, Sampler, Stage};
use super::step::LossTerm;
use crate::error::Result;
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
    let slots = Slots::new(&samples, &network.device)?;
    let (labels, targets): (Vec<Option<u32>>, Vec<[f32; 4]>) = slots
        .of(&samples)
        .map(|sample| (sample.map(|s| s.label), sample.map_or([0.0; 4], |s| s.target)))
        .unzip();
    let (logits, deltas) = if slots.capacity == 0 {
        (None, None)
    } else {
        let pooled = network.roi_heads.pool(features, &slots.proposals()?, geometry)?;
        let (logits, deltas) = network.roi_heads.predict(&pooled)?;
        (Some(logits), Some(deltas))
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
    let boxes = proposals.boxes.flatten_all()?.to_vec1::<f32>()?;
    let (boxes, _) = boxes.as_chunks::<4>();
    let counts = proposals.counts.to_vec1::<u32>()?;
    Ok((0..images)
        .map(|image| boxes[image * capacity..][..counts[image] as usize].to_vec())
        .collect())
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

/// Samples as the heads take them: as many slots for every image as the image with the most samples needs.
struct Slots {
    capacity: usize,
    /// `[N, capacity, 4]`.
    boxes: Tensor,
    /// `[N]`.
    counts: Tensor,
}

impl Slots {
    fn new(samples: &[Vec<Sample>], device: &Device) -> Result<Self> {
        let capacity = samples.iter().map(Vec::len).max().unwrap_or(0);
        let mut slots = Self {
            capacity,
            boxes: Tensor::zeros((samples.len(), capacity, 4), DType::F32, device)?,
            counts: Tensor::from_iter(samples.iter().map(|list| list.len() as u32), device)?,
        };
        let corners = slots.of(samples).flat_map(|s| s.map_or([0.0; 4], |s| s.corners)).collect();
        slots.boxes = Tensor::from_vec(corners, (samples.len(), capacity, 4), device)?;
        Ok(slots)
    }

    /// What is in each slot, image after image.
    fn of<'a>(&self, samples: &'a [Vec<Sample>]) -> impl Iterator<Item = Option<&'a Sample>> {
        let capacity = self.capacity;
        samples.iter().flat_map(move |list| (0..capacity).map(|slot| list.get(slot)))
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
}

/// `loss_mask`, of the samples that have found an object.
fn masks_of(
    head: &MaskHead,
    features: &FeatureMaps,
    samples: &[Vec<Sample>],
    truths: &[GroundTruth],
    geometry: &BatchGeometry,
) -> Result<LossTerm> {
    let positives: Vec<Vec<Sample>> = samples
        .iter()
        .map(|list| list.iter().filter(|sample| sample.label > 0).cloned().collect())
        .collect();
    let device = features.levels.first().map_or(&Device::Cpu, Tensor::device);
    let slots = Slots::new(&positives, device)?;
    if slots.capacity == 0 {
        return LossTerm::of(None, |logits| mask_loss(logits, 0, &[]));
    }
    let labels: Vec<u32> = slots.of(&positives).map(|s| s.map_or(0, |s| s.label)).collect();
    let labels = Tensor::from_vec(labels, (positives.len(), slots.capacity), device)?;
    let logits = head.logits(features, &slots.boxes, &labels, &slots.counts, geometry)?;
    let side = logits.dim(3)?;
    let objects: Vec<_> = positives
        .iter()
        .zip(truths)
        .flat_map(|(list, truth)| {
            (0..slots.capacity).map(move |slot| {
                let sample = list.get(slot)?;
                Some((&truth.masks[sample.object as usize], sample.corners))
            })
        })
        .collect();
    let targets: Vec<Option<Vec<f32>>> = objects
        .into_par_iter()
        .map(|object| object.map(|(mask, corners)| mask.pool(corners, side)))
        .collect();
    LossTerm::of(Some(logits), |logits| mask_loss(logits, side * side, &targets))
}
