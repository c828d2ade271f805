//! From class logits and box regression to candidates: (proposal, class) pairs worth considering.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};

use super::support::check::{self, argument};
use crate::error::Result;

const OP: &str = "select_candidates";

/// Sizes and limits of [`select_candidates`].
#[derive(Debug, Clone, PartialEq)]
pub struct SelectCandidatesParams {
    /// Height and width of each resized image, in pixels: boxes are clipped to it.
    pub image_sizes: Vec<(usize, usize)>,
    /// Divisors of dx, dy, dw, dh.
    pub box_weights: [f32; 4],
    /// A candidate's score is strictly greater.
    pub score_threshold: f32,
    /// Both clipped sides of a candidate have at least this many pixels.
    pub min_side: f32,
}

impl SelectCandidatesParams {
    /// The most candidates that one proposal can have.
    ///
    /// The scores of a proposal sum to 1, so at most ⌊1 / t⌋ of them can be greater than t; a threshold of 0.05 thus
    /// needs 20 slots and not 90.
    pub fn candidates_per_proposal(&self, num_classes: usize) -> usize {
        let foreground = num_classes.saturating_sub(1);
        if self.score_threshold <= 0.0 {
            return foreground;
        }
        foreground.min((1.0 / f64::from(self.score_threshold)).floor() as usize)
    }
}

/// Candidates before suppression: `S = K · candidates_per_proposal` slots an image, by proposal, then class.
#[derive(Debug, Clone)]
pub struct Candidates {
    /// `[N, S, 4]` f32, xyxy in pixels of the resized image, clipped; zero in invalid slots.
    pub boxes: Tensor,
    /// `[N, S]` f32 in `0..=1`; zero in invalid slots.
    pub scores: Tensor,
    /// `[N, S]` u32, category id; zero in invalid slots.
    pub labels: Tensor,
    /// `[N, S]` u8, 1 where the slot holds a candidate.
    pub valid: Tensor,
}

/// Scores every class of every proposal, and decodes the boxes of those above the threshold.
///
/// The score is the softmax of the logits; class 0, the background, is never a candidate. Boxes are decoded per class
/// with `dw` and `dh` capped at `ln(1000 / 16)`, clipped to the image, and dropped with a short side or a corner that
/// is not finite. The threshold is strict, the minimal side is not.
///
/// # Shapes
/// | argument | shape | dtype | unit |
/// | --- | --- | --- | --- |
/// | `class_logits` | `[N·K, C]` | f32 | |
/// | `box_regression` | `[N·K, 4·C]` | f32 | dx, dy, dw, dh per class |
/// | `proposals` | `[N, K, 4]` | f32 | xyxy pixels of the resized image |
/// | `counts` | `[N]` | u32 | valid proposals, ≤ K |
/// | returns | | see [`Candidates`] | |
///
/// # Devices
/// CPU: in parallel over proposals. CUDA: one launch for 32 images, a warp per proposal.
///
/// # Gradients
/// None; detections are not trained through.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType),
/// [`Error::Device`](crate::Error::Device) or [`Error::Unsupported`](crate::Error::Unsupported).
///
/// Reference: torchvision `models/detection/roi_heads.py`, `postprocess_detections`.
pub fn select_candidates(
    class_logits: &Tensor,
    box_regression: &Tensor,
    proposals: &Tensor,
    counts: &Tensor,
    params: &SelectCandidatesParams,
) -> Result<Candidates> {
    let [n, k, _] = argument(OP, "proposals", proposals).dtype(DType::F32)?.dims("[N, K, 4]")?;
    argument(OP, "proposals", proposals).shape(&[n, k, 4], "[N, K, 4]")?;
    let [_, classes] = argument(OP, "class_logits", class_logits)
        .dtype(DType::F32)?
        .same_device(proposals)?
        .dims("[N·K, C]")?;
    argument(OP, "class_logits", class_logits).shape(&[n * k, classes], "[N·K, C]")?;
    argument(OP, "box_regression", box_regression)
        .dtype(DType::F32)?
        .same_device(proposals)?
        .shape(&[n * k, 4 * classes], "[N·K, 4·C]")?;
    argument(OP, "counts", counts).dtype(DType::U32)?.same_device(proposals)?.shape(&[n], "[N]")?;
    if params.image_sizes.len() != n {
        let expected = format!("[N, K, 4] with N = {} image sizes", params.image_sizes.len());
        return Err(argument(OP, "proposals", proposals).shape_error(&expected));
    }
    let per_proposal = params.candidates_per_proposal(classes);
    match proposals.device() {
        device @ Device::Cpu => {
            let found =
                cpu::run(class_logits, box_regression, proposals, counts, per_proposal, params)?;
            let shape = (n, k * per_proposal);
            Ok(Candidates {
                boxes: Tensor::from_vec(found.boxes, (n, k * per_proposal, 4), device)?,
                scores: Tensor::from_vec(found.scores, shape, device)?,
                labels: Tensor::from_vec(found.labels, shape, device)?,
                valid: Tensor::from_vec(found.valid, shape, device)?,
            })
        }
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => {
            cuda::run(class_logits, box_regression, proposals, counts, per_proposal, params)
        }
        other => Err(check::unsupported(OP, other)),
    }
}
