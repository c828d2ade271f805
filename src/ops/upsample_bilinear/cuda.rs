use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Tensor};

use super::OP;
use crate::error::Result;
use crate::ops::support::cuda::{
    Rows, UPSAMPLE_BILINEAR, check_f32, launch, of, output, point, pointer,
};

#[repr(C)]
#[derive(Clone, Copy)]
struct Upsample {
    pixels: Rows,
    source: u64,
    out: u64,
    height: u32,
    width: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for Upsample {}

/// Enlarges `[N, H, W, C]` to `[N, 2H, 2W, C]`.
pub(super) fn run(input: &Tensor, [batch, height, width, channels]: [usize; 4]) -> Result<Tensor> {
    let device = of(OP, input.device())?;
    let (tensor, out) = output(device, DType::F32, (batch, 2 * height, 2 * width, channels))?;
    point!(input: f32);
    let argument = Upsample {
        pixels: Rows::new(4 * batch * height * width, channels, &[input, out]),
        source: input,
        out,
        height: height as u32,
        width: width as u32,
    };
    let grid = argument.pixels.grid();
    launch!(device, UPSAMPLE_BILINEAR, "upsample_bilinear", grid, argument);
    Ok(tensor)
}

/// Gradient `[N, H, W, C]` of the input from that `[N, 2H, 2W, C]` of the output.
pub(super) fn gradient(gradient: &Tensor, dims: [usize; 4]) -> Result<Tensor> {
    check_f32(gradient)?;
    let device = of(OP, gradient.device())?;
    let [batch, height, width, channels] = dims;
    let (tensor, out) = output(device, DType::F32, &dims)?;
    let source = pointer::<f32>(gradient)?;
    let argument = Upsample {
        pixels: Rows::new(batch * height * width, channels, &[source, out]),
        source,
        out,
        height: height as u32,
        width: width as u32,
    };
    let grid = argument.pixels.grid();
    launch!(device, UPSAMPLE_BILINEAR, "upsample_bilinear_collect", grid, argument);
    Ok(tensor)
}
