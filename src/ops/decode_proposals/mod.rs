//! From the best anchors to boxes of the resized image.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};

use super::support::check::{self, argument};
use crate::error::Result;

const OP: &str = "decode_proposals";

/// Sizes and limits of [`decode_proposals`].
#[derive(Debug, Clone, PartialEq)]
pub struct DecodeProposalsParams {
    /// Height and width of each resized image, in pixels: boxes are clipped to it.
    pub image_sizes: Vec<(usize, usize)>,
    /// A proposal is valid when its score is at least this.
    pub score_threshold: f32,
    /// A proposal is valid when both clipped sides have at least this many pixels.
    pub min_side: f32,
}

/// Boxes before suppression, slot by slot with their anchors.
#[derive(Debug, Clone)]
pub struct DecodedProposals {
    /// `[N, S, 4]` f32, xyxy, clipped; zero in invalid slots.
    pub boxes: Tensor,
    /// `[N, S]` f32 in `0..=1`; zero in invalid slots.
    pub scores: Tensor,
    /// `[N, S]` u8, 1 where the slot holds a proposal.
    pub valid: Tensor,
}

/// Applies the predicted deltas of chosen anchors and scores the boxes.
///
/// Deltas have weights 1. `dw` and `dh` are capped at `ln(1000 / 16)` before the exponential; the score is the sigmoid
/// of the logit. Boxes are clipped to the image, then those with a short side, a low score or a corner that is not
/// finite become invalid.
///
/// # Shapes
/// | argument | shape | dtype | unit |
/// | --- | --- | --- | --- |
/// | `anchors` | `[A, 4]` | f32 | xyxy pixels |
/// | `deltas` | each `[N, A_l, 4]`, `Σ A_l = A` | f32 | dx, dy, dw, dh |
/// | `index` | `[N, S]` | u32 | anchor of each slot |
/// | `logits` | `[N, S]` | f32 | objectness of each slot |
/// | returns | `[N, S, …]` | see [`DecodedProposals`] | |
///
/// # Devices
/// CPU; CUDA with at most 8 levels, in one launch for 32 images. The image sizes travel as numbers, not as a tensor.
///
/// # Gradients
/// None: proposals are constants of the second stage.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType),
/// [`Error::Device`](crate::Error::Device) or [`Error::Unsupported`](crate::Error::Unsupported).
///
/// Reference: torchvision `models/detection/rpn.py`, `filter_proposals`; Girshick et al. 2014, appendix C.
pub fn decode_proposals(
    anchors: &Tensor,
    deltas: &[&Tensor],
    index: &Tensor,
    logits: &Tensor,
    params: &DecodeProposalsParams,
) -> Result<DecodedProposals> {
    let [total, _] = argument(OP, "anchors", anchors).dtype(DType::F32)?.dims("[A, 4]")?;
    argument(OP, "anchors", anchors).shape(&[total, 4], "[A, 4]")?;
    let [n, slots] =
        argument(OP, "index", index).dtype(DType::U32)?.same_device(anchors)?.dims("[N, S]")?;
    argument(OP, "logits", logits)
        .dtype(DType::F32)?
        .same_device(anchors)?
        .shape(&[n, slots], "[N, S]")?;
    let mut lengths = Vec::with_capacity(deltas.len());
    for level in deltas {
        let argument = argument(OP, "deltas", level).dtype(DType::F32)?.same_device(anchors)?;
        let [_, length, _] = argument.dims("[N, A_l, 4]")?;
        argument.shape(&[n, length, 4], "[N, A_l, 4]")?;
        lengths.push(length);
    }
    if lengths.iter().sum::<usize>() != total {
        let expected = format!("[Σ A_l, 4] with A_l = {lengths:?}");
        return Err(argument(OP, "anchors", anchors).shape_error(&expected));
    }
    if params.image_sizes.len() != n {
        let expected = format!("[N, S] with N = {} image sizes", params.image_sizes.len());
        return Err(argument(OP, "index", index).shape_error(&expected));
    }
    match anchors.device() {
        device @ Device::Cpu => {
            let decoded = cpu::run(anchors, deltas, &lengths, index, logits, params)?;
            Ok(DecodedProposals {
                boxes: Tensor::from_vec(decoded.boxes, (n, slots, 4), device)?,
                scores: Tensor::from_vec(decoded.scores, (n, slots), device)?,
                valid: Tensor::from_vec(decoded.valid, (n, slots), device)?,
            })
        }
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(anchors, deltas, index, logits, params),
        other => Err(check::unsupported(OP, other)),
    }
}
