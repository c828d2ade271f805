//! Gradients of a convolution, with the products of the forward pass the other way round.
//!
//! 1. Of the input: the output's gradient times the filters gives lines of windows, some at a time; each input pixel then
//!    collects its part of the windows that it lies in. Nothing is added by two threads, so sums have one order.
//! 2. Of the weight: the output's gradient times the windows of the input, summed over all pixels.

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Device, Tensor};

use super::super::sizes::Sizes;
use super::super::{Conv2dParams, OP, is_depthwise};
use super::depthwise;
use super::windows::Layout;
use crate::error::Result;
use crate::ops::support::cuda::{
    CONV2D, Columns, Output, Permutation, Product, Rows, check_f32, column_sums, launch, of,
    output, pointer,
};

fn layout<'a>(sizes: &Sizes, device: &'a Device) -> Result<Layout<'a>> {
    let [_, _, height, width] = sizes.weight;
    Ok(Layout {
        device: of(OP, device)?,
        dims: sizes.input,
        out_dims: sizes.output,
        window: [height, width],
        params: sizes.params,
        dtype: DType::F32,
    })
}

/// `[O, I/groups, kh, kw]` → `[O, kh, kw, I/groups]`, or where each channel is a group `[kh, kw, 1, O]`, times `scale[o]`.
pub(in crate::ops::conv2d) fn filters(
    weight: &Tensor,
    scale: Option<&Tensor>,
    params: Conv2dParams,
) -> Result<Tensor> {
    let filters = scaled_filters(weight, scale)?;
    if is_depthwise(weight.dims4()?.into(), params) {
        return depthwise::taps_first(&filters);
    }
    Ok(filters)
}

fn scaled_filters(weight: &Tensor, scale: Option<&Tensor>) -> Result<Tensor> {
    let weight = weight.contiguous()?;
    let (outputs, inputs, height, width) = weight.dims4()?;
    let taps = height * width;
    let permutation =
        Permutation { dims: [outputs, taps, inputs], strides: [inputs * taps, 1, taps] };
    let shape = (outputs, height, width, inputs);
    permutation.apply(of(OP, weight.device())?, pointer::<f32>(&weight)?, scale, shape)
}

/// `[O]`, of a gradient `[N, Ho, Wo, O]`.
pub(in crate::ops::conv2d) fn of_bias(gradient: &Tensor, sizes: &Sizes) -> Result<Tensor> {
    let [batch, height, width, outputs] = sizes.output;
    let device = of(OP, gradient.device())?;
    let gradient = pointer::<f32>(gradient)?;
    Ok(column_sums(device, gradient, batch * height * width, outputs)?.into_tensor(outputs))
}

