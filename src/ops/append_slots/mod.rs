//! The slots of one list after those of another.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};

use super::support::check::{argument, unsupported};
use crate::error::Result;

const OP: &str = "append_slots";

/// Lengths of the axes.
#[derive(Clone, Copy)]
struct Plan {
    n: usize,
    first: usize,
    second: usize,
    row: usize,
}

/// Puts the valid slots of a second list behind those of a first, without a gap, image by image.
///
/// # Shapes
/// | argument | shape | dtype |
/// | --- | --- | --- |
/// | `first` | `[N, K, F]` and `[N]` valid slots, at most K | f32, u32 |
/// | `second` | `[N, G, F]` and `[N]` valid slots, at most G | f32, u32 |
/// | returns | `[N, K + G, F]`, zero above the counts, and `[N]` counts | f32, u32 |
///
/// # Devices
/// CPU; CUDA in one launch.
///
/// # Gradients
/// None; used on boxes, which are constants.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType),
/// [`Error::Device`](crate::Error::Device) or [`Error::Unsupported`](crate::Error::Unsupported).
///
/// Reference: torchvision `models/detection/roi_heads.py`, `add_gt_proposals`.
pub fn append_slots(
    first: (&Tensor, &Tensor),
    second: (&Tensor, &Tensor),
) -> Result<(Tensor, Tensor)> {
    let expected = "[N, K, F]";
    let [n, slots, row] = argument(OP, "first", first.0).dtype(DType::F32)?.dims(expected)?;
    let more = argument(OP, "second", second.0).dtype(DType::F32)?.same_device(first.0)?;
    let [_, more_slots, _] = more.dims("[N, G, F]")?;
    more.shape(&[n, more_slots, row], "[N, G, F]")?;
    for counts in [first.1, second.1] {
        let counts = argument(OP, "counts", counts).dtype(DType::U32)?;
        counts.same_device(first.0)?.shape(&[n], "[N]")?;
    }
    let plan = Plan { n, first: slots, second: more_slots, row };
    match first.0.device() {
        Device::Cpu => cpu::run(first, second, plan),
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(first, second, plan),
        other => Err(unsupported(OP, other)),
    }
}
