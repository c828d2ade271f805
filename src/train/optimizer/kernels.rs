//! The passes over memory that optimisers and averages are made of.
//!
//! On the CPU each is one pass in place, on all threads; elements don't depend on each other, so results don't depend on
//! the number of threads. On CUDA each is one launch in place. On other devices the same formulas are made of candle's
//! operations.
//!
//! Each pass can depend on a [`Verdict`](crate::train::Verdict): then it is made if the update goes on, and a gradient is
//! multiplied by the verdict's factor, in f64 as the factors of the host are.

use candle_core::{CpuStorage, DType, Device, InplaceOp3, Layout, Tensor};
use rayon::prelude::*;

use crate::error::{Error, Result};
#[cfg(feature = "cuda")]
use crate::ops::support::cuda::Update;
use crate::train::verdict::{Approval, Consent};

/// Elements per task.
const CHUNK: usize = 1 << 14;

/// `x ← keep · x + by_a · a + by_b · b`, in place; all f32, contiguous, of one shape. A factor of the approval is one on `a`.
///
/// # Errors
/// [`Error::Shape`] and [`Error::DType`] for others; those of candle.
pub fn combine(
    x: &Tensor,
    keep: f64,
    [a, b]: [(&Tensor, f64); 2],
    approval: Approval<'_>,
) -> Result<()> {
    check(x, a.0, b.0)?;
    let (keep_, by_b) = (keep as f32, b.1 as f32);
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        let update = Update::Combine { keep: keep_, by_a: a.1, by_b };
        return update.apply(x, a.0, b.0, approval.condition()?);
    }
    let Some(factor) = given(approval)? else { return Ok(()) };
    let by_a = a.1 * factor;
    if x.device().is_cpu() {
        let by_a = by_a as f32;
        return zip(x, a.0, b.0, |x, a, b| keep_ * x + by_a * a + by_b * b);
    }
    store(x, (((x * keep)? + (a.0 * by_a)?)? + (b.0 * b.1)?)?)
}

/// `x ← keep · x + by · a`, in place. A factor of the approval is one on `a`.
///
/// # Errors
/// As [`combine`].
pub fn blend(x: &Tensor, keep: f64, (a, by): (&Tensor, f64), approval: Approval<'_>) -> Result<()> {
    check(x, a, a)?;
    let keep_ = keep as f32;
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        return Update::Blend { keep: keep_, by }.apply(x, a, a, approval.condition()?);
    }
    let Some(factor) = given(approval)? else { return Ok(()) };
    let by = by * factor;
    if x.device().is_cpu() {
        let by = by as f32;
        return zip(x, a, a, |x, a, _| keep_ * x + by * a);
    }
    store(x, ((x * keep)? + (a * by)?)?)
}

/// `x ← keep · x + (1 − keep) · (factor · a)²`, in place. A factor of the approval is one on `a`.
///
/// # Errors
/// As [`combine`].
pub fn average_squares(
    x: &Tensor,
    keep: f64,
    (a, factor): (&Tensor, f64),
    approval: Approval<'_>,
) -> Result<()> {
    check(x, a, a)?;
    let (keep_, share) = (keep as f32, (1.0 - keep) as f32);
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        let update = Update::AverageSquares { keep: keep_, share, factor };
        return update.apply(x, a, a, approval.condition()?);
    }
    let Some(scale) = given(approval)? else { return Ok(()) };
    let factor = factor * scale;
    if x.device().is_cpu() {
        let factor = factor as f32;
        return zip(x, a, a, |x, a, _| keep_ * x + share * (factor * a) * (factor * a));
    }
    store(x, ((x * keep)? + ((a * factor)?.sqr()? * (1.0 - keep))?)?)
}

/// The numbers of a step by the mean of gradients and of their squares.
#[derive(Debug, Clone, Copy)]
pub struct ByMoments {
    /// Share of the tensor that stays.
    pub keep: f64,
    /// Factor on the direction.
    pub rate: f64,
    /// Factor on the mean square.
    pub correction: f64,
    /// Added to the root of the mean square.
    pub eps: f64,
}

/// `x ← keep · x − rate · mean / (√(squares · correction) + eps)`, in place.
///
/// # Errors
/// As [`combine`].
pub fn step_by_moments(
    x: &Tensor,
    [mean, squares]: [&Tensor; 2],
    ByMoments { keep, rate, correction, eps }: ByMoments,
    approval: Approval<'_>,
) -> Result<()> {
    check(x, mean, squares)?;
    let (keep_, rate_, correction_, eps_) =
        (keep as f32, rate as f32, correction as f32, eps as f32);
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        let update =
            Update::StepByMoments { keep: keep_, rate: rate_, correction: correction_, eps: eps_ };
        return update.apply(x, mean, squares, approval.condition()?);
    }
    if given(approval)?.is_none() {
        return Ok(());
    }
    if x.device().is_cpu() {
        return zip(x, mean, squares, |x, mean, squares| {
            keep_ * x - rate_ * mean / ((squares * correction_).sqrt() + eps_)
        });
    }
    let divisor = ((squares * correction)?.sqrt()? + eps)?;
    store(x, ((x * keep)? - ((mean / divisor)? * rate)?)?)
}

