use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Tensor};

use super::OP;
use crate::error::Result;
use crate::ops::support::check::argument;
use crate::ops::support::cuda::{CLASS_MASKS, Grid, Output, Rows, for_dtype, launch, of, point};

/// Threads that share the sum of a cell.
const WARP: usize = 32;

#[repr(C)]
#[derive(Clone, Copy)]
struct ClassMasks {
    features: u64,
    weight: u64,
    bias: u64,
    labels: u64,
    masks: u64,
    n_cells: u64,
    cells_per_row: u32,
    n_classes: u32,
    channels: u32,
    pack: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for ClassMasks {}

/// The probabilities `[R, M, M]` of `features` `[R, M, M, C]`.
pub(super) fn run(
    features: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    labels: &Tensor,
) -> Result<Tensor> {
    run_kernel(for_dtype!("class_masks", features.dtype()), features, weight, bias, labels)
}

/// The same without the sigmoid, of features of f32.
pub(super) fn logits(
    features: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    labels: &Tensor,
) -> Result<Tensor> {
    argument("class_mask_logits", "features", features).dtype(DType::F32)?;
    run_kernel("class_masks_logits", features, weight, bias, labels)
}

fn run_kernel(
    kernel: &'static str,
    features: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    labels: &Tensor,
) -> Result<Tensor> {
    let device = of(OP, features.device())?;
    let (n_rows, height, width, channels) = features.dims4()?;
    let n_classes = bias.elem_count();
    let n_cells = n_rows * height * width;
    let masks = Output::<f32>::new(device, n_cells)?;
    point!(features);
    point!(weight: f32, bias: f32, labels: u32);
    let argument = ClassMasks {
        features,
        weight,
        bias,
        labels,
        masks: masks.pointer(),
        n_cells: n_cells as u64,
        cells_per_row: (height * width) as u32,
        n_classes: n_classes as u32,
        channels: channels as u32,
        pack: Rows::new(n_cells, channels, &[features, weight]).pack(),
    };
    launch!(device, CLASS_MASKS, kernel, Grid::over(n_cells * WARP), argument);
    Ok(masks.into_tensor((n_rows, height, width)))
}