/// `[O, I/groups, kh, kw]`, times `scale[o]`.
pub(in crate::ops::conv2d) fn of_weight(
    input: &Tensor,
    gradient: &Tensor,
    scale: Option<&Tensor>,
    sizes: &Sizes,
) -> Result<Tensor> {
    if is_depthwise(sizes.weight, sizes.params) {
        return depthwise::of_weight(input, gradient, scale, sizes);
    }
    let layout = layout(sizes, gradient.device())?;
    let (device, terms) = (layout.device, layout.line());
    let [outputs, inputs, height, width] = sizes.weight;
    let (groups, rows) = (sizes.params.groups, outputs / sizes.params.groups);
    let input = input.contiguous()?;
    let (input, gradient) = (pointer::<f32>(&input)?, pointer::<f32>(gradient)?);
    // `[O, kh, kw, I/groups]`.
    let sums = Output::<f32>::new(device, outputs * terms)?;
    let add = |group: usize, first: usize, pixels: usize, lines: u64| {
        let (dtype, keep) = (DType::F32, if first == 0 { 0.0 } else { 1.0 });
        let product = Product { rows, terms: pixels, columns: terms, dtype, output: dtype };
        let place = (first * outputs + group * rows) * size_of::<f32>();
        let gradient = Columns { address: gradient + place as u64, line: outputs };
        let sums = sums.pointer() + (group * rows * terms * size_of::<f32>()) as u64;
        product.run_outer_from(device, gradient, lines, sums, keep)
    };
    if layout.is_the_input() || layout.pixels() == 0 {
        for group in 0..groups {
            add(group, 0, layout.pixels(), input)?;
        }
    } else {
        let part = layout.part();
        let lines = Output::<f32>::new(device, part * terms)?;
        for first in (0..layout.pixels()).step_by(part) {
            let pixels = part.min(layout.pixels() - first);
            for group in 0..groups {
                layout.lay_out(input, group, (first, pixels), lines.pointer())?;
                add(group, first, pixels, lines.pointer())?;
            }
        }
    }
    let taps = height * width;
    let permutation =
        Permutation { dims: [outputs, inputs, taps], strides: [taps * inputs, 1, inputs] };
    permutation.apply(device, sums.pointer(), scale, &sizes.weight)
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Fold {
    pixels: Rows,
    lines: u64,
    out: u64,
    first_input: u32,
    first_window: u32,
    windows: u32,
    add: u32,
    height: u32,
    width: u32,
    out_height: u32,
    out_width: u32,
    window_height: u32,
    window_width: u32,
    stride: u32,
    padding: u32,
    dilation: u32,
    pixel_channels: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for Fold {}

/// `[N, H, W, I]`, of a gradient `[N, Ho, Wo, O]` and what [`filters`] returns.
pub(in crate::ops::conv2d) fn of_input(
    filters: &Tensor,
    gradient: &Tensor,
    sizes: &Sizes,
) -> Result<Tensor> {
    check_f32(filters)?;
    if is_depthwise(sizes.weight, sizes.params) {
        return depthwise::of_input(filters, gradient, sizes);
    }
    let layout = layout(sizes, gradient.device())?;
    let (device, columns, outputs) = (layout.device, layout.line(), sizes.output[3]);
    let (groups, terms) = (sizes.params.groups, outputs / sizes.params.groups);
    let (filters, values) = (pointer::<f32>(filters)?, pointer::<f32>(gradient)?);
    let multiply = |group: usize, first: usize, rows: usize, out: u64| {
        let dtype = DType::F32;
        let product = Product { rows, terms, columns, dtype, output: dtype };
        let place = (first * outputs + group * terms) * size_of::<f32>();
        let values = Columns { address: values + place as u64, line: outputs };
        let filters = filters + (group * terms * columns * size_of::<f32>()) as u64;
        product.run_plain_from(device, values, filters, out)
    };
    if layout.is_the_input() {
        let (tensor, out) = output(device, DType::F32, &sizes.input)?;
        multiply(0, 0, layout.pixels(), out)?;
        return Ok(tensor);
    }
    let part = layout.part();
    if part < layout.pixels() {
        let tensor = Tensor::zeros(&sizes.input, DType::F32, gradient.device())?;
        let out = pointer::<f32>(&tensor)?;
        let lines = Output::<f32>::new(device, part * columns)?;
        for first in (0..layout.pixels()).step_by(part) {
            let windows = part.min(layout.pixels() - first);
            let inputs = layout.inputs_under(first, windows);
            let part = Part { first, windows, inputs, add: 1 };
            for group in 0..groups {
                multiply(group, first, windows, lines.pointer())?;
                layout.fold(lines.pointer(), out, group, &part)?;
            }
        }
        return Ok(tensor);
    }
    let (tensor, out) = output(device, DType::F32, &sizes.input)?;
    let windows = layout.pixels();
    let lines = Output::<f32>::new(device, windows * columns)?;
    let inputs = 0..sizes.input[..3].iter().product();
    let part = Part { first: 0, windows, inputs, add: 0 };
    for group in 0..groups {
        multiply(group, 0, windows, lines.pointer())?;
        layout.fold(lines.pointer(), out, group, &part)?;
    }
    Ok(tensor)
}

/// Some of the windows.
struct Part {
    /// First window.
    first: usize,
    windows: usize,
    /// Pixels of the input that collect, of all images.
    inputs: std::ops::Range<usize>,
    /// Whether they have collected before.
    add: u32,
}

impl Layout<'_> {
    /// Pixels of the input that may lie in `n` windows from `first` on: whole lines.
    fn inputs_under(&self, first: usize, n: usize) -> std::ops::Range<usize> {
        let [_, height, width, _] = self.dims;
        let [_, out_height, out_width, _] = self.out_dims;
        let place =
            |window: usize| (window / out_width / out_height, window / out_width % out_height);
        let ((first_image, top), (last_image, bottom)) = (place(first), place(first + n - 1));
        let Conv2dParams { stride, padding, .. } = self.params;
        let start = (top * stride).saturating_sub(padding).min(height);
        let end = (bottom * stride + self.params.reach(self.window[0]))
            .saturating_sub(padding)
            .min(height);
        (first_image * height + start) * width..(last_image * height + end) * width
    }

    /// Lets each input pixel collect from the lines of a group's windows.
    fn fold(&self, lines: u64, out: u64, group: usize, part: &Part) -> Result<()> {
        let [_, height, width, pixel_channels] = self.dims;
        let channels = self.channels();
        let out = out + (group * channels * size_of::<f32>()) as u64;
        let [_, out_height, out_width, _] = self.out_dims;
        let fold = Fold {
            pixels: Rows::new(part.inputs.len(), channels, &[lines, out]),
            lines,
            out,
            first_input: part.inputs.start as u32,
            first_window: part.first as u32,
            windows: part.windows as u32,
            add: part.add,
            height: height as u32,
            width: width as u32,
            out_height: out_height as u32,
            out_width: out_width as u32,
            window_height: self.window[0] as u32,
            window_width: self.window[1] as u32,
            stride: self.params.stride as u32,
            padding: self.params.padding as u32,
            dilation: self.params.dilation as u32,
            pixel_channels: pixel_channels as u32,
        };
        launch!(self.device, CONV2D, "conv2d_fold", fold.pixels.grid(), fold);
        Ok(())
    }
}
