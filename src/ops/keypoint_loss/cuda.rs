//! The keypoint loss on CUDA, there and back; see `kernel.cu`.

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Tensor};

use super::{Compared, OP};
use crate::error::Result;
use crate::ops::support::cuda::{
    Grid, KEYPOINT_LOSS, Output, check_f32, launch, of, output, point, pointer,
};

/// Threads of a block; the kernels count on it.
const BLOCK: u32 = 256;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Argument {
    logits: u64,
    targets: u64,
    gradient: u64,
    normalizers: u64,
    costs: u64,
    value: u64,
    share: u64,
    out: u64,
    n: u64,
    maps: u32,
    cells: u32,
    keypoints: u32,
    unused: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for Argument {}

impl Argument {
    /// All that does not depend on the direction.
    fn new(compared: &Compared) -> Self {
        let maps = compared.maps;
        Self {
            n: (maps.rows * maps.cells * maps.keypoints) as u64,
            maps: (maps.rows * maps.keypoints) as u32,
            cells: maps.cells as u32,
            keypoints: maps.keypoints as u32,
            ..Self::default()
        }
    }
}

/// The loss, `[R, P]` logarithms of sums of exponentials, and one over the number of terms or 0.
pub(super) fn cost(compared: &Compared) -> Result<(Tensor, Tensor, Tensor)> {
    let Compared { logits, targets, maps } = compared;
    let device = of(OP, logits.device())?;
    let n = maps.rows * maps.keypoints;
    point!(logits: f32, targets: u32);
    let normalizers = Output::<f64>::new(device, n)?;
    let costs = Output::<f64>::new(device, n)?;
    let share = Output::<f64>::new(device, 1)?;
    let (value, value_address) = output(device, DType::F32, ())?;
    let argument = Argument {
        logits,
        targets,
        normalizers: normalizers.pointer(),
        costs: costs.pointer(),
        value: value_address,
        share: share.pointer(),
        ..Argument::new(compared)
    };
    launch!(device, KEYPOINT_LOSS, "keypoint_loss_maps", Grid::blocks((n, 1), BLOCK), argument);
    launch!(device, KEYPOINT_LOSS, "keypoint_loss_total", Grid::blocks((1, 1), BLOCK), argument);
    Ok((value, normalizers.into_tensor((maps.rows, maps.keypoints)), share.into_tensor(())))
}

/// The gradient of the logits, of one of the loss.
pub(super) fn slopes(
    compared: &Compared,
    normalizers: &Tensor,
    share: &Tensor,
    gradient: &Tensor,
) -> Result<Tensor> {
    check_f32(gradient)?;
    let Compared { logits, targets, .. } = compared;
    let device = of(OP, logits.device())?;
    let (tensor, out) = output(device, DType::F32, logits.shape())?;
    let (normalizers, share) = (pointer::<f64>(normalizers)?, pointer::<f64>(share)?);
    let n = logits.elem_count();
    point!(logits: f32, targets: u32, gradient: f32);
    let argument =
        Argument { logits, targets, gradient, normalizers, share, out, ..Argument::new(compared) };
    launch!(device, KEYPOINT_LOSS, "keypoint_loss_back", Grid::over(n), argument);
    Ok(tensor)
}
