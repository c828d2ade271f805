use candle_core::Tensor;

use super::DecodeProposalsParams;
use crate::error::Result;
use crate::ops::support::check::lend;
use crate::ops::support::geometry::{clip_usable, decode, sigmoid};

pub(super) struct Decoded {
    pub boxes: Vec<f32>,
    pub scores: Vec<f32>,
    pub valid: Vec<u8>,
}

pub(super) fn run(
    anchors: &Tensor,
    deltas: &[&Tensor],
    lengths: &[usize],
    index: &Tensor,
    logits: &Tensor,
    params: &DecodeProposalsParams,
) -> Result<Decoded> {
    let [n, slots] = [index.dims()[0], index.dims()[1]];
    let mut decoded = Decoded {
        boxes: vec![0.0; n * slots * 4],
        scores: vec![0.0; n * slots],
        valid: vec![0; n * slots],
    };
    let chosen = gather_deltas(deltas, lengths, index)?;
    lend!(anchors: f32, index: u32, logits: f32);
    let (anchors, _) = anchors.as_chunks::<4>();
    for slot in 0..n * slots {
        let raw = decode(chosen[slot], anchors[index[slot] as usize], [1.0; 4]);
        let score = sigmoid(logits[slot]);
        let usable = clip_usable(raw, params.image_sizes[slot / slots], params.min_side);
        if let Some(clipped) = usable
            && score >= params.score_threshold
        {
            decoded.boxes[slot * 4..slot * 4 + 4].copy_from_slice(&clipped);
            decoded.scores[slot] = score;
            decoded.valid[slot] = 1;
        }
    }
    Ok(decoded)
}

/// The deltas of every slot's anchor.
fn gather_deltas(deltas: &[&Tensor], lengths: &[usize], index: &Tensor) -> Result<Vec<[f32; 4]>> {
    let [n, slots] = [index.dims()[0], index.dims()[1]];
    lend!(index: u32);
    let mut chosen = vec![[0f32; 4]; n * slots];
    let mut start = 0;
    for (level, length) in deltas.iter().zip(lengths) {
        lend!(level: f32);
        let (level, _) = level.as_chunks::<4>();
        for (slot, anchor) in index.iter().enumerate() {
            let local = (*anchor as usize).wrapping_sub(start);
            if local < *length {
                chosen[slot] = level[slot / slots * length + local];
            }
        }
        start += length;
    }
    Ok(chosen)
}
