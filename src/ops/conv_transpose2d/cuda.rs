use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Tensor};

use super::{LayerDims, OP, cuda_backward};
use crate::error::Result;
use crate::ops::support::activation::Activation;
use crate::ops::support::cuda::{
    CONV_TRANSPOSE2D, Output, Product, Rows, address, for_dtype, launch, of, output, point,
};

/// Bytes of products that wait for their place at a time: they are read again while a cache may still have them.
const PRODUCT_BYTES: usize = 32 << 20;

/// `[side, side, O, I]` filters and `[O]` bias.
#[derive(Debug)]
pub(super) struct Weights {
    filters: Tensor,
    bias: Tensor,
    dims: LayerDims,
}

impl Weights {
    /// From `[I, O, side, side]`.
    pub fn new(weight: &Tensor, bias: &Tensor, dims: LayerDims) -> Result<Self> {
        let filters = weight.detach().permute((2, 3, 1, 0))?.force_contiguous()?;
        Ok(Self { filters, bias: bias.detach().force_contiguous()?, dims })
    }

    /// From variables of f32: for one call, in one launch.
    pub fn for_training(weight: &Tensor, bias: &Tensor, dims: LayerDims) -> Result<Self> {
        let filters = cuda_backward::filters(weight, dims)?;
        Ok(Self { filters, bias: bias.detach().contiguous()?, dims })
    }

    /// `[side, side, O, I]`.
    pub fn filters(&self) -> &Tensor {
        &self.filters
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Spread {
    places: Rows,
    products: u64,
    bias: u64,
    out: u64,
    first_pixel: u32,
    width: u32,
    activation: u32,
    unused: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for Spread {}

#[repr(C)]
#[derive(Clone, Copy)]
struct AddUp {
    pixels: Rows,
    products: u64,
    bias: u64,
    out: u64,
    height: u32,
    width: u32,
    activation: u32,
    unused: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for AddUp {}

/// Enlarges `[N, H, W, I]` to `[N, 2H, 2W, O]`.
pub(super) fn run(
    input: &Tensor,
    weights: &Weights,
    activation: Activation,
    dtype: DType,
) -> Result<Tensor> {
    let (batch, height, width, _) = input.dims4()?;
    let device = of(OP, input.device())?;
    let outputs = weights.dims.outputs;
    let (tensor, out) = output(device, dtype, (batch, 2 * height, 2 * width, outputs))?;
    if weights.dims.side == 2 {
        spread(input, weights, activation, (dtype, out))?;
    } else {
        add_up(input, weights, activation, (dtype, out))?;
    }
    Ok(tensor)
}

/// Windows that don't overlap.
fn spread(
    input: &Tensor,
    weights: &Weights,
    activation: Activation,
    (dtype, out): (DType, u64),
) -> Result<()> {
    let device = of(OP, input.device())?;
    let (batch, height, width, terms) = input.dims4()?;
    let (pixels, outputs) = (batch * height * width, weights.dims.outputs);
    let input_dtype = input.dtype();
    point!(input);
    let (filters, bias) = (address(&weights.filters)?, address(&weights.bias)?);
    let columns = 4 * outputs;
    let part = (PRODUCT_BYTES / (columns * dtype.size_in_bytes())).clamp(1, pixels.max(1));
    let waiting = Output::<u8>::new(device, part * columns * dtype.size_in_bytes())?;
    let products = waiting.pointer();
    for first in (0..pixels).step_by(part) {
        let rows = part.min(pixels - first);
        let left = input + (first * terms * input_dtype.size_in_bytes()) as u64;
        Product { rows, terms, columns, dtype: input_dtype, output: dtype }
            .run(device, left, filters, products)?;
        let argument = Spread {
            places: Rows::new(4 * rows, outputs, &[products, bias, out]),
            products,
            bias,
            out,
            first_pixel: first as u32,
            width: width as u32,
            activation: activation.code(),
            unused: 0,
        };
        let kernel = for_dtype!("conv_transpose2d", dtype);
        launch!(device, CONV_TRANSPOSE2D, kernel, argument.places.grid(), argument);
    }
    Ok(())
}

/// Windows that overlap: some images at a time, so that all products of an output pixel are there. These are in f32, as
/// several are added up.
fn add_up(
    input: &Tensor,
    weights: &Weights,
    activation: Activation,
    (dtype, out): (DType, u64),
) -> Result<()> {
    let device = of(OP, input.device())?;
    let (batch, height, width, terms) = input.dims4()?;
    let (pixels, outputs) = (height * width, weights.dims.outputs);
    let input_dtype = input.dtype();
    point!(input);
    let (filters, bias) = (address(&weights.filters)?, address(&weights.bias)?);
    let columns = weights.dims.places() * outputs;
    let image = pixels * columns;
    let part = (PRODUCT_BYTES / (image * size_of::<f32>()).max(1)).clamp(1, batch.max(1));
    let waiting = Output::<f32>::new(device, part * image)?;
    let products = waiting.pointer();
    for first in (0..batch).step_by(part) {
        let images = part.min(batch - first);
        let rows = images * pixels;
        let left = input + (first * pixels * terms * input_dtype.size_in_bytes()) as u64;
        Product { rows, terms, columns, dtype: input_dtype, output: DType::F32 }
            .run(device, left, filters, products)?;
        let out = out + (first * 4 * pixels * outputs * dtype.size_in_bytes()) as u64;
        let argument = AddUp {
            pixels: Rows::new(4 * rows, outputs, &[products, bias, out]),
            products,
            bias,
            out,
            height: height as u32,
            width: width as u32,
            activation: activation.code(),
            unused: 0,
        };
        let kernel = for_dtype!("conv_transpose2d_add_up", dtype);
        launch!(device, CONV_TRANSPOSE2D, kernel, argument.pixels.grid(), argument);
    }
    Ok(())
}
