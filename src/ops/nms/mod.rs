//! Non-maximum suppression.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};

use super::support::check::{self, argument};
use crate::error::Result;

const OP: &str = "nms";

/// Limits of [`nms`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NmsParams {
    /// A box is dropped when its IoU with a better one of its group is *greater*.
    pub iou_threshold: f64,
    /// Best boxes kept per image.
    pub capacity: usize,
}

impl NmsParams {
    /// The greatest f32 that is not above the threshold: `iou > this` in f32 says the same as `iou > threshold` in f64.
    fn threshold_f32(&self) -> f32 {
        let nearest = self.iou_threshold as f32;
        if f64::from(nearest) > self.iou_threshold { nearest.next_down() } else { nearest }
    }
}

/// The boxes that survive, best first.
#[derive(Debug, Clone)]
pub struct Kept {
    /// `[N, capacity]` u32, slot of each kept box; 0 above the count.
    pub index: Tensor,
    /// `[N]` u32, boxes kept.
    pub counts: Tensor,
}

/// Suppresses boxes that overlap a better box of the same group.
///
/// Boxes are visited by descending score, equal scores by ascending slot. A box is dropped when its IoU with a kept box
/// of its group is greater than the threshold. Areas are `(x2 − x1)(y2 − y1)`, without "+1"; the IoU is computed in f32.
/// Two empty boxes have no IoU and suppress nothing. The best `capacity` of all groups are kept. Invalid slots and NaN
/// scores take no part, and a box with a corner that is not finite neither suppresses nor is kept.
///
/// # Shapes
/// | argument | shape | dtype | unit |
/// | --- | --- | --- | --- |
/// | `boxes` | `[N, S, 4]` | f32, f16, bf16 (widened first) | xyxy pixels |
/// | `scores` | `[N, S]` | f32, f16, bf16 | |
/// | `groups` | `[N, S]` | u32 | class or pyramid level |
/// | `valid` | `[N, S]` | u8 | 0: the slot is empty |
/// | returns | | see [`Kept`] | |
///
/// # Devices
/// CPU: images in parallel; each box is compared with the kept ones of its group, so O(S · kept) at worst. CUDA: the same
/// comparisons in the same order, 64 boxes at a time, in three launches whatever the input; memory is O(S).
///
/// # Gradients
/// None; the result is an index.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType),
/// [`Error::Device`](crate::Error::Device) or [`Error::Unsupported`](crate::Error::Unsupported).
///
/// # Example
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_detection::ops::{NmsParams, nms};
/// let boxes = Tensor::new(&[[[0f32, 0., 10., 10.], [0., 0., 10., 9.], [20., 0., 30., 10.]]], &Device::Cpu)?;
/// let scores = Tensor::new(&[[0.8f32, 0.9, 0.1]], &Device::Cpu)?;
/// let groups = Tensor::zeros((1, 3), DType::U32, &Device::Cpu)?;
/// let valid = Tensor::ones((1, 3), DType::U8, &Device::Cpu)?;
/// let kept = nms(&boxes, &scores, &groups, &valid, &NmsParams { iou_threshold: 0.5, capacity: 3 })?;
/// assert_eq!(kept.index.to_vec2::<u32>()?, [[1, 2, 0]]);
/// assert_eq!(kept.counts.to_vec1::<u32>()?, [2]);
/// # Ok::<(), candle_detection::Error>(())
/// ```
///
/// Reference: torchvision `ops/boxes.py`, `batched_nms`; Girshick et al. 2014, section 2.3. Where torchvision moves the
/// groups of few boxes apart by adding an offset to their coordinates, which rounds them, this compares exact boxes.
pub fn nms(
    boxes: &Tensor,
    scores: &Tensor,
    groups: &Tensor,
    valid: &Tensor,
    params: &NmsParams,
) -> Result<Kept> {
    let boxes = &widen(boxes)?;
    let scores = &widen(scores)?;
    let [n, slots] = argument(OP, "scores", scores).dtype(DType::F32)?.dims("[N, S]")?;
    argument(OP, "boxes", boxes)
        .dtype(DType::F32)?
        .same_device(scores)?
        .shape(&[n, slots, 4], "[N, S, 4]")?;
    argument(OP, "groups", groups)
        .dtype(DType::U32)?
        .same_device(scores)?
        .shape(&[n, slots], "[N, S]")?;
    argument(OP, "valid", valid)
        .dtype(DType::U8)?
        .same_device(scores)?
        .shape(&[n, slots], "[N, S]")?;
    match scores.device() {
        device @ Device::Cpu => {
            let (index, counts) =
                cpu::run(boxes, scores, groups, valid, params.threshold_f32(), params.capacity)?;
            Ok(Kept {
                index: Tensor::from_vec(index, (n, params.capacity), device)?,
                counts: Tensor::from_vec(counts, n, device)?,
            })
        }
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(boxes, scores, groups, valid, params),
        other => Err(check::unsupported(OP, other)),
    }
}

/// Half precision to f32: the area of 500×500 pixels is infinite in f16.
fn widen(tensor: &Tensor) -> Result<Tensor> {
    match tensor.dtype() {
        DType::F16 | DType::BF16 => Ok(tensor.to_dtype(DType::F32)?),
        _ => Ok(tensor.clone()),
    }
}
