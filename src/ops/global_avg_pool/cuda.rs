use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Tensor};

use super::OP;
use crate::error::Result;
use crate::ops::support::cuda::{
    GLOBAL_AVG_POOL, Grid, Output, check_f32, for_dtype, launch, of, output, part_of_rows, point,
    pointer,
};

#[repr(C)]
#[derive(Clone, Copy)]
struct Pool {
    input: u64,
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
unsafe impl DeviceRepr for Pool {}

/// `[N, 1, 1, C]` of `[N, H, W, C]`.
pub(super) fn run(input: &Tensor, [images, height, width, channels]: [usize; 4]) -> Result<Tensor> {
    let device = of(OP, input.device())?;
    let dtype = input.dtype();
    let (tensor, out) = output(device, dtype, (images, 1, 1, channels))?;
    let pixels = height * width;
    let part = part_of_rows(pixels);
    let parts = pixels.div_ceil(part);
    let sums = Output::<f32>::new(device, images * parts * channels)?;
    point!(input);
    let argument = Pool {
        input,
        sums: sums.pointer(),
        out,
        images: images as u32,
        pixels: pixels as u32,
        channels: channels as u32,
        part: part as u32,
        parts: parts as u32,
        unused: 0,
    };
    let kernel = for_dtype!("global_avg_pool_sums", dtype);
    let grid = Grid::over(images * parts * channels);
    launch!(device, GLOBAL_AVG_POOL, kernel, grid, argument);
    let kernel = for_dtype!("global_avg_pool_means", dtype);
    launch!(device, GLOBAL_AVG_POOL, kernel, Grid::over(images * channels), argument);
    Ok(tensor)
}

/// Gradient `[N, H, W, C]` of the input from that `[N, 1, 1, C]` of the means.
pub(super) fn backward(gradient: &Tensor, dims: [usize; 4]) -> Result<Tensor> {
    check_f32(gradient)?;
    let device = of(OP, gradient.device())?;
    let (tensor, out) = output(device, DType::F32, &dims)?;
    let [images, height, width, channels] = dims;
    let argument = Pool {
        input: pointer::<f32>(gradient)?,
        sums: 0,
        out,
        images: images as u32,
        pixels: (height * width) as u32,
        channels: channels as u32,
        part: 1,
        parts: 1,
        unused: 0,
    };
    let grid = Grid::over(tensor.elem_count());
    launch!(device, GLOBAL_AVG_POOL, "global_avg_pool_back", grid, argument);
    Ok(tensor)
}
