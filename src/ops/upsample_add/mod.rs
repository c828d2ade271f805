//! The top-down step of a feature pyramid: a coarse map enlarged to a fine one's size, plus the fine one.

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

const OP: &str = "upsample_add";

/// Enlarges a coarse map to the exact size of a lateral one, and adds the two.
///
/// `out[n, y, x, c] = lateral[n, y, x, c] + coarse[n, ⌊y · h/H⌋, ⌊x · w/W⌋, c]`, with the ratio and the product in
/// f32 and the index at most `h − 1`: torch's rule for `mode="nearest"` with a given size.
///
/// # Shapes
/// | argument | shape | dtype |
/// | --- | --- | --- |
/// | `coarse` | `[N, h, w, C]` | that of `lateral` |
/// | `lateral` | `[N, H, W, C]` | f32, bf16; f16 on CUDA |
/// | returns | `[N, H, W, C]` | that of `lateral` |
///
/// # Devices
/// CPU, on the threads of the current rayon pool; CUDA, in one launch.
///
/// # Gradients
/// Of both: `lateral` has the output's, `coarse` the sum over the pixels that a value went to.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType) or [`Error::Device`](crate::Error::Device) when the arguments don't fit the table, or when a coarse map
/// without pixels meets a lateral one with some.
///
/// # Example
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_detection::ops::upsample_add;
///
/// let coarse = Tensor::new(&[1f32, 2.0], &Device::Cpu)?.reshape((1, 1, 2, 1))?;
/// let lateral = Tensor::full(10f32, (1, 1, 3, 1), &Device::Cpu)?;
/// let out = upsample_add(&coarse, &lateral)?;
/// assert_eq!(out.flatten_all()?.to_vec1::<f32>()?, [11.0, 11.0, 12.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Reference: torch `nn.functional.interpolate`; torchvision `ops/feature_pyramid_network.py`; Lin et al. 2017.
pub fn upsample_add(coarse: &Tensor, lateral: &Tensor) -> Result<Tensor> {
    let checked = argument(OP, "lateral", lateral).compute_dtype()?;
    let [batch, height, width, channels] = checked.dims::<4>("[N, H, W, C]")?;
    let checked = argument(OP, "coarse", coarse).dtype(lateral.dtype())?.same_device(lateral)?;
    let expected = format!("[{batch}, h, w, {channels}]");
    let [coarse_batch, coarse_height, coarse_width, coarse_channels] =
        checked.dims::<4>(&expected)?;
    let empty = coarse_height * coarse_width == 0 && height * width > 0;
    if [coarse_batch, coarse_channels] != [batch, channels] || empty {
        return Err(checked.shape_error(&expected));
    }
    let output = match lateral.device() {
        Device::Cpu if lateral.dtype() == DType::BF16 => run_on_cpu::<bf16>(coarse, lateral),
        Device::Cpu => run_on_cpu::<f32>(coarse, lateral),
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(coarse, lateral),
        other => Err(unsupported(OP, other)),
    }?;
    record(OP, &[coarse, lateral], output, || {
        Ok(backward::UpsampleAddBackward { coarse: coarse.dims4()?.into() })
    })
}

/// Coarse cells per fine one.
fn ratio(coarse: usize, fine: usize) -> f32 {
    coarse as f32 / fine as f32
}

fn run_on_cpu<E: Element>(coarse: &Tensor, lateral: &Tensor) -> Result<Tensor> {
    let (_, coarse_height, coarse_width, channels) = coarse.dims4()?;
    let (_, height, width, _) = lateral.dims4()?;
    let (rows, columns) = (nearest(coarse_height, height), nearest(coarse_width, width));
    let size = [coarse_height, coarse_width];
    let values = with_slice::<E, _>(coarse, |coarse| {
        with_slice::<E, _>(lateral, |lateral| {
            cpu::run(coarse, size, lateral, channels, &rows, &columns)
        })
    })??;
    Ok(Tensor::from_vec(values, lateral.dims(), &Device::Cpu)?)
}

/// For each fine index, the coarse index that it takes its value from.
fn nearest(coarse: usize, fine: usize) -> Vec<usize> {
    let ratio = ratio(coarse, fine);
    (0..fine).map(|i| ((i as f32 * ratio).floor() as usize).min(coarse.saturating_sub(1))).collect()
}
