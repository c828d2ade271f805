//! What sampled boxes are to learn.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};

use super::support::box_set::BoxSet;
use super::support::check::{argument, unsupported};
use super::support::objects::Objects;
use crate::error::Result;

const OP: &str = "box_targets";

/// What [`box_targets`] finds; everything above the counts is zero but the labels.
#[derive(Debug, Clone)]
pub struct BoxTargets {
    /// `[N, S, 4]` f32, the sampled boxes themselves.
    pub boxes: Tensor,
    /// `[N, S]` u32: category of the object that a box has found, 0 for background,
    /// [`IGNORED_LABEL`](super::IGNORED_LABEL) above the count.
    pub labels: Tensor,
    /// `[N, S]` u32: index of the object that a box has found; 0 for background.
    pub objects: Tensor,
    /// `[N, S, 4]` f32: deltas from the box to its object; 0 for background.
    pub deltas: Tensor,
}

/// Lengths of the axes.
#[derive(Clone, Copy)]
struct Plan {
    images: usize,
    slots: usize,
    boxes: usize,
    objects: usize,
}

/// Looks up sampled boxes, and encodes the objects that they have found relative to them.
///
/// Deltas are `weights · [(xₒ − x) / w, (yₒ − y) / h, ln(wₒ / w), ln(hₒ / h)]` of centers, widths and heights, the inverse
/// of decoding.
///
/// # Shapes
/// | argument | shape | dtype |
/// | --- | --- | --- |
/// | `index`, `counts` | `[N, S]` boxes by index, `[N]` valid slots | u32 |
/// | `matches` | `[N, B]`, see [`Match::code`](super::Match::code) | u32 |
/// | `boxes` | see [`BoxSet`] | f32 |
/// | `objects` | see [`Objects`] | f32, u32 |
/// | returns | see [`BoxTargets`] | |
///
/// # Devices
/// CPU; CUDA in one launch.
///
/// # Gradients
/// None: targets are constants.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType),
/// [`Error::Device`](crate::Error::Device) or [`Error::Unsupported`](crate::Error::Unsupported). An index that is no box or
/// object is an error on the CPU, and an empty slot on CUDA.
///
/// Reference: torchvision `models/detection/_utils.py`, `BoxCoder.encode`; Girshick et al. 2014, appendix C.
pub fn box_targets(
    (index, counts): (&Tensor, &Tensor),
    matches: &Tensor,
    boxes: BoxSet<'_>,
    objects: Objects<'_>,
    weights: [f32; 4],
) -> Result<BoxTargets> {
    let device = index.device();
    let [images, slots] = argument(OP, "index", index).dtype(DType::U32)?.dims("[N, S]")?;
    argument(OP, "counts", counts).dtype(DType::U32)?.on(device)?.shape(&[images], "[N]")?;
    let per_image = boxes.check(OP, images, device)?;
    let matches_argument = argument(OP, "matches", matches).dtype(DType::U32)?.on(device)?;
    matches_argument.shape(&[images, per_image], "[N, B]")?;
    let object_boxes =
        argument(OP, "objects.boxes", objects.boxes).dtype(DType::F32)?.on(device)?;
    let [_, n_objects, _] = object_boxes.dims("[N, G, 4]")?;
    object_boxes.shape(&[images, n_objects, 4], "[N, G, 4]")?;
    let labels = argument(OP, "objects.labels", objects.labels).dtype(DType::U32)?.on(device)?;
    labels.shape(&[images, n_objects], "[N, G]")?;
    let plan = Plan { images, slots, boxes: per_image, objects: n_objects };
    match device {
        Device::Cpu => cpu::run((index, counts), matches, boxes, objects, weights, plan),
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run((index, counts), matches, boxes, objects, weights, plan),
        other => Err(unsupported(OP, other)),
    }
}
