//! The mean of each channel over an image's pixels.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};
use half::bf16;

use super::support::autograd::{Backward, record};
use super::support::check::{argument, unsupported, with_slice};
use super::support::cpu::element::Element;
use crate::error::Result;

const OP: &str = "global_avg_pool";

/// Averages each channel over all pixels of an image, with sums in f32.
///
/// # Shapes
/// | argument | shape | dtype |
/// | --- | --- | --- |
/// | `input` | `[N, H, W, C]`, at least one pixel an image | f32, bf16; f16 on CUDA |
/// | returns | `[N, 1, 1, C]` | that of `input` |
///
/// # Devices
/// CPU, on the threads of the current rayon pool; CUDA, in two launches, and one for the gradient.
///
/// # Gradients
/// Of `input`, in f32.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) or [`Error::DType`](crate::Error::DType) when `input` doesn't fit the table,
/// [`Error::Unsupported`](crate::Error::Unsupported) on devices without kernels.
///
/// # Example
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_detection::ops::global_avg_pool;
///
/// let features = Tensor::new(&[[1f32, 10.0], [3.0, 20.0]], &Device::Cpu)?.reshape((1, 1, 2, 2))?;
/// let means = global_avg_pool(&features)?;
/// assert_eq!(means.flatten_all()?.to_vec1::<f32>()?, [2.0, 15.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Reference: torch `nn.AdaptiveAvgPool2d(1)`.
pub fn global_avg_pool(input: &Tensor) -> Result<Tensor> {
    let expected = "[N, H, W, C], at least one pixel an image";
    let checked = argument(OP, "input", input).compute_dtype()?;
    let dims @ [batch, height, width, _] = checked.dims::<4>(expected)?;
    if batch > 0 && height * width == 0 {
        return Err(checked.shape_error(expected));
    }
    let output = match input.device() {
        Device::Cpu if input.dtype() == DType::BF16 => run_on_cpu::<bf16>(input, dims),
        Device::Cpu => run_on_cpu::<f32>(input, dims),
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(input, dims),
        other => Err(unsupported(OP, other)),
    }?;
    record(OP, &[input], output, || Ok(GlobalAvgPoolBackward { input: dims }))
}

fn run_on_cpu<E: Element>(input: &Tensor, dims: [usize; 4]) -> Result<Tensor> {
    let values = with_slice::<E, _>(input, |input| cpu::run(input, dims))?;
    Ok(Tensor::from_vec(values, (dims[0], 1, 1, dims[3]), &Device::Cpu)?)
}

struct GlobalAvgPoolBackward {
    /// `[N, H, W, C]`.
    input: [usize; 4],
}

impl Backward for GlobalAvgPoolBackward {
    fn backward(
        &self,
        _: Option<&Tensor>,
        gradient: &Tensor,
        _: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let of_input = match gradient.device() {
            Device::Cpu => {
                let values = with_slice(gradient, |gradient| cpu::backward(gradient, self.input))?;
                Tensor::from_vec(values, &self.input, gradient.device())?
            }
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => cuda::backward(gradient, self.input)?,
            other => return Err(unsupported("the gradient of global_avg_pool", other)),
        };
        Ok(vec![Some(of_input)])
    }
}
