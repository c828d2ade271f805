//! Cells as long as a learned weight says.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};
use half::bf16;

use super::support::autograd::{Backward, record};
use super::support::check::{argument, unsupported, with_slice};
use super::support::cpu::element::Element;
use crate::error::Result;

const OP: &str = "l2_normalize";

/// What the length of a cell is at least, so that zeros stay zeros.
const MIN_LENGTH: f32 = 1e-12;

/// Divides the channels of each cell by their Euclidean length, at least 1e-12, and multiplies each channel by a weight.
///
/// # Shapes
/// | argument | shape | dtype |
/// | --- | --- | --- |
/// | `input` | `[.., C]` | f32, bf16; f16 on CUDA |
/// | `weight` | `[C]` | f32 |
/// | returns | that of `input` | that of `input` |
///
/// # Devices
/// CPU, on the threads of the current rayon pool; CUDA, in one launch. The gradients take three more.
///
/// # Gradients
/// Of `input` and `weight`, in f32. Where a length is below the limit, it counts as a constant.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType) or
/// [`Error::Device`](crate::Error::Device) when the arguments don't fit the table.
///
/// # Example
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_detection::ops::l2_normalize;
///
/// let input = Tensor::new(&[[3f32, 4.0], [0.0, 0.0]], &Device::Cpu)?;
/// let weight = Tensor::new(&[10f32, 20.0], &Device::Cpu)?;
/// assert_eq!(l2_normalize(&input, &weight)?.to_vec2::<f32>()?, [[6.0, 16.0], [0.0, 0.0]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Reference: torch `nn.functional.normalize`, as torchvision's SSD uses it; Liu et al. 2015, "ParseNet".
pub fn l2_normalize(input: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let checked = argument(OP, "input", input).compute_dtype()?;
    let Some((&channels, outer)) = input.dims().split_last().filter(|(channels, _)| **channels > 0)
    else {
        return Err(checked.shape_error("[.., C]"));
    };
    argument(OP, "weight", weight)
        .dtype(DType::F32)?
        .same_device(input)?
        .shape(&[channels], "[C]")?;
    let plan = Plan { cells: outer.iter().product(), channels };
    let output = match input.device() {
        Device::Cpu if input.dtype() == DType::BF16 => run_on_cpu::<bf16>(input, weight),
        Device::Cpu => run_on_cpu::<f32>(input, weight),
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(input, plan, weight),
        other => Err(unsupported(OP, other)),
    }?;
    record(OP, &[input, weight], output, || {
        Ok(L2NormalizeBackward { input: input.detach(), weight: weight.detach(), plan })
    })
}

/// An input as `[cells, channels]`.
#[derive(Debug, Clone, Copy)]
struct Plan {
    // The CPU goes by the lengths of its slices.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code))]
    cells: usize,
    channels: usize,
}

fn run_on_cpu<E: Element>(input: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let values =
        with_slice::<E, _>(input, |input| with_slice(weight, |weight| cpu::run(input, weight)))??;
    Ok(Tensor::from_vec(values, input.shape(), &Device::Cpu)?)
}

struct L2NormalizeBackward {
    input: Tensor,
    weight: Tensor,
    plan: Plan,
}

impl L2NormalizeBackward {
    fn on_cpu(&self, gradient: &Tensor) -> Result<[Tensor; 2]> {
        let (of_input, of_weight) = with_slice(&self.input, |input| {
            with_slice(gradient, |gradient| {
                with_slice(&self.weight, |weight| cpu::backward(input, gradient, weight))
            })
        })???;
        Ok([
            Tensor::from_vec(of_input, self.input.shape(), &Device::Cpu)?,
            Tensor::from_vec(of_weight, self.plan.channels, &Device::Cpu)?,
        ])
    }
}

impl Backward for L2NormalizeBackward {
    fn backward(
        &self,
        _: Option<&Tensor>,
        gradient: &Tensor,
        _: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        argument("gradients of l2_normalize", "input", &self.input).dtype(DType::F32)?;
        let gradients = match gradient.device() {
            Device::Cpu => self.on_cpu(gradient),
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => cuda::backward(gradient, &self.input, self.plan, &self.weight),
            other => Err(unsupported("gradients of l2_normalize", other)),
        }?;
        Ok(gradients.map(Some).to_vec())
    }
}
