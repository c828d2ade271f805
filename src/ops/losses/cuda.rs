//! Losses on CUDA, there and back; see `kernel.cu`.

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Tensor};

use super::{Compared, Loss};
use crate::error::Result;
use crate::ops::support::cuda::{
    Grid, LOSSES, Output, check_f32, launch, of, output, point, pointer,
};

/// Threads, or warps, that add up what they own; their number decides the order of sums.
const PARTS: usize = 4096;
/// Threads of the block that adds up their sums.
const BLOCK: u32 = 256;
const WARP: usize = 32;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Argument {
    predictions: u64,
    labels: u64,
    targets: u64,
    gradient: u64,
    sums: u64,
    value: u64,
    share: u64,
    out: u64,
    rows: u64,
    width: u32,
    parts: u32,
    terms: u32,
    unused: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for Argument {}

impl Argument {
    /// All that does not depend on the direction; the tensors must live until the launch.
    fn new(loss: Loss, rows: usize, width: usize) -> Self {
        Self {
            rows: rows as u64,
            width: width as u32,
            terms: loss.terms(width) as u32,
            ..Self::default()
        }
    }
}

/// How a loss is laid out over threads.
struct Plan {
    cost: &'static str,
    /// Those who add up, each being some lanes.
    parts: usize,
    slopes: &'static str,
    /// Threads on the way back.
    threads: usize,
    /// Threads that work together.
    lanes: usize,
}

impl Plan {
    fn new(loss: Loss, rows: usize, width: usize) -> Self {
        let predictions = rows * width;
        let (cost, parts, slopes, threads, lanes) = match loss {
            Loss::Objectness => {
                ("losses_objectness", rows, "losses_objectness_back", predictions, 1)
            }
            Loss::Classifier => {
                ("losses_classifier", rows, "losses_classifier_back", rows * WARP, WARP)
            }
            Loss::Boxes => ("losses_boxes", rows, "losses_boxes_back", predictions, 1),
            Loss::Masks => ("losses_masks", predictions, "losses_masks_back", predictions, 1),
        };
        Self { cost, parts: parts.clamp(1, PARTS), slopes, threads, lanes }
    }
}

/// The loss, and its share: one over the number of terms that it is averaged over, or 0.
pub(super) fn cost(compared: &Compared) -> Result<(Tensor, Tensor)> {
    let Compared { loss, predictions, labels, targets, width } = compared;
    let device = of(loss.op(), predictions.device())?;
    let rows = labels.elem_count();
    let plan = Plan::new(*loss, rows, *width);
    // Of losses without targets, something that nobody reads.
    let targets = targets.as_ref().unwrap_or(predictions);
    point!(predictions: f32, labels: u32, targets: f32);
    let sums = Output::<f64>::new(device, 2 * plan.parts)?;
    let share = Output::<f64>::new(device, 1)?;
    let (value, value_address) = output(device, DType::F32, ())?;
    let argument = Argument {
        predictions,
        labels,
        targets,
        sums: sums.pointer(),
        value: value_address,
        share: share.pointer(),
        parts: plan.parts as u32,
        ..Argument::new(*loss, rows, *width)
    };
    launch!(device, LOSSES, plan.cost, Grid::over(plan.parts * plan.lanes), argument);
    launch!(device, LOSSES, "losses_total", Grid::blocks((1, 1), BLOCK), argument);
    Ok((value, share.into_tensor(())))
}

/// The gradient of the predictions, of one of the loss.
pub(super) fn slopes(compared: &Compared, share: &Tensor, gradient: &Tensor) -> Result<Tensor> {
    check_f32(gradient)?;
    let Compared { loss, predictions, labels, targets, width } = compared;
    let device = of(loss.op(), predictions.device())?;
    let rows = labels.elem_count();
    let plan = Plan::new(*loss, rows, *width);
    let (tensor, out) = output(device, DType::F32, predictions.shape())?;
    let targets = targets.as_ref().unwrap_or(predictions);
    let share = pointer::<f64>(share)?;
    point!(predictions: f32, labels: u32, targets: f32, gradient: f32);
    let argument = Argument {
        predictions,
        labels,
        targets,
        gradient,
        share,
        out,
        ..Argument::new(*loss, rows, *width)
    };
    launch!(device, LOSSES, plan.slopes, Grid::over(plan.threads), argument);
    Ok(tensor)
}
