//! Group norm on CUDA, there and back; see `kernel.cu`.

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Tensor};

use super::plan::Plan;
use super::{Known, Normed, OP};
use crate::error::Result;
use crate::ops::support::activation::Activation;
use crate::ops::support::cuda::{
    GROUP_NORM, Grid, Output, Rows, address, check_f32, for_dtype, launch, of, output, pointer,
};

/// Of a block that adds up; the twin is in kernel.cu.
const THREADS: u32 = 256;

#[repr(C)]
#[derive(Clone, Copy)]
struct Batch {
    input: u64,
    images: u32,
    rows: u32,
    channels: u32,
    groups: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for Batch {}

impl Batch {
    fn new(input: u64, plan: &Plan) -> Self {
        Self {
            input,
            images: plan.images as u32,
            rows: plan.rows as u32,
            channels: plan.channels as u32,
            groups: plan.groups as u32,
        }
    }
}

/// A block for each group of each image.
fn per_group(plan: &Plan) -> Grid {
    Grid::blocks((plan.images * plan.groups, 1), THREADS)
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Norm {
    batch: Batch,
    pixels: Rows,
    out: u64,
    weight: u64,
    bias: u64,
    mean: u64,
    inverse: u64,
    eps: f64,
    activation: u32,
    unused: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for Norm {}

pub(super) fn run(
    input: &Tensor,
    plan: &Plan,
    [weight, bias]: [&Tensor; 2],
    activation: Activation,
    eps: f64,
) -> Result<Normed> {
    let device = of(OP, input.device())?;
    let dtype = input.dtype();
    let [input, weight, bias] = [input.contiguous()?, weight.contiguous()?, bias.contiguous()?];
    let of_groups = (plan.images, plan.groups);
    let (mean, mean_at) = output(device, DType::F32, of_groups)?;
    let (inverse, inverse_at) = output(device, DType::F32, of_groups)?;
    let (tensor, out) = output(device, dtype, input.shape())?;
    let input = address(&input)?;
    let pixels = Rows::new(plan.images * plan.rows, plan.channels, &[input, out]);
    let norm = Norm {
        batch: Batch::new(input, plan),
        pixels,
        out,
        weight: pointer::<f32>(&weight)?,
        bias: pointer::<f32>(&bias)?,
        mean: mean_at,
        inverse: inverse_at,
        eps,
        activation: activation.code(),
        unused: 0,
    };
    let statistics = for_dtype!("group_norm_statistics", dtype);
    launch!(device, GROUP_NORM, statistics, per_group(plan), norm);
    launch!(device, GROUP_NORM, for_dtype!("group_norm_apply", dtype), pixels.grid(), norm);
    Ok(Normed { output: tensor, statistics: [mean, inverse] })
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Back {
    batch: Batch,
    gradient: u64,
    weight: u64,
    mean: u64,
    inverse: u64,
    sums: u64,
    factors: u64,
    of_weight: u64,
    of_bias: u64,
    of_input: u64,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for Back {}

/// Gradients of input, if wanted, weight and bias.
pub(super) fn backward(
    gradient: &Tensor,
    known: &Known,
    input_wanted: bool,
) -> Result<[Option<Tensor>; 3]> {
    check_f32(gradient)?;
    let device = of(OP, gradient.device())?;
    let Plan { images, channels, groups, .. } = known.plan;
    let (input, weight) = (known.input.contiguous()?, known.weight.contiguous()?);
    let sums = Output::<f32>::new(device, 2 * images * channels)?;
    let factors = Output::<f32>::new(device, 2 * images * groups)?;
    let (of_weight, of_weight_at) = output(device, DType::F32, channels)?;
    let (of_bias, of_bias_at) = output(device, DType::F32, channels)?;
    let back = Back {
        batch: Batch::new(pointer::<f32>(&input)?, &known.plan),
        gradient: pointer::<f32>(gradient)?,
        weight: pointer::<f32>(&weight)?,
        mean: pointer::<f32>(&known.statistics[0])?,
        inverse: pointer::<f32>(&known.statistics[1])?,
        sums: sums.pointer(),
        factors: factors.pointer(),
        of_weight: of_weight_at,
        of_bias: of_bias_at,
        of_input: 0,
    };
    launch!(device, GROUP_NORM, "group_norm_products", per_group(&known.plan), back);
    launch!(device, GROUP_NORM, "group_norm_parameters", Grid::over(channels), back);
    let of_input = if input_wanted {
        let (tensor, of_input) = output(device, DType::F32, input.shape())?;
        let back = Back { of_input, ..back };
        launch!(device, GROUP_NORM, "group_norm_back", Grid::over(input.elem_count()), back);
        Some(tensor)
    } else {
        None
    };
    Ok([of_input, Some(of_weight), Some(of_bias)])
}
