//! The best anchors of every class, where an anchor's classes compete with each other.

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

const OP: &str = "top_per_class";

/// Limits of [`top_per_class`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopPerClassParams {
    /// An anchor's score is strictly greater.
    pub score_threshold: f32,
    /// Best anchors of a class and image.
    pub per_class: usize,
}

/// Finds the best anchors of every class, of those above the threshold.
///
/// The score is the softmax of an anchor's class logits. Class 0, the background, is never chosen. Anchors of a class are
/// in descending order of score, equal scores by anchor. NaN is not above the threshold.
///
/// # Shapes
/// | argument | shape | dtype |
/// | --- | --- | --- |
/// | `logits` | each `[N, A_l, C]`, `Σ A_l = A` | f32 |
/// | returns | `[N, S]` each, `S = (C − 1) · min(per_class, A)`, class by class from 1 | see [`Pairs`] |
///
/// # Devices
/// CPU: in parallel over anchors, then classes. CUDA: at most 8 levels, in three launches; the scores of all anchors and
/// classes are kept for the selection.
///
/// # Gradients
/// None; detections are not trained through.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType),
/// [`Error::Device`](crate::Error::Device) or [`Error::Unsupported`](crate::Error::Unsupported);
/// [`Error::Config`](crate::Error::Config) for too many levels.
///
/// # Example
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_detection::ops::{TopPerClassParams, top_per_class};
/// let logits = Tensor::new(&[[[0f32, 1., 5.], [0., 6., 1.], [9., 0., 0.]]], &Device::Cpu)?;
/// let best = top_per_class(&[&logits], &TopPerClassParams { score_threshold: 0.1, per_class: 1 })?;
/// assert_eq!(best.index.to_vec2::<u32>()?, [[1, 0]]);
/// assert_eq!(best.labels.to_vec2::<u32>()?, [[1, 2]]);
/// # Ok::<(), candle_detection::Error>(())
/// ```
///
/// Reference: torchvision `models/detection/ssd.py`, `postprocess_detections`; Liu et al. 2016.
pub fn top_per_class(logits: &[&Tensor], params: &TopPerClassParams) -> Result<Pairs> {
    let Some(first) = logits.first() else {
        let empty = Tensor::zeros((0, 0, 0), DType::F32, &Device::Cpu)?;
        return Err(argument(OP, "logits", &empty).shape_error("at least one level"));
    };
    let [n, _, classes] = argument(OP, "logits", first).dims("[N, A_l, C]")?;
    for level in logits {
        let argument = argument(OP, "logits", level).dtype(DType::F32)?.same_device(first)?;
        let [_, anchors, _] = argument.dims("[N, A_l, C]")?;
        argument.shape(&[n, anchors, classes], "[N, A_l, C]")?;
    }
    let sizes =
        Sizes { images: n, anchors: logits.iter().map(|level| level.dims()[1]).sum(), classes };
    match first.device() {
        Device::Cpu => cpu::run(logits, sizes, params),
        #[cfg(feature = "cuda")]
        device @ Device::Cuda(_) => cuda::run(logits, sizes, params, device),
        other => Err(check::unsupported(OP, other)),
    }
}

/// What the result's shape follows from.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    images: usize,
    anchors: usize,
    classes: usize,
}

impl Sizes {
    fn foreground(self) -> usize {
        self.classes.saturating_sub(1)
    }

    /// Slots of a class.
    fn taken(self, params: &TopPerClassParams) -> usize {
        params.per_class.min(self.anchors)
    }
}
