//! Which object each point of a pyramid has found.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};

use super::support::check::{argument, unsupported};
use crate::error::{Error, Result};

const OP: &str = "assign_points";

/// The area from which an object is given to no point, and from which areas count down: the reference's.
const MAX_AREA: f32 = 1e8;

/// Distances of [`assign_points`], in strides: sides of the square around a point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AssignPointsParams {
    /// A point is nearer to its object's center than this, in x and in y.
    pub center_radius: f32,
    /// Its largest distance to a side of the object is above the first and below the second number; the first level has no
    /// lower and the last no upper limit.
    pub side_range: (f32, f32),
}

/// Lengths of the axes, and where the limits of sizes end.
#[derive(Clone, Copy)]
struct Plan {
    images: usize,
    points: usize,
    objects: usize,
    /// Points of the first level.
    first: usize,
    /// Points before the last level.
    before_last: usize,
}

/// Compares every point, the center of a square, with every object of its image.
///
/// A point has found an object when it lies inside it and not on a side, near its center, and when the object's size suits
/// its level. Of several objects the smallest counts, as the reference finds it: the first with the largest `1e8 − area`,
/// a number that is rounded to multiples of 8; an object of 1e8 or more is given to no point. Every other point is
/// background.
///
/// # Shapes
/// | argument | shape | dtype | unit |
/// | --- | --- | --- | --- |
/// | `squares` | `[A, 4]`, around each point, as wide and as high as its stride | f32 | xyxy pixels |
/// | `lengths` | points of each level, A together | | |
/// | `objects` | `[N, G, 4]` | f32 | xyxy pixels |
/// | `counts` | `[N]`, objects of each image | u32 | |
/// | returns | `[N, A]`, see [`Match::code`](super::Match::code), never ignored | u32 | |
///
/// # Devices
/// CPU, on the threads of the current rayon pool; CUDA in one launch. O(N·A·G) time, and no memory but the result.
///
/// # Gradients
/// None.
///
/// # Errors
/// [`Error::Shape`], [`Error::DType`], [`Error::Device`] or [`Error::Unsupported`].
///
/// # Example
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_detection::ops::{AssignPointsParams, assign_points};
///
/// let squares = Tensor::new(&[[-4f32, -4.0, 4.0, 4.0], [4.0, -4.0, 12.0, 4.0]], &Device::Cpu)?;
/// let objects = Tensor::new(&[[[5f32, -6.0, 15.0, 8.0]]], &Device::Cpu)?;
/// let counts = Tensor::new(&[1u32], &Device::Cpu)?;
/// let params = AssignPointsParams { center_radius: 1.5, side_range: (4.0, 8.0) };
/// let found = assign_points(&squares, &[2], &objects, &counts, &params)?;
/// assert_eq!(found.to_vec2::<u32>()?, [[1, 2]]); // background, the first object
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Reference: torchvision `models/detection/fcos.py`, `FCOS.compute_loss`; Tian et al., arXiv:2006.09214.
pub fn assign_points(
    squares: &Tensor,
    lengths: &[usize],
    objects: &Tensor,
    counts: &Tensor,
    params: &AssignPointsParams,
) -> Result<Tensor> {
    let checked = argument(OP, "objects", objects).dtype(DType::F32)?;
    let [images, n_objects, corners] = checked.dims("[N, G, 4]")?;
    if corners != 4 {
        return Err(checked.shape_error("[N, G, 4]"));
    }
    let counts_argument = argument(OP, "counts", counts).dtype(DType::U32)?;
    counts_argument.same_device(objects)?.shape(&[images], "[N]")?;
    let points = lengths.iter().sum();
    let squares_argument = argument(OP, "squares", squares).dtype(DType::F32)?;
    squares_argument.same_device(objects)?.shape(&[points, 4], "[A, 4]")?;
    let (Some(first), Some(last)) = (lengths.first(), lengths.last()) else {
        return Err(Error::Shape {
            op: OP,
            argument: "lengths",
            expected: "at least one level".to_owned(),
            found: vec![0],
        });
    };
    let plan =
        Plan { images, points, objects: n_objects, first: *first, before_last: points - last };
    match objects.device() {
        Device::Cpu => cpu::run(squares, objects, counts, params, plan),
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(squares, objects, counts, params, plan),
        other => Err(unsupported(OP, other)),
    }
}
