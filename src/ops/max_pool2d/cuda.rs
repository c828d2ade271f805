use candle_core::Tensor;
use candle_core::cuda_backend::cudarc::driver::DeviceRepr;

use super::{MaxPool2dParams, OP};
use crate::error::Result;
use crate::ops::support::cuda::{MAX_POOL2D, Rows, for_dtype, launch, of, output, point};

#[repr(C)]
#[derive(Clone, Copy)]
struct Pool {
    pixels: Rows,
    input: u64,
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
unsafe impl DeviceRepr for Pool {}

/// Pools `[N, H, W, C]` to `[N, Ho, Wo, C]`.
pub(super) fn run(
    input: &Tensor,
    [_, height, width, channels]: [usize; 4],
    out_dims: [usize; 4],
    params: &MaxPool2dParams,
) -> Result<Tensor> {
    let device = of(OP, input.device())?;
    let dtype = input.dtype();
    let (tensor, out) = output(device, dtype, &out_dims)?;
    point!(input);
    let [batch, out_height, out_width, _] = out_dims;
    let pixels = Rows::new(batch * out_height * out_width, channels, &[input, out]);
    let argument = Pool {
        pixels,
        input,
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
    launch!(device, MAX_POOL2D, for_dtype!("max_pool2d", dtype), pixels.grid(), argument);
    Ok(tensor)
}
