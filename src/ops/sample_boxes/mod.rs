//! Which of the boxes a step of training learns from.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};

use super::support::check::{argument, unsupported};
use crate::error::Result;

const OP: &str = "sample_boxes";

/// How many boxes of an image are sampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleParams {
    /// Boxes in all, where there are as many.
    pub samples: usize,
    /// The most positives, as a fraction of the samples; rounded down.
    pub positive_fraction: f64,
}

impl SampleParams {
    /// The most positives of an image.
    pub fn most_positives(&self) -> usize {
        ((self.samples as f64 * self.positive_fraction) as usize).min(self.samples)
    }
}

/// Boxes by their index within an image.
#[derive(Debug, Clone)]
pub struct Chosen {
    /// `[N, S]` u32, zero above the count.
    pub index: Tensor,
    /// `[N]` u32, valid slots.
    pub counts: Tensor,
}

/// What was sampled of every image.
#[derive(Debug, Clone)]
pub struct Samples {
    /// Positives by ascending index, then negatives by ascending index; S is [`SampleParams::samples`].
    pub all: Chosen,
    /// The positives alone; S is [`SampleParams::most_positives`].
    pub positives: Chosen,
}

/// Samples, of the boxes of each image that have found an object, at most a fraction of the wanted number, and fills up
/// with boxes that show none.
///
/// Of the boxes that may be chosen, those with the lowest priorities are, of equal ones the lower index. With random
/// priorities every choice is as probable as the others.
///
/// # Shapes
/// | argument | shape | dtype |
/// | --- | --- | --- |
/// | `matches` | `[N, B]`, see [`Match::code`](super::Match::code) | u32 |
/// | `priorities` | `[N, B]` | u32 |
/// | returns | see [`Samples`] | u32 |
///
/// # Devices
/// CPU: O(B) time and a sort of what was chosen. CUDA: two launches, with no limit on B.
///
/// # Gradients
/// None.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType),
/// [`Error::Device`](crate::Error::Device) or [`Error::Unsupported`](crate::Error::Unsupported).
///
/// Reference: torchvision `models/detection/_utils.py`, `BalancedPositiveNegativeSampler`.
pub fn sample_boxes(
    matches: &Tensor,
    priorities: &Tensor,
    params: &SampleParams,
) -> Result<Samples> {
    let [n, boxes] = argument(OP, "matches", matches).dtype(DType::U32)?.dims("[N, B]")?;
    let priorities_argument = argument(OP, "priorities", priorities).dtype(DType::U32)?;
    priorities_argument.same_device(matches)?.shape(&[n, boxes], "[N, B]")?;
    match matches.device() {
        Device::Cpu => cpu::run(matches, priorities, (n, boxes), params),
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(matches, priorities, (n, boxes), params),
        other => Err(unsupported(OP, other)),
    }
}
