//! On CUDA, there and back; see `kernel.cu`.

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{CudaDevice, DType, Tensor};

use super::compared::Compared;
use super::{BoxCost, Loss, Normalization};
use crate::error::Result;
use crate::ops::support::box_coding::BoxCoding;
use crate::ops::support::cuda::{
    DENSE_LOSSES, Grid, Output, SELECT_THREADS, Table, check_f32, fits, launch, of, output, point,
    pointer,
};

/// Threads that add up what they own; their number decides the order of sums.
const PARTS: usize = 1 << 16;
/// Threads of a block that adds up.
const BLOCK: u32 = 256;
const WARP: usize = 32;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Argument {
    anchors: u64,
    matches: u64,
    boxes: u64,
    labels: u64,
    gradient: u64,
    positives: u64,
    weights: u64,
    costs: u64,
    times: u64,
    sums: u64,
    value: u64,
    images: u32,
    rows: u32,
    width: u32,
    n_objects: u32,
    parts: u32,
    per_image: u32,
    per_positive: u32,
    coding: u32,
    cost: u32,
    beta: f32,
    divisors: [f32; 4],
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for Argument {}

impl Argument {
    /// All that does not depend on the direction; the tensors must live until the launch.
    fn new(compared: &Compared) -> Result<Self> {
        let Compared { plan, anchors, matches, boxes, labels, .. } = compared;
        let argument = Self {
            anchors: anchors.as_ref().map(pointer::<f32>).transpose()?.unwrap_or(0),
            matches: pointer::<u32>(matches)?,
            boxes: pointer::<f32>(boxes)?,
            labels: pointer::<u32>(labels)?,
            images: plan.images as u32,
            rows: plan.rows() as u32,
            width: plan.width as u32,
            n_objects: compared.n_objects as u32,
            per_image: u32::from(compared.normalization == Normalization::PerImage),
            divisors: [1.0; 4],
            ..Self::default()
        };
        Ok(match compared.loss {
            Loss::Focal | Loss::Centerness => argument,
            Loss::HardNegatives { per_positive } => {
                Self { per_positive: u32::try_from(per_positive).unwrap_or(u32::MAX), ..argument }
            }
            Loss::Boxes { coding, cost } => {
                let (coding, divisors) = match coding {
                    BoxCoding::Deltas { weights } => (0, weights),
                    BoxCoding::Distances => (1, [1.0; 4]),
                };
                let (cost, beta) = match cost {
                    BoxCost::L1 => (0, 0.0),
                    BoxCost::SmoothL1 { beta } => (1, beta),
                    BoxCost::Giou => (2, 0.0),
                };
                Self { coding, divisors, cost, beta, ..argument }
            }
        })
    }
}

/// What the way back needs of the way there.
pub(super) struct State {
    /// `[N]` f64: what costs of an image are multiplied by.
    weights: Tensor,
    /// `[N, A]` u32: how often a place counts among hard negatives.
    times: Option<Tensor>,
}

fn table(compared: &Compared, addresses: Vec<u64>) -> Result<Table> {
    fits(compared.loss.op(), compared.loss.predictions(), addresses.len(), Table::CAPACITY)?;
    Ok(Table::new(addresses.into_iter().zip(compared.plan.lengths.iter().copied())))
}

fn levels(compared: &Compared) -> Result<Table> {
    table(compared, compared.levels.iter().map(pointer::<f32>).collect::<Result<_>>()?)
}

/// The loss, and what its gradient needs.
pub(super) fn cost(compared: &Compared) -> Result<(Tensor, State)> {
    let device = of(compared.loss.op(), compared.matches.device())?;
    let levels = levels(compared)?;
    let (images, places) = (compared.plan.images, compared.plan.images * compared.plan.rows());
    let terms = match compared.loss {
        Loss::Focal => places * compared.plan.width,
        Loss::Boxes { .. } | Loss::Centerness | Loss::HardNegatives { .. } => places,
    };
    let parts = terms.clamp(1, PARTS);
    let positives = Output::<u32>::new(device, images)?;
    let weights = Output::<f64>::new(device, images)?;
    let sums = Output::<f64>::new(device, parts)?;
    let (value, value_address) = output(device, DType::F32, ())?;
    let argument = Argument {
        positives: positives.pointer(),
        weights: weights.pointer(),
        sums: sums.pointer(),
        value: value_address,
        parts: parts as u32,
        ..Argument::new(compared)?
    };
    let per_image = Grid::blocks((1, images), BLOCK);
    launch!(device, DENSE_LOSSES, "dense_losses_positives", per_image, argument);
    launch!(device, DENSE_LOSSES, "dense_losses_weights", Grid::over(images), argument);
    let grid = Grid::over(parts);
    let times = match compared.loss {
        Loss::Focal => {
            launch!(device, DENSE_LOSSES, "dense_losses_focal", grid, levels, argument);
            None
        }
        Loss::Boxes { .. } => {
            launch!(device, DENSE_LOSSES, "dense_losses_boxes", grid, levels, argument);
            None
        }
        Loss::Centerness => {
            launch!(device, DENSE_LOSSES, "dense_losses_centerness", grid, levels, argument);
            None
        }
        Loss::HardNegatives { .. } => Some(hard_negatives(device, levels, argument, places)?),
    };
    launch!(device, DENSE_LOSSES, "dense_losses_total", Grid::blocks((1, 1), BLOCK), argument);
    Ok((value, State { weights: weights.into_tensor(images), times }))
}

/// Adds up costs of positives and hard negatives; returns how often each place counts.
fn hard_negatives(
    device: &CudaDevice,
    levels: Table,
    argument: Argument,
    places: usize,
) -> Result<Tensor> {
    let costs = Output::<f32>::new(device, places)?;
    let times = Output::<u32>::new(device, places)?;
    let argument = Argument { costs: costs.pointer(), times: times.pointer(), ..argument };
    let grid = Grid::over(places * WARP);
    launch!(device, DENSE_LOSSES, "dense_losses_cross_entropy", grid, levels, argument);
    let grid = Grid::blocks((1, argument.images as usize), SELECT_THREADS);
    launch!(device, DENSE_LOSSES, "dense_losses_choose", grid, argument);
    let grid = Grid::over(argument.parts as usize);
    launch!(device, DENSE_LOSSES, "dense_losses_chosen", grid, argument);
    Ok(times.into_tensor(places))
}

/// The gradients of the levels, of one of the loss.
pub(super) fn slopes(
    compared: &Compared,
    state: &State,
    gradient: &Tensor,
) -> Result<Vec<Option<Tensor>>> {
    check_f32(gradient)?;
    let device = of(compared.loss.op(), gradient.device())?;
    let made = compared.levels.iter().map(|level| output(device, DType::F32, level.shape()));
    let (gradients, addresses): (Vec<_>, Vec<_>) =
        made.collect::<Result<Vec<_>>>()?.into_iter().unzip();
    let (levels, outs) = (levels(compared)?, table(compared, addresses)?);
    point!(gradient: f32);
    let argument = Argument {
        gradient,
        weights: pointer::<f64>(&state.weights)?,
        times: state.times.as_ref().map(pointer::<u32>).transpose()?.unwrap_or(0),
        ..Argument::new(compared)?
    };
    let places = compared.plan.images * compared.plan.rows();
    let (kernel, threads) = match compared.loss {
        Loss::Focal => ("dense_losses_focal_back", places * compared.plan.width),
        Loss::Boxes { .. } => ("dense_losses_boxes_back", places),
        Loss::Centerness => ("dense_losses_centerness_back", places),
        Loss::HardNegatives { .. } => ("dense_losses_chosen_back", places * WARP),
    };
    launch!(device, DENSE_LOSSES, kernel, Grid::over(threads), levels, outs, argument);
    Ok(gradients.into_iter().map(Some).collect())
}
