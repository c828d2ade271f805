//! The top-down step of a feature pyramid: a coarse map enlarged to a fine one's size, plus the fine one.

mod backward;
mod cpu;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};

use super::support::autograd::record;
use super::support::check::{argument, unsupported, with_slice};
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
/// | `coarse` | `[N, h, w, C]` | f32 |
/// | `lateral` | `[N, H, W, C]` | f32 |
/// | returns | `[N, H, W, C]` | f32 |
///
/// # Devices
/// CPU, on the threads of the current rayon pool.
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
/// use candle_core::{DType, Device, Tensor};
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
    let checked = argument(OP, "lateral", lateral).dtype(DType::F32)?;
    let [batch, height, width, channels] = checked.dims::<4>("[N, H, W, C]")?;
    let checked = argument(OP, "coarse", coarse).dtype(DType::F32)?.same_device(lateral)?;
    let expected = format!("[{batch}, h, w, {channels}]");
    let [coarse_batch, coarse_height, coarse_width, coarse_channels] =
        checked.dims::<4>(&expected)?;
    let empty = coarse_height * coarse_width == 0 && height * width > 0;
    if [coarse_batch, coarse_channels] != [batch, channels] || empty {
        return Err(checked.shape_error(&expected));
    }
    let values = match lateral.device() {
        Device::Cpu => {
            let rows = nearest(coarse_height, height);
            let columns = nearest(coarse_width, width);
            with_slice::<f32, _>(coarse, |coarse| {
                with_slice::<f32, _>(lateral, |lateral| {
                    cpu::run(
                        coarse,
                        coarse_width,
                        coarse_height,
                        lateral,
                        channels,
                        &rows,
                        &columns,
                    )
                })
            })??
        }
        other => return Err(unsupported(OP, other)),
    };
    let output = Tensor::from_vec(values, (batch, height, width, channels), lateral.device())?;
    record(OP, &[coarse, lateral], output, || {
        Ok(backward::UpsampleAddBackward { coarse: coarse.dims4()?.into() })
    })
}

/// For each fine index, the coarse index that it takes its value from.
fn nearest(coarse: usize, fine: usize) -> Vec<usize> {
    let ratio = coarse as f32 / fine as f32;
    (0..fine).map(|i| ((i as f32 * ratio).floor() as usize).min(coarse.saturating_sub(1))).collect()
}
