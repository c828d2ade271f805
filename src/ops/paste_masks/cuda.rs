use candle_core::Tensor;
use candle_core::cuda_backend::cudarc::driver::DeviceRepr;

use super::{OP, PasteMasksParams};
use crate::error::Result;
use crate::ops::support::cuda::{Grid, Output, PASTE_MASKS, launch, of, point};
use crate::ops::support::paste::growth;

/// Pixels of a thread.
const PIXELS: usize = 4;
/// The most blocks of a launch in y; more masks than that share blocks.
const MAX_ROWS: usize = 65_535;

#[repr(C)]
#[derive(Clone, Copy)]
struct PasteMasks {
    probabilities: u64,
    boxes: u64,
    masks: u64,
    n_masks: u32,
    side: u32,
    height: u32,
    width: u32,
    growth: f32,
    threshold: f32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for PasteMasks {}

/// Draws `probabilities` `[D, M, M]` in `boxes` `[D, 4]`.
pub(super) fn run(
    probabilities: &Tensor,
    boxes: &Tensor,
    params: &PasteMasksParams,
) -> Result<Tensor> {
    let PasteMasksParams { height, width, threshold } = *params;
    let device = of(OP, probabilities.device())?;
    let (n_masks, side, _) = probabilities.dims3()?;
    let masks = Output::<u8>::new(device, n_masks * height * width)?;
    point!(probabilities: f32, boxes: f32);
    let argument = PasteMasks {
        probabilities,
        boxes,
        masks: masks.pointer(),
        n_masks: n_masks as u32,
        side: side as u32,
        height: height as u32,
        width: width as u32,
        growth: growth(side),
        threshold,
    };
    let grid = Grid::over_rows((height * width).div_ceil(PIXELS), n_masks.min(MAX_ROWS));
    launch!(device, PASTE_MASKS, "paste_masks", grid, argument);
    Ok(masks.into_tensor((n_masks, height, width)))
}
