use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Tensor};

use super::OP;
use crate::error::Result;
use crate::ops::support::cuda::{
    Grid, Output, Rows, SCALE_CHANNELS, check_f32, for_dtype, launch, of, output, part_of_rows,
    point, pointer,
};

#[repr(C)]
#[derive(Clone, Copy)]
struct Scale {
    pixels: Rows,
    input: u64,
    scale: u64,
    out: u64,
    image_pixels: u32,
    unused: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for Scale {}

/// `[N, H, W, C]` times `[N, 1, 1, C]`.
pub(super) fn run(input: &Tensor, scale: &Tensor) -> Result<Tensor> {
    let device = of(OP, input.device())?;
    let dtype = input.dtype();
    let (tensor, out) = output(device, dtype, input.shape())?;
    let (images, height, width, channels) = input.dims4()?;
    point!(input, scale);
    let image_pixels = height * width;
    let pixels = Rows::new(images * image_pixels, channels, &[input, scale, out]);
    let argument =
        Scale { pixels, input, scale, out, image_pixels: image_pixels as u32, unused: 0 };
    let kernel = for_dtype!("scale_channels", dtype);
    launch!(device, SCALE_CHANNELS, kernel, pixels.grid(), argument);
    Ok(tensor)
}

/// Gradient of the input.
pub(super) fn of_input(gradient: &Tensor, scale: &Tensor) -> Result<Tensor> {
    check_f32(gradient)?;
    check_f32(scale)?;
    run(gradient, scale)
}

#[repr(C)]
#[derive(Clone, Copy)]
struct OfScale {
    input: u64,
    gradient: u64,
    sums: u64,
    out: u64,
    images: u32,
    pixels: u32,
    channels: u32,
    part: u32,
    parts: u32,
    unused: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for OfScale {}

/// Gradient `[N, 1, 1, C]` of the scale, from contiguous tensors.
pub(super) fn of_scale(input: &Tensor, gradient: &Tensor) -> Result<Tensor> {
    check_f32(gradient)?;
    let device = of(OP, gradient.device())?;
    let (images, height, width, channels) = input.dims4()?;
    let (tensor, out) = output(device, DType::F32, (images, 1, 1, channels))?;
    let pixels = height * width;
    let part = part_of_rows(pixels);
    let parts = pixels.div_ceil(part);
    let sums = Output::<f32>::new(device, images * parts * channels)?;
    let argument = OfScale {
        input: pointer::<f32>(input)?,
        gradient: pointer::<f32>(gradient)?,
        sums: sums.pointer(),
        out,
        images: images as u32,
        pixels: pixels as u32,
        channels: channels as u32,
        part: part as u32,
        parts: parts as u32,
        unused: 0,
    };
    let grid = Grid::over(images * parts * channels);
    launch!(device, SCALE_CHANNELS, "scale_channels_sums", grid, argument);
    let grid = Grid::over(images * channels);
    launch!(device, SCALE_CHANNELS, "scale_channels_totals", grid, argument);
    Ok(tensor)
}
