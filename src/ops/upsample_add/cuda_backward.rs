use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Tensor};

use super::{OP, ratio};
use crate::error::Result;
use crate::ops::support::cuda::{Rows, UPSAMPLE_ADD, check_f32, launch, of, output, pointer};

#[repr(C)]
#[derive(Clone, Copy)]
struct Collect {
    pixels: Rows,
    gradient: u64,
    out: u64,
    height: u32,
    width: u32,
    coarse_height: u32,
    coarse_width: u32,
    row_ratio: f32,
    column_ratio: f32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for Collect {}

/// Gradient `[N, h, w, C]` of the coarse map, from that of the output, `[N, H, W, C]`.
pub(super) fn coarse_gradient(gradient: &Tensor, coarse: [usize; 4]) -> Result<Tensor> {
    check_f32(gradient)?;
    let device = of(OP, gradient.device())?;
    let (_, height, width, _) = gradient.dims4()?;
    let [batch, coarse_height, coarse_width, channels] = coarse;
    let (tensor, out) = output(device, DType::F32, &coarse)?;
    let gradient = pointer::<f32>(gradient)?;
    let argument = Collect {
        pixels: Rows::new(batch * coarse_height * coarse_width, channels, &[gradient, out]),
        gradient,
        out,
        height: height as u32,
        width: width as u32,
        coarse_height: coarse_height as u32,
        coarse_width: coarse_width as u32,
        row_ratio: ratio(coarse_height, height),
        column_ratio: ratio(coarse_width, width),
    };
    launch!(device, UPSAMPLE_ADD, "upsample_add_collect", argument.pixels.grid(), argument);
    Ok(tensor)
}
