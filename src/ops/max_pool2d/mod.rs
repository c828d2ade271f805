//! Max pooling of channels-last features.

mod backward;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
mod cuda_backward;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};
use half::bf16;

use super::support::autograd::record;
use super::support::check::{argument, unsupported, with_slice};
use super::support::cpu::element::Element;
use crate::error::Result;

const OP: &str = "max_pool2d";

/// What becomes of pixels at the far edges that a whole stride does not reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// No window counts them: the number of windows is rounded down.
    Down,
    /// One more window does, which need not lie inside: the number of windows is rounded up. It starts at a pixel of the
    /// input or of the padding before it, else it is left out.
    Up,
}

/// Geometry of a max pooling, the same in y and x.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxPool2dParams {
    /// Rows and columns of the window; at least 1.
    pub kernel: usize,
    /// Input pixels from one window to the next; at least 1.
    pub stride: usize,
    /// Rows and columns around the input that no window counts; at most half of `kernel`.
    pub padding: usize,
    /// Of the number of windows; torch's `ceil_mode`.
    pub rounding: Rounding,
}

impl MaxPool2dParams {
    /// Windows along an axis of `size` pixels.
    fn positions(&self, size: usize) -> Option<usize> {
        let Self { kernel, stride, padding, rounding } = *self;
        match rounding {
            Rounding::Down => Some((size + 2 * padding).checked_sub(kernel)? / stride + 1),
            Rounding::Up => {
                let free = (size + 2 * padding + stride - 1).checked_sub(kernel)?;
                let last = free / stride;
                Some(if last * stride >= size + padding { last } else { last + 1 })
            }
        }
    }
}

/// Takes the largest value of each window, channel by channel.
///
/// Padding never wins: it is −∞. NaN wins over every number. `Ho = ⌊(H + 2·padding − kernel) / stride⌋ + 1`, `Wo`
/// likewise; [`Rounding::Up`] has ⌈⌉ instead, and one less where the last window would start behind the input. A window of one pixel with stride 2 picks every other pixel, which makes a pyramid's extra level.
///
/// # Shapes
/// | argument | shape | dtype |
/// | --- | --- | --- |
/// | `input` | `[N, H, W, C]` | f32, bf16; f16 on CUDA |
/// | returns | `[N, Ho, Wo, C]` | that of `input` |
///
/// # Devices
/// CPU, on the threads of the current rayon pool; CUDA, in one launch.
///
/// # Gradients
/// Of `input`: that of each output goes to the first of its window's largest values, in the order of rows and columns.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) or [`Error::DType`](crate::Error::DType) when the argument doesn't fit the table, [`Error::Shape`](crate::Error::Shape) when the window is
/// larger than the padded input (rounding up, by a stride or more), and for a kernel or stride of zero or a padding above half of the kernel.
///
/// # Example
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_detection::ops::{MaxPool2dParams, Rounding, max_pool2d};
///
/// let map = Tensor::new(&[[1f32, 5.0], [3.0, 2.0]], &Device::Cpu)?.reshape((1, 2, 2, 1))?;
/// let params = MaxPool2dParams { kernel: 3, stride: 2, padding: 1, rounding: Rounding::Down };
/// assert_eq!(max_pool2d(&map, &params)?.flatten_all()?.to_vec1::<f32>()?, [5.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Reference: torch `nn.MaxPool2d`.
pub fn max_pool2d(input: &Tensor, params: &MaxPool2dParams) -> Result<Tensor> {
    let MaxPool2dParams { kernel, stride, padding, .. } = *params;
    let checked = argument(OP, "input", input).compute_dtype()?;
    let dims @ [batch, height, width, channels] = checked.dims::<4>("[N, H, W, C]")?;
    if kernel == 0 || stride == 0 || 2 * padding > kernel {
        return Err(checked.shape_error(&format!(
            "a window with kernel ≥ 1, stride ≥ 1 and padding ≤ kernel / 2 instead of {params:?} for an input"
        )));
    }
    let (Some(out_height), Some(out_width)) = (params.positions(height), params.positions(width))
    else {
        return Err(checked.shape_error(&format!("H and W of a {kernel}×{kernel} window at least")));
    };
    let out_dims = [batch, out_height, out_width, channels];
    let output = match input.device() {
        Device::Cpu if input.dtype() == DType::BF16 => {
            run_on_cpu::<bf16>(input, dims, out_dims, params)
        }
        Device::Cpu => run_on_cpu::<f32>(input, dims, out_dims, params),
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(input, dims, out_dims, params),
        other => Err(unsupported(OP, other)),
    }?;
    record(OP, &[input], output, || {
        Ok(backward::MaxPool2dBackward { input: input.detach(), params: *params })
    })
}

fn run_on_cpu<E: Element>(
    input: &Tensor,
    dims: [usize; 4],
    out_dims: [usize; 4],
    params: &MaxPool2dParams,
) -> Result<Tensor> {
    let values = with_slice::<E, _>(input, |input| cpu::run(input, dims, out_dims, params))?;
    Ok(Tensor::from_vec(values, &out_dims, &Device::Cpu)?)
}
