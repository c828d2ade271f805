//! Features twice as high and wide, values in between being mixed.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};

use super::support::autograd::{Backward, record};
use super::support::check::{argument, unsupported, with_slice};
use crate::error::Result;

const OP: &str = "upsample_bilinear";

/// The share of an output pixel's value that comes from the nearer input pixel, per axis.
const NEAR: f32 = 0.75;
/// The share that comes from the other one.
const FAR: f32 = 0.25;

/// Doubles height and width of features: pixels are mixed bilinearly, with half-pixel centers.
///
/// Per axis, `out[2y] = ¾ · input[y] + ¼ · input[y − 1]` and `out[2y + 1] = ¾ · input[y] + ¼ · input[y + 1]`; beyond the
/// border, pixels are those of the border.
///
/// # Shapes
/// | argument | shape | dtype |
/// | --- | --- | --- |
/// | `input` | `[N, H, W, C]` | f32 |
/// | returns | `[N, 2H, 2W, C]` | f32 |
///
/// # Devices
/// CPU, on the threads of the current rayon pool; CUDA, in one launch.
///
/// # Gradients
/// Of `input`.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType) or
/// [`Error::Unsupported`](crate::Error::Unsupported).
///
/// # Example
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_detection::ops::upsample_bilinear;
///
/// let input = Tensor::new(&[0f32, 4.0], &Device::Cpu)?.reshape((1, 1, 2, 1))?;
/// let out = upsample_bilinear(&input)?;
/// assert_eq!(out.dims(), [1, 2, 4, 1]);
/// assert_eq!(out.flatten_all()?.to_vec1::<f32>()?, [0.0, 1.0, 3.0, 4.0, 0.0, 1.0, 3.0, 4.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Reference: torch `nn.functional.interpolate` with `scale_factor=2.0`, `mode="bilinear"` and `align_corners=False`.
pub fn upsample_bilinear(input: &Tensor) -> Result<Tensor> {
    let checked = argument(OP, "input", input).dtype(DType::F32)?;
    let dims @ [batch, height, width, channels] = checked.dims::<4>("[N, H, W, C]")?;
    let output = match input.device() {
        Device::Cpu => {
            let values = with_slice(input, |input| cpu::run(input, dims))?;
            Tensor::from_vec(values, (batch, 2 * height, 2 * width, channels), &Device::Cpu)?
        }
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(input, dims)?,
        other => return Err(unsupported(OP, other)),
    };
    record(OP, &[input], output, || Ok(UpsampleBilinearBackward { dims }))
}

struct UpsampleBilinearBackward {
    /// `[N, H, W, C]` of the input.
    dims: [usize; 4],
}

impl Backward for UpsampleBilinearBackward {
    fn backward(
        &self,
        _: Option<&Tensor>,
        gradient: &Tensor,
        _: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let of_input = match gradient.device() {
            Device::Cpu => {
                let values = with_slice(gradient, |gradient| cpu::gradient(gradient, self.dims))?;
                Tensor::from_vec(values, &self.dims, gradient.device())?
            }
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => cuda::gradient(gradient, self.dims)?,
            other => return Err(unsupported("the gradient of upsample_bilinear", other)),
        };
        Ok(vec![Some(of_input)])
    }
}
