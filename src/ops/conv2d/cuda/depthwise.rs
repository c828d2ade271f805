//! Convolution of each channel by itself, and its gradients; see `kernel.cu`.

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Tensor};

use super::super::sizes::Sizes;
use super::super::{Conv2dParams, OP};
use super::Job;
use crate::error::Result;
use crate::ops::support::activation::Activation;
use crate::ops::support::cuda::{
    CONV2D, Grid, Output, Permutation, Rows, address, column_sums, for_dtype, launch, of, output,
    part_of_rows, pointer,
};

#[repr(C)]
#[derive(Clone, Copy)]
struct Depthwise {
    pixels: Rows,
    input: u64,
    filters: u64,
    bias: u64,
    residual: u64,
    out: u64,
    height: u32,
    width: u32,
    out_height: u32,
    out_width: u32,
    window_height: u32,
    window_width: u32,
    stride: u32,
    padding: u32,
    dilation: u32,
    activation: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for Depthwise {}

impl Job<'_> {
    /// Computes the convolution with all that follows, in one launch.
    pub fn run_by_channel(&self) -> Result<()> {
        let filters = address(&self.weights.filters)?;
        let (bias, residual) = (address(&self.weights.bias)?, self.residual.unwrap_or(0));
        let addresses = [self.input, filters, bias, residual, self.out];
        let Conv2dParams { stride, padding, dilation, .. } = self.params;
        let argument = Depthwise {
            pixels: Rows::new(self.pixels(), self.out_dims[3], &addresses),
            input: self.input,
            filters,
            bias,
            residual,
            out: self.out,
            height: self.dims[1] as u32,
            width: self.dims[2] as u32,
            out_height: self.out_dims[1] as u32,
            out_width: self.out_dims[2] as u32,
            window_height: self.window[0] as u32,
            window_width: self.window[1] as u32,
            stride: stride as u32,
            padding: padding as u32,
            dilation: dilation as u32,
            activation: self.activation.code(),
        };
        let kernel = if self.output == self.dtype {
            for_dtype!("conv2d_depthwise", self.dtype)
        } else {
            for_dtype!("conv2d_depthwise_to_f32", self.dtype)
        };
        launch!(self.device, CONV2D, kernel, argument.pixels.grid(), argument);
        Ok(())
    }
}

/// `[C, kh, kw, 1]` → `[kh, kw, 1, C]`.
pub(super) fn taps_first(filters: &Tensor) -> Result<Tensor> {
    let (channels, height, width, _) = filters.dims4()?;
    let taps = height * width;
    let permutation = Permutation { dims: [taps, channels, 1], strides: [1, taps, 0] };
    let shape = (height, width, 1, channels);
    permutation.apply(of(OP, filters.device())?, pointer::<f32>(filters)?, None, shape)
}

/// `[N, H, W, C]`, of a gradient `[N, Ho, Wo, C]` and filters `[kh, kw, 1, C]`.
pub(super) fn of_input(filters: &Tensor, gradient: &Tensor, sizes: &Sizes) -> Result<Tensor> {
    let device = of(OP, gradient.device())?;
    let (tensor, out) = output(device, DType::F32, &sizes.input)?;
    let (filters, gradient) = (pointer::<f32>(filters)?, pointer::<f32>(gradient)?);
    let [batch, height, width, channels] = sizes.input;
    let Conv2dParams { stride, padding, dilation, .. } = sizes.params;
    let argument = Depthwise {
        pixels: Rows::new(batch * height * width, channels, &[gradient, filters, out]),
        input: gradient,
        filters,
        bias: 0,
        residual: 0,
        out,
        height: height as u32,
        width: width as u32,
        out_height: sizes.output[1] as u32,
        out_width: sizes.output[2] as u32,
        window_height: sizes.weight[2] as u32,
        window_width: sizes.weight[3] as u32,
        stride: stride as u32,
        padding: padding as u32,
        dilation: dilation as u32,
        activation: Activation::None.code(),
    };
    launch!(device, CONV2D, "conv2d_depthwise_input", argument.pixels.grid(), argument);
    Ok(tensor)
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DepthwiseWeight {
    input: u64,
    gradient: u64,
    sums: u64,
    n: u64,
    pixels: u32,
    part: u32,
    channels: u32,
    height: u32,
    width: u32,
    out_height: u32,
    out_width: u32,
    window_height: u32,
    window_width: u32,
    stride: u32,
    padding: u32,
    dilation: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for DepthwiseWeight {}

/// `[C, 1, kh, kw]`, times `scale[c]`.
pub(super) fn of_weight(
    input: &Tensor,
    gradient: &Tensor,
    scale: Option<&Tensor>,
    sizes: &Sizes,
) -> Result<Tensor> {
    let device = of(OP, gradient.device())?;
    let input = input.contiguous()?;
    let [channels, _, window_height, window_width] = sizes.weight;
    let taps = window_height * window_width;
    let pixels: usize = sizes.output[..3].iter().product();
    let part = part_of_rows(pixels);
    let parts = pixels.div_ceil(part);
    let columns = taps * channels;
    let sums = Output::<f32>::new(device, parts * columns)?;
    let Conv2dParams { stride, padding, dilation, .. } = sizes.params;
    let argument = DepthwiseWeight {
        input: pointer::<f32>(&input)?,
        gradient: pointer::<f32>(gradient)?,
        sums: sums.pointer(),
        n: (parts * columns) as u64,
        pixels: pixels as u32,
        part: part as u32,
        channels: channels as u32,
        height: sizes.input[1] as u32,
        width: sizes.input[2] as u32,
        out_height: sizes.output[1] as u32,
        out_width: sizes.output[2] as u32,
        window_height: window_height as u32,
        window_width: window_width as u32,
        stride: stride as u32,
        padding: padding as u32,
        dilation: dilation as u32,
    };
    let grid = Grid::over(parts * columns);
    launch!(device, CONV2D, "conv2d_depthwise_weight", grid, argument);
    let total = column_sums(device, sums.pointer(), parts, columns)?;
    let permutation = Permutation { dims: [channels, taps, 1], strides: [1, channels, 0] };
    permutation.apply(device, total.pointer(), scale, &sizes.weight)
}
