//! Passes over whole tensors of f32 that the gradients of several ops and the optimisers need; see `support/kernel.cu`.
//!
//! Factors travel as arguments. Nothing copies or waits, and no result depends on the order in which threads run.

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{CudaDevice, DType, Shape, Tensor};

use super::{Grid, Output, SUPPORT, launch, of, output, pointer};
use crate::error::Result;
use crate::ops::support::activation::Activation;
use crate::ops::support::check::argument;

const OP: &str = "gradient";

/// Requires a gradient of f32: training computes in it.
pub(crate) fn check_f32(gradient: &Tensor) -> Result<()> {
    argument(OP, "gradient", gradient).dtype(DType::F32).map(|_| ())
}

/// The gradient in front of an activation, from that behind it and what its slope depends on; contiguous tensors.
pub(crate) fn through_activation(
    activation: Activation,
    known: &Tensor,
    gradient: &Tensor,
) -> Result<Tensor> {
    check_f32(gradient)?;
    let device = of(OP, gradient.device())?;
    let n = gradient.elem_count();
    let (tensor, out) = output(device, DType::F32, gradient.shape())?;
    let (known, gradient) = (pointer::<f32>(known)?, pointer::<f32>(gradient)?);
    let (grid, code, kernel) = (Grid::over(n), activation.code(), "support_through_activation");
    launch!(device, SUPPORT, kernel, grid, known, gradient, out, n as u64, code);
    Ok(tensor)
}

/// An activation by itself, of f32.
pub(crate) fn activate(activation: Activation, input: &Tensor) -> Result<Tensor> {
    let device = of(OP, input.device())?;
    let n = input.elem_count();
    let (tensor, out) = output(device, DType::F32, input.shape())?;
    let input = input.contiguous()?;
    let (grid, code) = (Grid::over(n), activation.code());
    launch!(
        device,
        SUPPORT,
        "support_activate",
        grid,
        pointer::<f32>(&input)?,
        out,
        n as u64,
        code
    );
    Ok(tensor)
}

/// Values in another order of axes.
pub(crate) struct Permutation {
    /// Of the result.
    pub dims: [usize; 3],
    /// Of the values, along each axis of the result.
    pub strides: [usize; 3],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Permute {
    values: u64,
    scale: u64,
    out: u64,
    strides: [u64; 3],
    dims: [u32; 3],
    unused: u32,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in support/kernel.cu.
unsafe impl DeviceRepr for Permute {}

impl Permutation {
    /// Permutes the f32 values at an address to a tensor of this shape; with `scale`, times one factor for each index of
    /// the first axis.
    pub fn apply(
        &self,
        device: &CudaDevice,
        values: u64,
        scale: Option<&Tensor>,
        shape: impl Into<Shape>,
    ) -> Result<Tensor> {
        let (tensor, out) = output(device, DType::F32, shape)?;
        let argument = Permute {
            values,
            scale: scale.map(pointer::<f32>).transpose()?.unwrap_or(0),
            out,
            strides: self.strides.map(|stride| stride as u64),
            dims: self.dims.map(|dim| dim as u32),
            unused: 0,
        };
        let grid = Grid::over(self.dims.iter().product());
        launch!(device, SUPPORT, "support_permute", grid, argument);
        Ok(tensor)
    }
}

/// Rows that a thread adds up where there are `rows` in all: as many as there are parts then.
pub(crate) fn part_of_rows(rows: usize) -> usize {
    rows.isqrt().max(1)
}

/// The sums of the columns of a matrix of f32 at an address, `[columns]`: in two launches, of parts of the rows and of the
/// parts' sums.
pub(crate) fn column_sums(
    device: &CudaDevice,
    values: u64,
    rows: usize,
    columns: usize,
) -> Result<Output<f32>> {
    let part = part_of_rows(rows);
    let parts = rows.div_ceil(part);
    let sums = Output::<f32>::new(device, parts * columns)?;
    sum_parts(device, values, (rows, columns), part, sums.pointer())?;
    total_of_parts(device, sums.pointer(), parts, columns)
}

/// Adds up the rows of each part.
fn sum_parts(
    device: &CudaDevice,
    values: u64,
    (rows, columns): (usize, usize),
    part: usize,
    sums: u64,
) -> Result<()> {
    let n = rows.div_ceil(part) * columns;
    launch!(
        device,
        SUPPORT,
        "support_column_sums",
        Grid::over(n),
        values,
        sums,
        rows as u64,
        columns as u32,
        part as u32,
        n as u64,
    );
    Ok(())
}

/// The sum of what parts of rows have been summed to, `[parts, columns]` at an address.
fn total_of_parts(
    device: &CudaDevice,
    sums: u64,
    parts: usize,
    columns: usize,
) -> Result<Output<f32>> {
    let total = Output::<f32>::new(device, columns)?;
    // Without parts, the sums are those of one that is empty.
    launch!(
        device,
        SUPPORT,
        "support_column_sums",
        Grid::over(columns),
        sums,
        total.pointer(),
        parts as u64,
        columns as u32,
        parts.max(1) as u32,
        columns as u64,
    );
    Ok(total)
}

/// The sum of the squares of each tensor, `[n]` f64.
pub(crate) fn squares(device: &CudaDevice, tensors: &[Tensor]) -> Result<Tensor> {
    /// Sums of a tensor before they are added up.
    const THREADS: usize = 4096;
    let totals = Output::<f64>::new(device, tensors.len())?;
    let parts = Output::<f64>::new(device, THREADS)?;
    for (place, tensor) in tensors.iter().enumerate() {
        check_f32(tensor)?;
        let n = tensor.elem_count();
        let threads = n.clamp(1, THREADS);
        let (values, sums) = (pointer::<f32>(tensor)?, parts.pointer());
        let grid = Grid::over(threads);
        launch!(device, SUPPORT, "support_squares", grid, values, n as u64, sums, threads as u32);
        let total = totals.pointer() + (place * size_of::<f64>()) as u64;
        let grid = Grid::blocks((1, 1), 256);
        launch!(device, SUPPORT, "support_total", grid, sums, threads as u32, total);
    }
    Ok(totals.into_tensor(tensors.len()))
}

/// What [`judge`] is told of an update; the twin is in kernel.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct Judgement {
    squares: u64,
    losses: u64,
    before: u64,
    verdict: u64,
    factor: f64,
    limit: f64,
    gradients: u32,
    losses_count: u32,
}

// SAFETY: plain numbers in C's order, without padding.
unsafe impl DeviceRepr for Judgement {}

/// Judges an update, in one launch: `[3 + losses]` f64, whether it is made (1 or 0), what its gradients are multiplied by,
/// their length together, and its losses.
///
/// `squares` is that of [`squares`], `losses` f32; `factor` is what the gradients are multiplied by where they are not
/// longer than `limit`; `before` is the verdict on the update before.
pub(crate) fn judge(
    squares: &Tensor,
    losses: &Tensor,
    factor: f64,
    limit: f64,
    before: Option<&Tensor>,
) -> Result<Tensor> {
    let device = of(OP, losses.device())?;
    let (gradients, losses_count) = (squares.elem_count(), losses.elem_count());
    let verdict = Output::<f64>::new(device, 3 + losses_count)?;
    let argument = Judgement {
        squares: pointer::<f64>(squares)?,
        losses: pointer::<f32>(losses)?,
        before: before.map(pointer::<f64>).transpose()?.unwrap_or(0),
        verdict: verdict.pointer(),
        factor,
        limit,
        gradients: gradients as u32,
        losses_count: losses_count as u32,
    };
    launch!(device, SUPPORT, "support_judge", Grid::blocks((1, 1), 256), argument);
    Ok(verdict.into_tensor(3 + losses_count))
}

/// Addresses of what an update depends on that the device alone knows, f64: whether it is made, and what its gradient is
/// multiplied by; 0 where it does not. The twin is in kernel.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Condition {
    pub goes_on: u64,
    pub factor: u64,
}

