//! Gradient of max pooling on CUDA, in two launches: who won each window, and what each input pixel's windows give it.

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Tensor};

use super::{MaxPool2dParams, OP};
use crate::error::Result;
use crate::ops::support::check::argument;
use crate::ops::support::cuda::{MAX_POOL2D, Output, Rows, check_f32, launch, of, output, pointer};

#[repr(C)]
#[derive(Clone, Copy)]
struct PoolBack {
    pixels: Rows,
    input: u64,
    gradient: u64,
    winners: u64,
    out: u64,
    height: u32,
    width: u32,
    out_height: u32,
    out_width: u32,
    kernel: u32,
    stride: u32,
    padding: u32,
    unused: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for PoolBack {}

/// `[N, H, W, C]`, of an input of that shape and a gradient `[N, Ho, Wo, C]`.
pub(super) fn input_gradient(
    input: &Tensor,
    gradient: &Tensor,
    params: &MaxPool2dParams,
) -> Result<Tensor> {
    check_f32(gradient)?;
    argument(OP, "input", input).dtype(DType::F32)?;
    let device = of(OP, gradient.device())?;
    let input = input.contiguous()?;
    let (batch, height, width, channels) = input.dims4()?;
    let (_, out_height, out_width, _) = gradient.dims4()?;
    let (tensor, out) = output(device, DType::F32, input.shape())?;
    let winners = Output::<u32>::new(device, gradient.elem_count())?;
    let argument = PoolBack {
        pixels: Rows::one_by_one(batch * out_height * out_width, channels),
        input: pointer::<f32>(&input)?,
        gradient: pointer::<f32>(gradient)?,
        winners: winners.pointer(),
        out,
        height: height as u32,
        width: width as u32,
        out_height: out_height as u32,
        out_width: out_width as u32,
        kernel: params.kernel as u32,
        stride: params.stride as u32,
        padding: params.padding as u32,
        unused: 0,
    };
    launch!(device, MAX_POOL2D, "max_pool2d_winners", argument.pixels.grid(), argument);
    let argument =
        PoolBack { pixels: Rows::one_by_one(batch * height * width, channels), ..argument };
    launch!(device, MAX_POOL2D, "max_pool2d_collect", argument.pixels.grid(), argument);
    Ok(tensor)
}
