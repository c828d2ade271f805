//! Several results in one buffer, so that one download brings them all.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};

use super::support::check::{self, argument, with_slice};
use crate::error::Result;

const OP: &str = "pack_results";

/// Joins tensors of any shape end to end, as f32.
///
/// # Shapes
/// | argument | shape | dtype |
/// | --- | --- | --- |
/// | `parts` | any | f32, or u32 below 2²⁴ (ids and counts), which f32 holds exactly |
/// | returns | `[total]` | f32 |
///
/// # Devices
/// CPU; CUDA in one launch for 8 parts.
///
/// # Gradients
/// None; the result is meant for the host.
///
/// # Errors
/// [`Error::DType`](crate::Error::DType) or [`Error::Unsupported`](crate::Error::Unsupported).
pub fn pack_results(parts: &[&Tensor]) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if let Some(first) = parts.first()
        && first.device().is_cuda()
    {
        for part in parts {
            check_part(part)?.same_device(first)?;
        }
        return cuda::run(parts, first.device());
    }
    let mut packed = Vec::with_capacity(parts.iter().map(|part| part.elem_count()).sum());
    for part in parts {
        match (part.device(), part.dtype()) {
            (Device::Cpu, DType::F32) => with_slice(part, |values: &[f32]| packed.extend(values))?,
            (Device::Cpu, DType::U32) => {
                with_slice(part, |values: &[u32]| packed.extend(values.iter().map(|v| *v as f32)))?;
            }
            (Device::Cpu, _) => {
                argument(OP, "parts", part).dtype(DType::F32)?;
            }
            (other, _) => return Err(check::unsupported(OP, other)),
        }
    }
    let total = packed.len();
    Ok(Tensor::from_vec(packed, total, &Device::Cpu)?)
}

/// Like [`pack_results`], over what a tensor `[total]` f32 on the same GPU holds: for results that must stay in place.
#[cfg(feature = "cuda")]
pub(crate) fn pack_results_into(parts: &[&Tensor], packed: &Tensor) -> Result<()> {
    let total = parts.iter().map(|part| part.elem_count()).sum();
    argument(OP, "packed", packed).dtype(DType::F32)?.shape(&[total], "[total]")?;
    for part in parts {
        check_part(part)?.same_device(packed)?;
    }
    cuda::run_into(parts, packed)
}

#[cfg(feature = "cuda")]
fn check_part(part: &Tensor) -> Result<check::Argument<'_>> {
    let part_argument = argument(OP, "parts", part);
    if part.dtype() == DType::U32 { Ok(part_argument) } else { part_argument.dtype(DType::F32) }
}

/// Counts the download of a packed tensor that is on a GPU.
#[cfg(feature = "cuda")]
pub(crate) fn count_download(packed: &Tensor) {
    use super::support::cuda::{Event, count};
    if packed.device().is_cuda() {
        count(Event::Download);
    }
}
