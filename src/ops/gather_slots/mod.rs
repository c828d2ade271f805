//! Rows picked by index, into slots.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};

use super::support::check::{self, argument};
use crate::error::Result;

const OP: &str = "gather_slots";

/// Lengths of the axes.
#[derive(Clone, Copy)]
struct Plan {
    n: usize,
    k: usize,
    slots: usize,
    row: usize,
}

/// Picks the rows of kept slots, and zeroes what lies above the count.
///
/// # Shapes
/// | argument | shape | dtype |
/// | --- | --- | --- |
/// | `source` | `[N, S]` or `[N, S, F]` | f32 or u32 |
/// | `index` | `[N, K]`, values below S | u32 |
/// | `counts` | `[N]`, at most K | u32 |
/// | returns | `[N, K]` or `[N, K, F]` | as `source` |
///
/// # Devices
/// CPU; CUDA in one launch.
///
/// # Gradients
/// None; used on detections and proposals, which are constants.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType),
/// [`Error::Device`](crate::Error::Device) or [`Error::Unsupported`](crate::Error::Unsupported).
pub fn gather_slots(source: &Tensor, index: &Tensor, counts: &Tensor) -> Result<Tensor> {
    let [n, k] =
        argument(OP, "index", index).dtype(DType::U32)?.same_device(source)?.dims("[N, K]")?;
    argument(OP, "counts", counts).dtype(DType::U32)?.same_device(source)?.shape(&[n], "[N]")?;
    let (slots, shape) = match *source.dims() {
        [images, slots] if images == n => (slots, vec![n, k]),
        [images, slots, row] if images == n => (slots, vec![n, k, row]),
        _ => return Err(argument(OP, "source", source).shape_error("[N, S] or [N, S, F]")),
    };
    let row: usize = shape[2..].iter().product();
    let plan = Plan { n, k, slots, row };
    match (source.device(), source.dtype()) {
        (device @ Device::Cpu, DType::F32) => {
            Ok(Tensor::from_vec(cpu::run::<f32>(source, index, counts, plan)?, shape, device)?)
        }
        (device @ Device::Cpu, DType::U32) => {
            Ok(Tensor::from_vec(cpu::run::<u32>(source, index, counts, plan)?, shape, device)?)
        }
        (_, dtype) if !matches!(dtype, DType::F32 | DType::U32) => {
            Err(argument(OP, "source", source)
                .dtype(DType::F32)
                .map_or_else(|error| error, |argument| argument.shape_error("f32 or u32 values")))
        }
        #[cfg(feature = "cuda")]
        (Device::Cuda(_), DType::F32) => cuda::run::<f32>(source, index, counts, plan, &shape),
        #[cfg(feature = "cuda")]
        (Device::Cuda(_), DType::U32) => cuda::run::<u32>(source, index, counts, plan, &shape),
        (other, _) => Err(check::unsupported(OP, other)),
    }
}
