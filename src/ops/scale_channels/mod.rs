//! Features times a number for each image and channel: the second half of squeeze and excitation.

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

const OP: &str = "scale_channels";

/// `out[n, y, x, c] = input[n, y, x, c] · scale[n, 0, 0, c]`.
///
/// # Shapes
/// | argument | shape | dtype |
/// | --- | --- | --- |
/// | `input` | `[N, H, W, C]` | f32, bf16; f16 on CUDA |
/// | `scale` | `[N, 1, 1, C]` | that of `input` |
/// | returns | `[N, H, W, C]` | that of `input` |
///
/// # Devices
/// CPU, on the threads of the current rayon pool; CUDA, in one launch, and up to three for the gradients.
///
/// # Gradients
/// Of both, in f32; both are kept.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType) or
/// [`Error::Device`](crate::Error::Device) when the arguments don't fit the table,
/// [`Error::Unsupported`](crate::Error::Unsupported) on devices without kernels.
///
/// # Example
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_detection::ops::scale_channels;
///
/// let features = Tensor::new(&[[1f32, 10.0], [3.0, 20.0]], &Device::Cpu)?.reshape((1, 1, 2, 2))?;
/// let scale = Tensor::new(&[2f32, 0.5], &Device::Cpu)?.reshape((1, 1, 1, 2))?;
/// let scaled = scale_channels(&features, &scale)?;
/// assert_eq!(scaled.flatten_all()?.to_vec1::<f32>()?, [2.0, 5.0, 6.0, 10.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Reference: torchvision `ops/misc.py`, `SqueezeExcitation`; Hu et al. 2018.
pub fn scale_channels(input: &Tensor, scale: &Tensor) -> Result<Tensor> {
    let checked = argument(OP, "input", input).compute_dtype()?;
    let dims @ [batch, _, _, channels] = checked.dims::<4>("[N, H, W, C]")?;
    argument(OP, "scale", scale)
        .dtype(input.dtype())?
        .same_device(input)?
        .shape(&[batch, 1, 1, channels], "[N, 1, 1, C]")?;
    let output = match input.device() {
        Device::Cpu if input.dtype() == DType::BF16 => run_on_cpu::<bf16>(input, scale, dims),
        Device::Cpu => run_on_cpu::<f32>(input, scale, dims),
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(input, scale),
        other => Err(unsupported(OP, other)),
    }?;
    record(OP, &[input, scale], output, || {
        Ok(ScaleChannelsBackward {
            input: input.detach().contiguous()?,
            scale: scale.detach().contiguous()?,
        })
    })
}

fn run_on_cpu<E: Element>(input: &Tensor, scale: &Tensor, dims: [usize; 4]) -> Result<Tensor> {
    let values = with_slice::<E, _>(input, |input| {
        with_slice::<E, _>(scale, |scale| cpu::run(input, scale, dims))
    })??;
    Ok(Tensor::from_vec(values, &dims, &Device::Cpu)?)
}

struct ScaleChannelsBackward {
    input: Tensor,
    scale: Tensor,
}

impl Backward for ScaleChannelsBackward {
    fn backward(
        &self,
        _: Option<&Tensor>,
        gradient: &Tensor,
        wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let dims = self.input.dims4()?.into();
        match gradient.device() {
            Device::Cpu => {
                let of_input = wanted[0].then(|| run_on_cpu::<f32>(gradient, &self.scale, dims));
                let of_scale = wanted[1].then(|| -> Result<Tensor> {
                    let values = with_slice(&self.input, |input| {
                        with_slice(gradient, |gradient| cpu::of_scale(input, gradient, dims))
                    })??;
                    Ok(Tensor::from_vec(values, self.scale.shape(), gradient.device())?)
                });
                Ok(vec![of_input.transpose()?, of_scale.transpose()?])
            }
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => {
                let of_input = wanted[0].then(|| cuda::of_input(gradient, &self.scale));
                let of_scale = wanted[1].then(|| cuda::of_scale(&self.input, gradient));
                Ok(vec![of_input.transpose()?, of_scale.transpose()?])
            }
            other => Err(unsupported("gradients of scale_channels", other)),
        }
    }
}