// SAFETY: plain numbers in C's order, without padding.
unsafe impl DeviceRepr for Condition {}

/// A change of a tensor in place, by values of the same shape. `by_a`, `by` and `factor` are multiplied by the factor of the
/// condition.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Update {
    /// `keep · x + by_a · a + by_b · b`.
    Combine { keep: f32, by_a: f64, by_b: f32 },
    /// `keep · x + by · a`.
    Blend { keep: f32, by: f64 },
    /// `keep · x + share · (factor · a)²`.
    AverageSquares { keep: f32, share: f32, factor: f64 },
    /// `keep · x − rate · a / (√(b · correction) + eps)`.
    StepByMoments { keep: f32, rate: f32, correction: f32, eps: f32 },
    /// `a`, if the condition does not hold.
    Restore,
}

impl Update {
    /// Changes `x` in one launch. All tensors are f32, contiguous and of one shape.
    pub fn apply(self, x: &Tensor, a: &Tensor, b: &Tensor, when: Condition) -> Result<()> {
        let device = of("optimizer", x.device())?;
        let n = x.elem_count();
        let (x, a, b) = (pointer::<f32>(x)?, pointer::<f32>(a)?, pointer::<f32>(b)?);
        let (grid, n) = (Grid::over(n), n as u64);
        match self {
            Self::Combine { keep, by_a, by_b } => {
                let kernel = "support_combine";
                launch!(device, SUPPORT, kernel, grid, x, a, b, keep, by_a, by_b, n, when);
            }
            Self::Blend { keep, by } => {
                launch!(device, SUPPORT, "support_blend", grid, x, a, keep, by, n, when);
            }
            Self::AverageSquares { keep, share, factor } => {
                let kernel = "support_average_squares";
                launch!(device, SUPPORT, kernel, grid, x, a, keep, share, factor, n, when);
            }
            Self::StepByMoments { keep, rate, correction, eps } => {
                let kernel = "support_step_by_moments";
                launch!(
                    device, SUPPORT, kernel, grid, x, a, b, keep, rate, correction, eps, n, when
                );
            }
            Self::Restore => {
                launch!(device, SUPPORT, "support_restore", grid, x, a, n, when);
            }
        }
        Ok(())
    }
}
