//! Gradients of the pooled levels on CUDA.
//!
//! One launch notes where each box lies; then, level by level, each feature collects from the cells that sampled it. There
//! are no atomic additions: sums have the order of the boxes, and are the same from run to run.

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Tensor};

use super::cuda::Levels;
use super::{OP, RoiAlignParams};
use crate::error::Result;
use crate::ops::support::cuda::{
    Grid, Output, ROI_ALIGN, Rows, check_f32, launch, of, output, point, pointer,
};

/// Words of a place; see `Placed` in kernel.cu.
const PLACED: usize = 12;

#[repr(C)]
#[derive(Clone, Copy)]
struct Place {
    boxes: u64,
    counts: u64,
    placed: u64,
    levels: Levels,
    n_levels: u32,
    n_slots: u32,
    n: u32,
    output: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for Place {}

#[repr(C)]
#[derive(Clone, Copy)]
struct Collect {
    pixels: Rows,
    placed: u64,
    gradient: u64,
    out: u64,
    level: u32,
    height: u32,
    width: u32,
    n_slots: u32,
    output: u32,
    sampling: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for Collect {}

/// Gradients of the levels `[N, H_l, W_l, C]` that are wanted, from that of the pooled features.
pub(super) fn run(
    gradient: &Tensor,
    boxes: &Tensor,
    counts: &Tensor,
    levels: &[[usize; 4]],
    wanted: &[bool],
    params: &RoiAlignParams,
) -> Result<Vec<Option<Tensor>>> {
    check_f32(gradient)?;
    let device = of(OP, gradient.device())?;
    let (n_images, n_slots, _) = boxes.dims3()?;
    let n = n_images * n_slots;
    let gradient = pointer::<f32>(gradient)?;
    point!(boxes: f32, counts: u32);
    let placed = Output::<u32>::new(device, n * PLACED)?;
    let place = Place {
        boxes,
        counts,
        placed: placed.pointer(),
        levels: Levels::new(levels, params)?,
        n_levels: levels.len() as u32,
        n_slots: n_slots as u32,
        n: n as u32,
        output: params.output as u32,
    };
    launch!(device, ROI_ALIGN, "roi_align_place", Grid::over(n), place);
    levels
        .iter()
        .zip(wanted)
        .enumerate()
        .map(|(level, (dims, wanted))| {
            if !wanted {
                return Ok(None);
            }
            let [batch, height, width, channels] = *dims;
            let (tensor, out) = output(device, DType::F32, dims)?;
            let collect = Collect {
                pixels: Rows::new(batch * height * width, channels, &[gradient, out]),
                placed: placed.pointer(),
                gradient,
                out,
                level: level as u32,
                height: height as u32,
                width: width as u32,
                n_slots: n_slots as u32,
                output: params.output as u32,
                sampling: params.sampling as u32,
            };
            launch!(device, ROI_ALIGN, "roi_align_collect", collect.pixels.grid(), collect);
            Ok(Some(tensor))
        })
        .collect()
}
