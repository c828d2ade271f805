//! What the region proposal network learns from a batch.

use candle_core::{Device, Tensor};

use super::assign::{AssignParams, Match, Unfound, assign};
use super::encode::encode;
use super::ground_truth::GroundTruth;
use super::losses::{Objectness, objectness_loss, rpn_box_loss};
use super::network::Network;
use super::sample::{self, Candidates, SampleParams, Sampler, Stage};
use super::step::LossTerm;
use crate::error::Result;
use crate::ops::gather_rows;
use crate::rpn::RpnOutput;
use crate::structures::BatchGeometry;

/// Deltas of anchors have no weights.
const UNIT: [f32; 4] = [1.0; 4];

/// `loss_objectness` and `loss_rpn_box_reg`.
pub(super) fn losses(
    network: &Network,
    output: &RpnOutput,
    truths: &[GroundTruth],
    geometry: &BatchGeometry,
    sampler: &mut dyn Sampler,
) -> Result<[LossTerm; 2]> {
    // Compared with the objects on the host, so made there.
    let anchors = network.rpn.anchor_generator();
    let anchors = anchors.generate_on(geometry, &output.objectness, &Device::Cpu)?;
    let anchors = anchors.flatten_all()?.to_vec1::<f32>()?;
    let (anchors, _) = anchors.as_chunks::<4>();
    let levels = Level::list(&output.objectness)?;
    let mut samples = Vec::new();
    for image in 0..truths.len() {
        samples.extend(sample_image(network, image, anchors, &levels, truths, sampler)?);
    }
    let label = |sample: &Sample| match sample.target {
        Some(_) => Objectness::Object,
        None => Objectness::Background,
    };
    let labels: Vec<Objectness> = samples.iter().map(label).collect();
    let logits = gather(&output.objectness, 1, samples.iter())?;
    let objectness = LossTerm::of(logits, |logits| objectness_loss(logits, &labels))?;

    let positives = || samples.iter().filter(|sample| sample.target.is_some());
    let targets: Vec<[f32; 4]> = positives().filter_map(|sample| sample.target).collect();
    let deltas = gather(&output.deltas, 4, positives())?;
    let boxes =
        LossTerm::of(deltas, |deltas| rpn_box_loss(deltas.as_chunks().0, &targets, labels.len()))?;
    Ok([objectness, boxes])
}

/// Anchors of a pyramid level in one image.
struct Level {
    /// Anchors of finer levels.
    first: usize,
    anchors: usize,
}

impl Level {
    fn list(objectness: &[Tensor]) -> Result<Vec<Self>> {
        let mut first = 0;
        objectness
            .iter()
            .map(|level| {
                let anchors = level.elem_count() / level.dim(0)?.max(1);
                first += anchors;
                Ok(Self { first: first - anchors, anchors })
            })
            .collect()
    }
}

/// A sampled anchor.
struct Sample {
    /// Place of its predictions: level after level, in each level image after image.
    row: u32,
    /// Deltas to the object that it has found.
    target: Option<[f32; 4]>,
}

fn sample_image(
    network: &Network,
    image: usize,
    anchors: &[[f32; 4]],
    levels: &[Level],
    truths: &[GroundTruth],
    sampler: &mut dyn Sampler,
) -> Result<Vec<Sample>> {
    let truth = &truths[image];
    let config = &network.training().rpn;
    let params = AssignParams {
        positive_iou: config.positive_iou,
        negative_iou: config.negative_iou,
        unfound: Unfound::GivenToBestBoxes,
    };
    let matches = assign(anchors, &truth.boxes, &params);
    let params = SampleParams {
        samples: config.samples_per_image,
        positive_fraction: config.positive_fraction,
    };
    let chosen = sampler.sample(Stage::Rpn, image, Candidates::of(&matches), &params)?;
    sample::check(Stage::Rpn, image, &chosen, &matches)?;
    let chosen = chosen.positives.iter().chain(&chosen.negatives);
    Ok(chosen
        .map(|&index| {
            let index = index as usize;
            let level = levels.partition_point(|level| level.first <= index) - 1;
            let Level { first, anchors: per_image } = levels[level];
            let target = match matches[index] {
                Match::Object(object) => {
                    Some(encode(truth.boxes[object as usize], anchors[index], UNIT))
                }
                Match::Background | Match::Ignored => None,
            };
            let row = truths.len() * first + image * per_image + index - first;
            Sample { row: row as u32, target }
        })
        .collect())
}

/// The predictions of samples, `width` numbers each; `None` without samples.
fn gather<'a>(
    levels: &[Tensor],
    width: usize,
    samples: impl Iterator<Item = &'a Sample>,
) -> Result<Option<Tensor>> {
    let rows: Vec<u32> = samples.map(|sample| sample.row).collect();
    let Some(first) = levels.first().filter(|_| !rows.is_empty()) else { return Ok(None) };
    let rows = Tensor::new(rows, first.device())?;
    let levels: Vec<&Tensor> = levels.iter().collect();
    Ok(Some(gather_rows(&levels, width, &rows)?))
}
