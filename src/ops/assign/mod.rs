//! Which object each box has found.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};

use super::support::box_set::BoxSet;
use super::support::check::{argument, unsupported};
#[cfg(test)]
use super::support::matches::Match;
use crate::error::Result;

const OP: &str = "assign";

/// Thresholds of [`assign`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AssignParams {
    /// A box has found the object it overlaps most when their IoU is at least this.
    pub positive_iou: f32,
    /// It is background when that IoU is less than this.
    pub negative_iou: f32,
    /// What becomes of objects that no box has found.
    pub unfound: Unfound,
}

/// What becomes of objects that no box overlaps enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfound {
    /// Nothing is learned about them.
    Dropped,
    /// The boxes that overlap an object most, all of them if several do equally, have found something, however little
    /// they overlap: not necessarily that object, but the one that they themselves overlap most.
    GivenToBestBoxes,
    /// Every object is given to the one box that overlaps it most, the first of several, whatever else that box has found; a
    /// box that is best for several objects has found the last of them (torchvision's `SSDMatcher`).
    EachToItsBestBox,
}

/// Lengths of the axes.
#[derive(Clone, Copy)]
struct Plan {
    images: usize,
    boxes: usize,
    objects: usize,
}

/// Compares every box with every object of its image.
///
/// Of objects that a box overlaps equally, the first counts. An object that no box overlaps at all is never given to
/// boxes; the reference then gives it to *every* box with an IoU of 0. Without objects every box is background.
///
/// # Shapes
/// | argument | shape | dtype | unit |
/// | --- | --- | --- | --- |
/// | `boxes` | see [`BoxSet`] | f32 | xyxy pixels |
/// | `objects` | `[N, G, 4]`, each with an area | f32 | xyxy pixels |
/// | `counts` | `[N]`, objects of each image | u32 | |
/// | returns | `[N, B]`, see [`Match::code`](super::Match::code) | u32 | |
///
/// # Devices
/// CPU, on the threads of the current rayon pool; CUDA in one launch, two or three where objects are given to boxes. O(N·B·G) time;
/// memory for one number per box and one per object, never for a matrix of all pairs.
///
/// # Gradients
/// None.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType),
/// [`Error::Device`](crate::Error::Device) or [`Error::Unsupported`](crate::Error::Unsupported).
///
/// Reference: torchvision `models/detection/_utils.py`, `Matcher` and `SSDMatcher`; Ren et al., arXiv:1506.01497, section 3.1.2.
pub fn assign(
    boxes: BoxSet<'_>,
    objects: &Tensor,
    counts: &Tensor,
    params: &AssignParams,
) -> Result<Tensor> {
    let checked = argument(OP, "objects", objects).dtype(DType::F32)?;
    let [images, n_objects, corners] = checked.dims("[N, G, 4]")?;
    if corners != 4 {
        return Err(checked.shape_error("[N, G, 4]"));
    }
    argument(OP, "counts", counts)
        .dtype(DType::U32)?
        .same_device(objects)?
        .shape(&[images], "[N]")?;
    let per_image = boxes.check(OP, images, objects.device())?;
    let plan = Plan { images, boxes: per_image, objects: n_objects };
    match objects.device() {
        Device::Cpu => cpu::run(boxes, objects, counts, params, plan),
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(boxes, objects, counts, params, plan),
        other => Err(unsupported(OP, other)),
    }
}