/// `x ← before`, in place, unless the update goes on.
///
/// # Errors
/// As [`combine`].
pub fn restore(x: &Tensor, before: &Tensor, approval: Approval<'_>) -> Result<()> {
    check(x, before, before)?;
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        return Update::Restore.apply(x, before, before, approval.condition()?);
    }
    if given(approval)?.is_some() {
        return Ok(());
    }
    overwrite(x, before)
}

/// The factor of an update that goes on, for devices whose passes the host decides about.
fn given(approval: Approval<'_>) -> Result<Option<f64>> {
    let Consent { goes_on, factor } = approval.consent()?;
    Ok(goes_on.then_some(factor))
}

/// Overwrites the values of a tensor that is not on the CPU.
fn store(x: &Tensor, values: Tensor) -> Result<()> {
    Ok(x.flatten_all()?.slice_set(&values.flatten_all()?, 0, 0)?)
}

fn zip(
    x: &Tensor,
    a: &Tensor,
    b: &Tensor,
    formula: impl Fn(f32, f32, f32) -> f32 + Sync,
) -> Result<()> {
    Ok(x.inplace_op3(a, b, &Zip(formula))?)
}

fn check(x: &Tensor, a: &Tensor, b: &Tensor) -> Result<()> {
    for (argument, tensor) in [("x", x), ("a", a), ("b", b)] {
        if tensor.dims() != x.dims() || !tensor.is_contiguous() {
            return Err(Error::Shape {
                op: "optimizer",
                argument,
                expected: format!("{:?}, contiguous", x.dims()),
                found: tensor.dims().to_vec(),
            });
        }
        if tensor.dtype() != DType::F32 {
            let found = tensor.dtype();
            return Err(Error::DType { op: "optimizer", argument, expected: DType::F32, found });
        }
    }
    Ok(())
}

struct Zip<F>(F);

impl<F: Fn(f32, f32, f32) -> f32 + Sync> InplaceOp3 for Zip<F> {
    fn name(&self) -> &'static str {
        "optimizer"
    }

    fn cpu_fwd(
        &self,
        x: &mut CpuStorage,
        x_layout: &Layout,
        a: &CpuStorage,
        a_layout: &Layout,
        b: &CpuStorage,
        b_layout: &Layout,
    ) -> candle_core::Result<()> {
        let CpuStorage::F32(x) = x else {
            return Err(candle_core::Error::Msg("the target is not f32".to_owned()));
        };
        let part = |layout: &Layout| {
            layout.start_offset()..layout.start_offset() + layout.shape().elem_count()
        };
        let x = &mut x[part(x_layout)];
        let a = &a.as_slice::<f32>()?[part(a_layout)];
        let b = &b.as_slice::<f32>()?[part(b_layout)];
        let chunks = x.par_chunks_mut(CHUNK).zip(a.par_chunks(CHUNK)).zip(b.par_chunks(CHUNK));
        chunks.for_each(|((x, a), b)| {
            for ((x, a), b) in x.iter_mut().zip(a).zip(b) {
                *x = self.0(*x, *a, *b);
            }
        });
        Ok(())
    }
}

/// A tensor of zeros for the state of a parameter.
pub fn state_like(parameter: &Tensor) -> Result<Tensor> {
    Ok(Tensor::zeros(parameter.shape(), DType::F32, parameter.device())?)
}

/// A copy on the same device that shares nothing with the original.
pub fn copy_of(tensor: &Tensor) -> Result<Tensor> {
    Ok(tensor.detach().copy()?)
}

/// Copies values into a tensor in place, from any device.
///
/// # Errors
/// [`Error::Shape`] when shapes differ; those of candle.
pub fn overwrite(x: &Tensor, values: &Tensor) -> Result<()> {
    if values.dims() != x.dims() {
        return Err(Error::Shape {
            op: "optimizer",
            argument: "values",
            expected: format!("{:?}", x.dims()),
            found: values.dims().to_vec(),
        });
    }
    let values = values.to_device(x.device())?.to_dtype(DType::F32)?.contiguous()?;
    match x.device() {
        Device::Cpu => {
            check(x, &values, &values)?;
            zip(x, &values, &values, |_, value, _| value)
        }
        _ => store(x, values),
    }
}
