use candle_core::Tensor;
use candle_core::cuda_backend::cudarc::driver::DeviceRepr;

use super::{OP, ratio};
use crate::error::Result;
use crate::ops::support::cuda::{Rows, UPSAMPLE_ADD, for_dtype, launch, of, output, point};

#[repr(C)]
#[derive(Clone, Copy)]
struct UpsampleAdd {
    pixels: Rows,
    coarse: u64,
    lateral: u64,
    out: u64,
    height: u32,
    width: u32,
    coarse_height: u32,
    coarse_width: u32,
    row_ratio: f32,
    column_ratio: f32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for UpsampleAdd {}

/// Adds `coarse` `[N, h, w, C]`, enlarged, to `lateral` `[N, H, W, C]`.
pub(super) fn run(coarse: &Tensor, lateral: &Tensor) -> Result<Tensor> {
    let device = of(OP, lateral.device())?;
    let dtype = lateral.dtype();
    let (batch, height, width, channels) = lateral.dims4()?;
    let (_, coarse_height, coarse_width, _) = coarse.dims4()?;
    let (tensor, out) = output(device, dtype, (batch, height, width, channels))?;
    point!(coarse, lateral);
    let pixels = Rows::new(batch * height * width, channels, &[coarse, lateral, out]);
    let argument = UpsampleAdd {
        pixels,
        coarse,
        lateral,
        out,
        height: height as u32,
        width: width as u32,
        coarse_height: coarse_height as u32,
        coarse_width: coarse_width as u32,
        row_ratio: ratio(coarse_height, height),
        column_ratio: ratio(coarse_width, width),
    };
    launch!(device, UPSAMPLE_ADD, for_dtype!("upsample_add", dtype), pixels.grid(), argument);
    Ok(tensor)
}
