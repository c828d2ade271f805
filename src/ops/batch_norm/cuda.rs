//! Batch norm on CUDA, there and back; see `kernel.cu`.

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{CudaDevice, DType, Tensor};

use super::plan::Blend;
use super::{Known, OP, Plan};
use crate::error::Result;
use crate::ops::support::activation::Activation;
use crate::ops::support::cuda::{
    BATCH_NORM, Grid, Output, check_f32, launch, of, output, part_of_rows, pointer,
};

#[repr(C)]
#[derive(Clone, Copy)]
struct Batch {
    input: u64,
    counts: u64,
    rows: u64,
    channels: u32,
    images: u32,
    slots: u32,
    plane: u32,
    part: u32,
    parts: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for Batch {}

impl Batch {
    /// For values at an address.
    fn new(input: u64, plan: &Plan) -> Result<Self> {
        let part = part_of_rows(plan.rows);
        Ok(Self {
            input,
            counts: plan.counts.as_ref().map(pointer::<u32>).transpose()?.unwrap_or(0),
            rows: plan.rows as u64,
            channels: plan.channels as u32,
            images: plan.counts.as_ref().map_or(0, Tensor::elem_count) as u32,
            slots: plan.slots as u32,
            plane: plan.plane as u32,
            part: part as u32,
            parts: plan.rows.div_ceil(part) as u32,
        })
    }

    /// A sum for each part of the rows and channel.
    fn sums(&self) -> usize {
        self.parts as usize * self.channels as usize
    }

    fn values(&self) -> usize {
        self.rows as usize * self.channels as usize
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Norm {
    batch: Batch,
    residual: u64,
    out: u64,
    weight: u64,
    bias: u64,
    mean: u64,
    variance: u64,
    sums: u64,
    factors: u64,
    eps: f64,
    activation: u32,
    unused: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for Norm {}

/// Output, mean and variance.
pub(super) fn run(
    input: &Tensor,
    plan: &Plan,
    [weight, bias]: [&Tensor; 2],
    residual: Option<&Tensor>,
    activation: Activation,
    eps: f64,
) -> Result<[Tensor; 3]> {
    let device = of(OP, input.device())?;
    let channels = plan.channels;
    let [input, weight, bias] = [input.contiguous()?, weight.contiguous()?, bias.contiguous()?];
    let residual = residual.map(Tensor::contiguous).transpose()?;
    let batch = Batch::new(pointer::<f32>(&input)?, plan)?;
    let sums = Output::<f32>::new(device, batch.sums())?;
    let factors = Output::<f32>::new(device, 2 * channels)?;
    let (mean, mean_at) = output(device, DType::F32, channels)?;
    let (variance, variance_at) = output(device, DType::F32, channels)?;
    let (tensor, out) = output(device, DType::F32, input.shape())?;
    let norm = Norm {
        batch,
        residual: residual.as_ref().map(pointer::<f32>).transpose()?.unwrap_or(0),
        out,
        weight: pointer::<f32>(&weight)?,
        bias: pointer::<f32>(&bias)?,
        mean: mean_at,
        variance: variance_at,
        sums: sums.pointer(),
        factors: factors.pointer(),
        eps,
        activation: activation.code(),
        unused: 0,
    };
    for (kernel, threads) in [
        ("batch_norm_sums", batch.sums()),
        ("batch_norm_means", channels),
        ("batch_norm_squares", batch.sums()),
        ("batch_norm_factors", channels),
        ("batch_norm_apply", batch.values()),
    ] {
        launch!(device, BATCH_NORM, kernel, Grid::over(threads), norm);
    }
    Ok([tensor, mean, variance])
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Back {
    batch: Batch,
    gradient: u64,
    weight: u64,
    mean: u64,
    variance: u64,
    sums: u64,
    factors: u64,
    of_weight: u64,
    of_bias: u64,
    of_input: u64,
    eps: f64,
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
    let channels = known.plan.channels;
    let (input, weight) = (known.input.contiguous()?, known.weight.contiguous()?);
    let batch = Batch::new(pointer::<f32>(&input)?, &known.plan)?;
    let sums = Output::<f32>::new(device, 2 * batch.sums())?;
    let factors = Output::<f32>::new(device, 3 * channels)?;
    let (of_weight, of_weight_at) = output(device, DType::F32, channels)?;
    let (of_bias, of_bias_at) = output(device, DType::F32, channels)?;
    let back = Back {
        batch,
        gradient: pointer::<f32>(gradient)?,
        weight: pointer::<f32>(&weight)?,
        mean: pointer::<f32>(&known.mean)?,
        variance: pointer::<f32>(&known.variance)?,
        sums: sums.pointer(),
        factors: factors.pointer(),
        of_weight: of_weight_at,
        of_bias: of_bias_at,
        of_input: 0,
        eps: known.eps,
    };
    launch!(device, BATCH_NORM, "batch_norm_products", Grid::over(batch.sums()), back);
    launch!(device, BATCH_NORM, "batch_norm_back_factors", Grid::over(channels), back);
    let of_input = if input_wanted { Some(of_input(device, back, &input)?) } else { None };
    Ok([of_input, Some(of_weight), Some(of_bias)])
}

fn of_input(device: &CudaDevice, back: Back, input: &Tensor) -> Result<Tensor> {
    let (tensor, of_input) = output(device, DType::F32, input.shape())?;
    let back = Back { of_input, ..back };
    launch!(device, BATCH_NORM, "batch_norm_back", Grid::over(back.batch.values()), back);
    Ok(tensor)
}

/// The values of filled rows, and zero in the others; `values` is contiguous.
pub(super) fn filled(values: &Tensor, plan: &Plan) -> Result<Tensor> {
    check_f32(values)?;
    let device = of(OP, values.device())?;
    let batch = Batch::new(pointer::<f32>(values)?, plan)?;
    let (tensor, out) = output(device, DType::F32, values.shape())?;
    launch!(device, BATCH_NORM, "batch_norm_filled", Grid::over(batch.values()), batch, out);
    Ok(tensor)
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Move {
    batch: Batch,
    mean: u64,
    variance: u64,
    running_mean: u64,
    running_variance: u64,
    keep: f32,
    share: f32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for Move {}

/// Moves contiguous running statistics towards those of a batch.
pub(super) fn move_running(
    running: [&Tensor; 2],
    batch: [&Tensor; 2],
    plan: &Plan,
    Blend { keep, share }: Blend,
) -> Result<()> {
    let device = of(OP, running[0].device())?;
    let argument = Move {
        // The values themselves are not read.
        batch: Batch::new(0, plan)?,
        mean: pointer::<f32>(batch[0])?,
        variance: pointer::<f32>(batch[1])?,
        running_mean: pointer::<f32>(running[0])?,
        running_variance: pointer::<f32>(running[1])?,
        keep,
        share,
    };
    launch!(device, BATCH_NORM, "batch_norm_move", Grid::over(plan.channels), argument);
    Ok(())
}
