//! Batch norm on CUDA, there and back; see `kernel.cu`.

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{CudaDevice, DType, Tensor};

use super::OP;
use crate::error::Result;
use crate::ops::support::activation::Activation;
use crate::ops::support::cuda::{
    BATCH_NORM, Grid, Output, check_f32, column_sums, launch, of, output, part_of_rows, pointer,
    total_of_parts,
};

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Norm {
    input: u64,
    gradient: u64,
    residual: u64,
    out: u64,
    mean: u64,
    variance: u64,
    weight: u64,
    bias: u64,
    sums: u64,
    factors: u64,
    rows: u64,
    eps: f64,
    channels: u32,
    part: u32,
    parts: u32,
    relu: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for Norm {}

impl Norm {
    /// For values `[rows, channels]`.
    fn new(rows: usize, channels: usize) -> Self {
        let part = part_of_rows(rows);
        Self {
            rows: rows as u64,
            channels: channels as u32,
            part: part as u32,
            parts: rows.div_ceil(part) as u32,
            ..Self::default()
        }
    }

    /// The sums over all rows that a kernel makes for parts of them.
    fn sums(self, device: &CudaDevice, kernel: &'static str) -> Result<Output<f32>> {
        let (parts, channels) = (self.parts as usize, self.channels as usize);
        let sums = Output::<f32>::new(device, parts * channels)?;
        let argument = Self { sums: sums.pointer(), ..self };
        launch!(device, BATCH_NORM, kernel, Grid::over(parts * channels), argument);
        total_of_parts(device, sums.pointer(), parts, channels)
    }

    /// Divides sums by the number of rows.
    fn mean(self, device: &CudaDevice, sums: &Output<f32>) -> Result<Tensor> {
        let channels = self.channels as usize;
        let (tensor, means) = output(device, DType::F32, channels)?;
        let (grid, sums) = (Grid::over(channels), sums.pointer());
        launch!(
            device,
            BATCH_NORM,
            "batch_norm_divide",
            grid,
            sums,
            means,
            self.rows,
            self.channels,
        );
        Ok(tensor)
    }
}

/// Output, mean and variance.
pub(super) fn run(
    input: &Tensor,
    [weight, bias]: [&Tensor; 2],
    residual: Option<&Tensor>,
    activation: Activation,
    eps: f64,
) -> Result<[Tensor; 3]> {
    let device = of(OP, input.device())?;
    let channels = weight.elem_count();
    let [input, weight, bias] = [input.contiguous()?, weight.contiguous()?, bias.contiguous()?];
    let residual = residual.map(Tensor::contiguous).transpose()?;
    let rows = input.elem_count() / channels;
    let address = pointer::<f32>(&input)?;
    let norm = Norm { input: address, ..Norm::new(rows, channels) };
    let mean = norm.mean(device, &column_sums(device, address, rows, channels)?)?;
    let norm = Norm { mean: pointer::<f32>(&mean)?, ..norm };
    let variance = norm.mean(device, &norm.sums(device, "batch_norm_squares")?)?;
    let factors = Output::<f32>::new(device, 2 * channels)?;
    let (tensor, out) = output(device, DType::F32, input.shape())?;
    let norm = Norm {
        variance: pointer::<f32>(&variance)?,
        weight: pointer::<f32>(&weight)?,
        bias: pointer::<f32>(&bias)?,
        residual: residual.as_ref().map(pointer::<f32>).transpose()?.unwrap_or(0),
        factors: factors.pointer(),
        out,
        eps,
        relu: u32::from(activation == Activation::Relu),
        ..norm
    };
    launch!(device, BATCH_NORM, "batch_norm_factors", Grid::over(channels), norm);
    launch!(device, BATCH_NORM, "batch_norm_apply", Grid::over(rows * channels), norm);
    Ok([tensor, mean, variance])
}

/// What the gradients of a norm depend on besides its output's.
pub(super) struct Known<'a> {
    pub input: &'a Tensor,
    pub weight: &'a Tensor,
    pub mean: &'a Tensor,
    pub variance: &'a Tensor,
    pub eps: f64,
}

/// Gradients of input, if wanted, weight and bias.
pub(super) fn backward(
    gradient: &Tensor,
    known: &Known<'_>,
    input_wanted: bool,
) -> Result<[Option<Tensor>; 3]> {
    check_f32(gradient)?;
    let device = of(OP, gradient.device())?;
    let channels = known.mean.elem_count();
    let (input, weight) = (known.input.contiguous()?, known.weight.contiguous()?);
    let rows = input.elem_count() / channels;
    let address = pointer::<f32>(gradient)?;
    let of_bias = column_sums(device, address, rows, channels)?;
    let norm = Norm {
        input: pointer::<f32>(&input)?,
        gradient: address,
        mean: pointer::<f32>(known.mean)?,
        variance: pointer::<f32>(known.variance)?,
        weight: pointer::<f32>(&weight)?,
        bias: of_bias.pointer(),
        eps: known.eps,
        ..Norm::new(rows, channels)
    };
    let products = norm.sums(device, "batch_norm_products")?;
    let factors = Output::<f32>::new(device, 3 * channels)?;
    let (of_weight, out) = output(device, DType::F32, channels)?;
    let norm = Norm { sums: products.pointer(), factors: factors.pointer(), out, ..norm };
    launch!(device, BATCH_NORM, "batch_norm_back_factors", Grid::over(channels), norm);
    let of_input = if input_wanted {
        let (tensor, out) = output(device, DType::F32, input.shape())?;
        let norm = Norm { out, ..norm };
        launch!(device, BATCH_NORM, "batch_norm_back", Grid::over(rows * channels), norm);
        Some(tensor)
    } else {
        None
    };
    Ok([of_input, Some(of_weight), Some(of_bias.into_tensor(channels))])
}
