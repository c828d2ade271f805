//! The passes over memory that optimisers and averages are made of.
//!
//! On the CPU each is one pass in place, on all threads; elements don't depend on each other, so results don't depend on
//! the number of threads. On CUDA each is one launch in place. On other devices the same formulas are made of candle's
//! operations.

use candle_core::{CpuStorage, DType, Device, InplaceOp3, Layout, Tensor};
use rayon::prelude::*;

use crate::error::{Error, Result};
#[cfg(feature = "cuda")]
use crate::ops::support::cuda::Update;

/// Elements per task.
const CHUNK: usize = 1 << 14;

/// `x ← keep · x + by_a · a + by_b · b`, in place; all f32, contiguous, of one shape.
///
/// # Errors
/// [`Error::Shape`] and [`Error::DType`] for others; those of candle.
pub fn combine(x: &Tensor, keep: f64, [a, b]: [(&Tensor, f64); 2]) -> Result<()> {
    let (keep_, by_a, by_b) = (keep as f32, a.1 as f32, b.1 as f32);
    if x.device().is_cpu() {
        return zip(x, a.0, b.0, |x, a, b| keep_ * x + by_a * a + by_b * b);
    }
    check(x, a.0, b.0)?;
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        return Update::Combine { keep: keep_, by_a, by_b }.apply(x, a.0, b.0);
    }
    store(x, (((x * keep)? + (a.0 * a.1)?)? + (b.0 * b.1)?)?)
}

/// `x ← keep · x + by · a`, in place.
///
/// # Errors
/// As [`combine`].
pub fn blend(x: &Tensor, keep: f64, (a, by): (&Tensor, f64)) -> Result<()> {
    let (keep_, by_) = (keep as f32, by as f32);
    if x.device().is_cpu() {
        return zip(x, a, a, |x, a, _| keep_ * x + by_ * a);
    }
    check(x, a, a)?;
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        return Update::Blend { keep: keep_, by: by_ }.apply(x, a, a);
    }
    store(x, ((x * keep)? + (a * by)?)?)
}

/// `x ← keep · x + (1 − keep) · (factor · a)²`, in place.
///
/// # Errors
/// As [`combine`].
pub fn average_squares(x: &Tensor, keep: f64, a: &Tensor, factor: f64) -> Result<()> {
    let (keep_, factor_) = (keep as f32, factor as f32);
    let share = (1.0 - keep) as f32;
    if x.device().is_cpu() {
        return zip(x, a, a, |x, a, _| keep_ * x + share * (factor_ * a) * (factor_ * a));
    }
    check(x, a, a)?;
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        return Update::AverageSquares { keep: keep_, share, factor: factor_ }.apply(x, a, a);
    }
    store(x, ((x * keep)? + ((a * factor)?.sqr()? * (1.0 - keep))?)?)
}

/// `x ← keep · x − rate · mean / (√(squares · correction) + eps)`, in place.
///
/// # Errors
/// As [`combine`].
pub fn step_by_moments(
    x: &Tensor,
    [mean, squares]: [&Tensor; 2],
    keep: f64,
    rate: f64,
    correction: f64,
    eps: f64,
) -> Result<()> {
    let (keep_, rate_, correction_, eps_) =
        (keep as f32, rate as f32, correction as f32, eps as f32);
    if x.device().is_cpu() {
        return zip(x, mean, squares, |x, mean, squares| {
            keep_ * x - rate_ * mean / ((squares * correction_).sqrt() + eps_)
        });
    }
    check(x, mean, squares)?;
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        let update =
            Update::StepByMoments { keep: keep_, rate: rate_, correction: correction_, eps: eps_ };
        return update.apply(x, mean, squares);
    }
    let divisor = ((squares * correction)?.sqrt()? + eps)?;
    store(x, ((x * keep)? - ((mean / divisor)? * rate)?)?)
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
    check(x, a, b)?;
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
        Device::Cpu => zip(x, &values, &values, |_, value, _| value),
        _ => store(x, values),
    }
}
