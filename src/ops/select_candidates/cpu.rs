use candle_core::Tensor;
use rayon::prelude::*;

use super::SelectCandidatesParams;
use crate::error::Result;
use crate::ops::support::check::lend;
use crate::ops::support::geometry::{clip_usable, decode};

pub(super) struct Found {
    pub boxes: Vec<f32>,
    pub scores: Vec<f32>,
    pub labels: Vec<u32>,
    pub valid: Vec<u8>,
}

/// One candidate of a proposal.
struct Candidate {
    bbox: [f32; 4],
    score: f32,
    label: u32,
}

pub(super) fn run(
    class_logits: &Tensor,
    box_regression: &Tensor,
    proposals: &Tensor,
    counts: &Tensor,
    per_proposal: usize,
    params: &SelectCandidatesParams,
) -> Result<Found> {
    let k = proposals.dims()[1];
    let rows = class_logits.dims()[0];
    let classes = class_logits.dims()[1];
    lend!(class_logits: f32, box_regression: f32, proposals: f32, counts: u32);
    let (proposals, _) = proposals.as_chunks::<4>();
    let candidates: Vec<Vec<Candidate>> = (0..rows)
        .into_par_iter()
        .map(|row| {
            let image = row / k;
            if row % k >= counts[image] as usize {
                return Vec::new();
            }
            let proposal = Proposal {
                bbox: proposals[row],
                logits: &class_logits[row * classes..(row + 1) * classes],
                deltas: &box_regression[row * 4 * classes..(row + 1) * 4 * classes],
                image_size: params.image_sizes[image],
            };
            proposal.candidates(params)
        })
        .collect();

    let slots = rows * per_proposal;
    let mut found = Found {
        boxes: vec![0.0; slots * 4],
        scores: vec![0.0; slots],
        labels: vec![0; slots],
        valid: vec![0; slots],
    };
    for (row, candidates) in candidates.iter().enumerate() {
        for (place, candidate) in candidates.iter().take(per_proposal).enumerate() {
            let slot = row * per_proposal + place;
            found.boxes[slot * 4..slot * 4 + 4].copy_from_slice(&candidate.bbox);
            found.scores[slot] = candidate.score;
            found.labels[slot] = candidate.label;
            found.valid[slot] = 1;
        }
    }
    Ok(found)
}

/// What the box predictor says of one proposal.
struct Proposal<'a> {
    bbox: [f32; 4],
    logits: &'a [f32],
    deltas: &'a [f32],
    image_size: (usize, usize),
}

impl Proposal<'_> {
    fn candidates(&self, params: &SelectCandidatesParams) -> Vec<Candidate> {
        let largest = self.logits.iter().fold(f32::NEG_INFINITY, |m, logit| m.max(*logit));
        let exponentials: Vec<f32> =
            self.logits.iter().map(|logit| (logit - largest).exp()).collect();
        let sum: f32 = exponentials.iter().sum();
        let (deltas, _) = self.deltas.as_chunks::<4>();
        let mut candidates = Vec::new();
        for (label, exponential) in exponentials.iter().enumerate().skip(1) {
            let score = exponential / sum;
            // NaN is not above the threshold.
            if score > params.score_threshold {
                let raw = decode(deltas[label], self.bbox, params.box_weights);
                if let Some(bbox) = clip_usable(raw, self.image_size, params.min_side) {
                    candidates.push(Candidate { bbox, score, label: label as u32 });
                }
            }
        }
        candidates
    }
}
