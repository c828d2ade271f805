//! The best (anchor, class) pairs of every pyramid level.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};

use super::support::check::{self, argument};
use super::support::pairs::Pairs;
use crate::error::Result;

const OP: &str = "top_pairs";

/// Limits of [`top_pairs`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopPairsParams {
    /// A pair's score is strictly greater.
    pub score_threshold: f32,
    /// Best pairs of a level and image.
    pub per_level: usize,
}

/// Finds the best pairs of anchor and class of every level, of those above the threshold.
///
/// The score is the sigmoid of the class logit; with `quality`, such as a centerness, it is
/// `√(sigmoid(class) · sigmoid(quality))`. Pairs of a level are in descending order of score, equal scores by anchor,
/// then class. NaN is not above the threshold. All classes count, 0 among them.
///
/// # Shapes
/// | argument | shape | dtype |
/// | --- | --- | --- |
/// | `logits` | each `[N, A_l, C]` | f32 |
/// | `quality` | each `[N, A_l]` | f32 |
/// | returns | `[N, S]` each, `S = Σ min(per_level, A_l · C)`, level by level | see [`Pairs`] |
///
/// # Devices
/// CPU: in parallel; logits are compared with the threshold's, and only those near or above it are scored. CUDA: at most
/// 8 levels; a radix selection over the whole grid in 15 launches, most of which find nothing to do. Its memory is
/// O(S), whatever the levels' size.
///
/// # Gradients
/// None; detections are not trained through.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), also for a level of more than 2³² pairs;
/// [`Error::DType`](crate::Error::DType), [`Error::Device`](crate::Error::Device) or
/// [`Error::Unsupported`](crate::Error::Unsupported); [`Error::Config`](crate::Error::Config) for too many levels.
///
/// # Example
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_detection::ops::{TopPairsParams, top_pairs};
/// let logits = Tensor::new(&[[[-9f32, 2.0], [3.0, -9.0]]], &Device::Cpu)?;
/// let best = top_pairs(&[&logits], None, &TopPairsParams { score_threshold: 0.5, per_level: 3 })?;
/// assert_eq!(best.index.to_vec2::<u32>()?, [[1, 0, 0]]);
/// assert_eq!(best.labels.to_vec2::<u32>()?, [[0, 1, 0]]);
/// assert_eq!(best.valid.to_vec2::<u8>()?, [[1, 1, 0]]);
/// # Ok::<(), candle_detection::Error>(())
/// ```
///
/// Reference: torchvision `models/detection/retinanet.py` and `fcos.py`, `postprocess_detections`.
pub fn top_pairs(
    logits: &[&Tensor],
    quality: Option<&[&Tensor]>,
    params: &TopPairsParams,
) -> Result<Pairs> {
    let Some(first) = logits.first() else {
        let empty = Tensor::zeros((0, 0, 0), DType::F32, &Device::Cpu)?;
        return Err(argument(OP, "logits", &empty).shape_error("at least one level"));
    };
    let [n, _, classes] = argument(OP, "logits", first).dims("[N, A_l, C]")?;
    for level in logits {
        let argument = argument(OP, "logits", level).dtype(DType::F32)?.same_device(first)?;
        let [_, anchors, _] = argument.dims("[N, A_l, C]")?;
        argument.shape(&[n, anchors, classes], "[N, A_l, C]")?;
        if u32::try_from(anchors * classes).is_err() {
            return Err(argument.shape_error("[N, A_l, C] with less than 2³² pairs a level"));
        }
    }
    if let Some(quality) = quality {
        if quality.len() != logits.len() {
            let expected = format!("{} levels, one per level of `logits`", logits.len());
            let found = quality.first().unwrap_or(first);
            return Err(argument(OP, "quality", found).shape_error(&expected));
        }
        for (quality, logits) in quality.iter().zip(logits) {
            argument(OP, "quality", quality)
                .dtype(DType::F32)?
                .same_device(first)?
                .shape(&logits.dims()[..2], "[N, A_l]")?;
        }
    }
    match first.device() {
        Device::Cpu => cpu::run(logits, quality, params),
        #[cfg(feature = "cuda")]
        device @ Device::Cuda(_) => cuda::run(logits, quality, params, device),
        other => Err(check::unsupported(OP, other)),
    }
}
