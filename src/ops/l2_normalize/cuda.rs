//! Normalisation of cells on CUDA, there and back; see `kernel.cu`.

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Tensor};

use super::{OP, Plan};
use crate::error::Result;
use crate::ops::support::cuda::{
    Grid, L2_NORMALIZE, Output, address, check_f32, column_sums, for_dtype, launch, of, output,
    pointer,
};

/// Threads of a cell; the twin is in kernel.cu.
const WARP: usize = 32;

#[repr(C)]
#[derive(Clone, Copy)]
struct Cells {
    input: u64,
    weight: u64,
    out: u64,
    cells: u32,
    channels: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for Cells {}

pub(super) fn run(input: &Tensor, plan: Plan, weight: &Tensor) -> Result<Tensor> {
    let device = of(OP, input.device())?;
    let dtype = input.dtype();
    let [input, weight] = [input.contiguous()?, weight.contiguous()?];
    let (tensor, out) = output(device, dtype, input.shape())?;
    let cells = Cells {
        input: address(&input)?,
        weight: pointer::<f32>(&weight)?,
        out,
        cells: plan.cells as u32,
        channels: plan.channels as u32,
    };
    let grid = Grid::over(plan.cells * WARP);
    launch!(device, L2_NORMALIZE, for_dtype!("l2_normalize", dtype), grid, cells);
    Ok(tensor)
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Back {
    cells: Cells,
    gradient: u64,
    products: u64,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for Back {}

/// Gradients of input and weight.
pub(super) fn backward(
    gradient: &Tensor,
    input: &Tensor,
    plan: Plan,
    weight: &Tensor,
) -> Result<[Tensor; 2]> {
    check_f32(gradient)?;
    let device = of(OP, gradient.device())?;
    let [input, weight] = [input.contiguous()?, weight.contiguous()?];
    let (of_input, out) = output(device, DType::F32, input.shape())?;
    let products = Output::<f32>::new(device, input.elem_count())?;
    let cells = Cells {
        input: pointer::<f32>(&input)?,
        weight: pointer::<f32>(&weight)?,
        out,
        cells: plan.cells as u32,
        channels: plan.channels as u32,
    };
    let back = Back { cells, gradient: pointer::<f32>(gradient)?, products: products.pointer() };
    launch!(device, L2_NORMALIZE, "l2_normalize_back", Grid::over(plan.cells * WARP), back);
    let of_weight = column_sums(device, products.pointer(), plan.cells, plan.channels)?;
    Ok([of_input, of_weight.into_tensor(plan.channels)])
}
