//! Gradients of a transposed convolution on CUDA.
//!
//! The gradient is collected to one line per input pixel, of all places of the window, zero outside of the image: where the
//! forward pass brought its products.
//! With these lines, the layer is linear.

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{CudaDevice, DType, Tensor};

use super::{LayerDims, OP};
use crate::error::Result;
use crate::ops::support::cuda::{
    CONV_TRANSPOSE2D, Output, Permutation, Product, Rows, check_f32, column_sums, launch, of,
    output, pointer,
};

/// Bytes of lines that are made at a time.
const LINE_BYTES: usize = 32 << 20;

#[repr(C)]
#[derive(Clone, Copy)]
struct Collect {
    places: Rows,
    gradient: u64,
    lines: u64,
    first_pixel: u32,
    width: u32,
    height: u32,
    side: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for Collect {}

/// `[I, O, side, side]` → `[side, side, O, I]`.
pub(super) fn filters(weight: &Tensor, dims: LayerDims) -> Result<Tensor> {
    let weight = weight.contiguous()?;
    let LayerDims { inputs, outputs, side } = dims;
    let places = dims.places();
    let permutation =
        Permutation { dims: [places, outputs, inputs], strides: [1, places, outputs * places] };
    let device = of(OP, weight.device())?;
    permutation.apply(device, pointer::<f32>(&weight)?, None, (side, side, outputs, inputs))
}

/// `[O]`, of a gradient `[N, 2H, 2W, O]`.
pub(super) fn of_bias(gradient: &Tensor) -> Result<Tensor> {
    let (batch, height, width, outputs) = gradient.dims4()?;
    let device = of(OP, gradient.device())?;
    let gradient = pointer::<f32>(gradient)?;
    Ok(column_sums(device, gradient, batch * height * width, outputs)?.into_tensor(outputs))
}

/// `[N, H, W, I]`, of a gradient `[N, 2H, 2W, O]` and filters `[side, side, O, I]`.
pub(super) fn of_input(filters: &Tensor, gradient: &Tensor) -> Result<Tensor> {
    check_f32(filters)?;
    let device = of(OP, gradient.device())?;
    let (batch, height, width, outputs) = gradient.dims4()?;
    let (side, _, _, columns) = filters.dims4()?;
    let dims = LayerDims { inputs: columns, outputs, side };
    let (tensor, out) = output(device, DType::F32, (batch, height / 2, width / 2, columns))?;
    let filters = pointer::<f32>(filters)?;
    for_each_part(device, gradient, dims, |first, rows, lines| {
        let (terms, dtype) = (dims.places() * outputs, DType::F32);
        let product = Product { rows, terms, columns, dtype, output: dtype };
        let out = out + (first * columns * size_of::<f32>()) as u64;
        product.run_plain(device, lines, filters, out)
    })?;
    Ok(tensor)
}

/// `[I, O, side, side]`, of an input `[N, H, W, I]` and a gradient `[N, 2H, 2W, O]`.
pub(super) fn of_weight(input: &Tensor, gradient: &Tensor, dims: LayerDims) -> Result<Tensor> {
    let device = of(OP, gradient.device())?;
    let LayerDims { inputs, outputs, side } = dims;
    let places = dims.places();
    let input = input.contiguous()?;
    if input.elem_count() == 0 {
        return Ok(Tensor::zeros((inputs, outputs, side, side), DType::F32, gradient.device())?);
    }
    let input = pointer::<f32>(&input)?;
    // `[side, side, O, I]`.
    let sums = Output::<f32>::new(device, places * outputs * inputs)?;
    for_each_part(device, gradient, dims, |first, terms, lines| {
        let (rows, dtype) = (places * outputs, DType::F32);
        let product = Product { rows, terms, columns: inputs, dtype, output: dtype };
        let input = input + (first * inputs * size_of::<f32>()) as u64;
        let keep = if first == 0 { 0.0 } else { 1.0 };
        product.run_outer(device, lines, input, sums.pointer(), keep)
    })?;
    let permutation =
        Permutation { dims: [inputs, outputs, places], strides: [1, inputs, outputs * inputs] };
    permutation.apply(device, sums.pointer(), None, (inputs, outputs, side, side))
}

/// Collects lines `[pixels, side, side, O]` of a gradient `[N, 2H, 2W, O]`, and does something with each part of them: first
/// pixel, number of pixels, address.
fn for_each_part(
    device: &CudaDevice,
    gradient: &Tensor,
    dims: LayerDims,
    work: impl Fn(usize, usize, u64) -> Result<()>,
) -> Result<()> {
    let (batch, height, width, outputs) = gradient.dims4()?;
    let pixels = batch * (height / 2) * (width / 2);
    let places = dims.places();
    let line = places * outputs;
    let part = (LINE_BYTES / (line * size_of::<f32>())).clamp(1, pixels.max(1));
    let lines = Output::<f32>::new(device, part * line)?;
    let gradient = pointer::<f32>(gradient)?;
    for first in (0..pixels).step_by(part) {
        let rows = part.min(pixels - first);
        let argument = Collect {
            places: Rows::new(places * rows, outputs, &[gradient, lines.pointer()]),
            gradient,
            lines: lines.pointer(),
            first_pixel: first as u32,
            width: (width / 2) as u32,
            height: (height / 2) as u32,
            side: dims.side as u32,
        };
        let grid = argument.places.grid();
        launch!(device, CONV_TRANSPOSE2D, "conv_transpose2d_collect", grid, argument);
        work(first, rows, lines.pointer())?;
    }
    Ok(())
}
