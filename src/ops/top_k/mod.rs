//! The best anchors of every pyramid level.

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

const OP: &str = "top_k";

/// The best entries of every segment, one segment after another: `S = Σ min(k, A_l)` slots.
#[derive(Debug, Clone)]
pub struct TopK {
    /// `[N, S]` f32, descending within a segment.
    pub values: Tensor,
    /// `[N, S]` u32, index over all segments joined.
    pub index: Tensor,
    /// `[N, S]` u32, number of the segment.
    pub segment: Tensor,
}

/// Finds the `k` largest values of every segment.
///
/// Equal values keep their order: the lower index comes first. NaN comes last.
///
/// # Shapes
/// | argument | shape | dtype |
/// | --- | --- | --- |
/// | `segments` | each `[N, A_l]` | f32 |
/// | returns | `[N, S]` each, `S = Σ min(k, A_l)` | see [`TopK`] |
///
/// # Devices
/// CPU: O(A + k log k), in parallel over images and segments. CUDA: at most 8 segments; two launches, a radix selection
/// of O(A) and a ranking of O(k²), with no limit on A or k.
///
/// # Gradients
/// None; the values are returned for convenience and cut off from the graph.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType),
/// [`Error::Device`](crate::Error::Device) or [`Error::Unsupported`](crate::Error::Unsupported);
/// [`Error::Config`](crate::Error::Config) for too many segments.
///
/// # Example
/// ```
/// use candle_core::{Device, Tensor};
/// let fine = Tensor::new(&[[0.1f32, 0.9, 0.5]], &Device::Cpu)?;
/// let coarse = Tensor::new(&[[0.7f32]], &Device::Cpu)?;
/// let best = candle_detection::ops::top_k(&[&fine, &coarse], 2)?;
/// assert_eq!(best.index.to_vec2::<u32>()?, [[1, 2, 3]]);
/// # Ok::<(), candle_detection::Error>(())
/// ```
///
/// Reference: torchvision `models/detection/rpn.py`, `_get_top_n_idx`.
pub fn top_k(segments: &[&Tensor], k: usize) -> Result<TopK> {
    let Some(first) = segments.first() else {
        let empty = Tensor::zeros((0, 0), DType::F32, &Device::Cpu)?;
        return Err(argument(OP, "segments", &empty).shape_error("at least one segment"));
    };
    let [n, _] = argument(OP, "segments", first).dims("[N, A_l]")?;
    for segment in segments {
        let [_, length] = argument(OP, "segments", segment)
            .dtype(DType::F32)?
            .same_device(first)?
            .dims("[N, A_l]")?;
        argument(OP, "segments", segment).shape(&[n, length], "[N, A_l]")?;
    }
    match first.device() {
        device @ Device::Cpu => {
            let best = cpu::run(segments, n, k)?;
            let shape = (n, best.slots);
            Ok(TopK {
                values: Tensor::from_vec(best.values, shape, device)?,
                index: Tensor::from_vec(best.index, shape, device)?,
                segment: Tensor::from_vec(best.segment, shape, device)?,
            })
        }
        #[cfg(feature = "cuda")]
        device @ Device::Cuda(_) => cuda::run(segments, n, k, device),
        other => Err(check::unsupported(OP, other)),
    }
}
