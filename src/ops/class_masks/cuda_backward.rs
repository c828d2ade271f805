//! Gradients of the class-selected filters on CUDA; see `kernel.cu`.

use candle_core::Tensor;
use candle_core::cuda_backend::cudarc::driver::DeviceRepr;

use super::OP;
use crate::error::Result;
use crate::ops::support::cuda::{
    CLASS_MASKS, Grid, Output, Rows, check_f32, launch, of, output, point, pointer,
};

#[repr(C)]
#[derive(Clone, Copy)]
struct OfFeatures {
    cells: Rows,
    gradient: u64,
    weight: u64,
    labels: u64,
    out: u64,
    cells_per_row: u32,
    n_classes: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for OfFeatures {}

#[repr(C)]
#[derive(Clone, Copy)]
struct OfFilters {
    gradient: u64,
    features: u64,
    labels: u64,
    per_row: u64,
    of_weight: u64,
    of_bias: u64,
    n_rows: u32,
    cells_per_row: u32,
    n_classes: u32,
    channels: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for OfFilters {}

/// `[R, M, M, C]`, of a gradient `[R, M, M]` and filters `[classes, C]`.
pub(super) fn of_features(gradient: &Tensor, weight: &Tensor, labels: &Tensor) -> Result<Tensor> {
    check_f32(gradient)?;
    let device = of(OP, gradient.device())?;
    let ((n_rows, height, width), (n_classes, channels)) = (gradient.dims3()?, weight.dims2()?);
    let (tensor, out) = output(device, gradient.dtype(), (n_rows, height, width, channels))?;
    point!(gradient: f32, weight: f32, labels: u32);
    let argument = OfFeatures {
        cells: Rows::one_by_one(n_rows * height * width, channels),
        gradient,
        weight,
        labels,
        out,
        cells_per_row: (height * width) as u32,
        n_classes: n_classes as u32,
    };
    let grid = argument.cells.grid();
    launch!(device, CLASS_MASKS, "class_masks_of_features", grid, argument);
    Ok(tensor)
}

/// `[classes, C]` and `[classes]`, of a gradient `[R, M, M]` and features `[R, M, M, C]`.
pub(super) fn of_filters(
    gradient: &Tensor,
    features: &Tensor,
    labels: &Tensor,
    n_classes: usize,
) -> Result<(Tensor, Tensor)> {
    check_f32(gradient)?;
    let device = of(OP, gradient.device())?;
    let (n_rows, height, width, channels) = features.dims4()?;
    let (of_weight, weight_address) = output(device, gradient.dtype(), (n_classes, channels))?;
    let (of_bias, bias_address) = output(device, gradient.dtype(), n_classes)?;
    let per_row = Output::<f32>::new(device, n_rows * (channels + 1))?;
    let features = features.contiguous()?;
    let features = pointer::<f32>(&features)?;
    point!(gradient: f32, labels: u32);
    let argument = OfFilters {
        gradient,
        features,
        labels,
        per_row: per_row.pointer(),
        of_weight: weight_address,
        of_bias: bias_address,
        n_rows: n_rows as u32,
        cells_per_row: (height * width) as u32,
        n_classes: n_classes as u32,
        channels: channels as u32,
    };
    let rows = Grid::over(n_rows * (channels + 1));
    launch!(device, CLASS_MASKS, "class_masks_per_row", rows, argument);
    let classes = Grid::over(n_classes * (channels + 1));
    launch!(device, CLASS_MASKS, "class_masks_per_class", classes, argument);
    Ok((of_weight, of_bias))
}
