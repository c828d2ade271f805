use candle_core::Tensor;

use super::DecodeBoxesParams;
use crate::error::Result;
use crate::ops::support::box_coding::BoxCoding;
use crate::ops::support::check::lend;
use crate::ops::support::geometry::{clip_usable, decode, decode_distances};

/// Boxes and validity of all slots.
pub(super) fn run(
    anchors: &Tensor,
    regression: &[&Tensor],
    index: &Tensor,
    valid: &Tensor,
    params: &DecodeBoxesParams,
) -> Result<(Vec<f32>, Vec<u8>)> {
    let [n, slots] = [index.dims()[0], index.dims()[1]];
    lend!(anchors: f32, index: u32, valid: u8);
    let (anchors, _) = anchors.as_chunks::<4>();
    let mut boxes = vec![0.0; n * slots * 4];
    let mut usable = vec![0; n * slots];
    let mut start = 0;
    for level in regression {
        let length = level.dims()[1];
        lend!(level: f32);
        let (level, _) = level.as_chunks::<4>();
        for (slot, anchor) in index.iter().enumerate() {
            let local = (*anchor as usize).wrapping_sub(start);
            if valid[slot] == 0 || local >= length {
                continue;
            }
            let (image, anchor) = (slot / slots, anchors[*anchor as usize]);
            let code = level[image * length + local];
            let raw = match params.coding {
                BoxCoding::Deltas { weights } => decode(code, anchor, weights),
                BoxCoding::Distances => decode_distances(code, anchor),
            };
            let size = params.image_sizes[image];
            if let Some(clipped) = clip_usable(raw, size, f32::NEG_INFINITY) {
                boxes[slot * 4..slot * 4 + 4].copy_from_slice(&clipped);
                usable[slot] = 1;
            }
        }
        start += length;
    }
    Ok((boxes, usable))
}
