//! Passes over whole tensors, on all threads.

use candle_core::{Device, Tensor};
use rayon::prelude::*;

use super::memory::Output;
use crate::error::Result;
use crate::ops::support::activation::Activation;
use crate::ops::support::check::with_slice;

/// Values that a task works on.
const CHUNK: usize = 1 << 15;

/// `a + b` of contiguous tensors of one shape.
pub(crate) fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    map2(a, b, |a, b| a + b, |a, b| a.add(b))
}

/// `scale[i] · values[i, ..]`, for values that lie side by side.
pub(crate) fn scale_rows(values: &[f32], scale: &[f32]) -> Vec<f32> {
    let numbers = values.len() / scale.len().max(1);
    let mut out = values.to_vec();
    let rows = out.par_chunks_exact_mut(numbers.max(1)).zip(scale);
    rows.for_each(|(row, scale)| row.iter_mut().for_each(|value| *value *= scale));
    out
}

/// The gradient in front of an activation, from that behind it and the activation's output. ReLU's is 0 at 0.
pub(crate) fn through_activation(
    activation: Activation,
    output: Option<&Tensor>,
    gradient: &Tensor,
) -> Result<Tensor> {
    match (activation, output) {
        #[cfg(feature = "cuda")]
        (Activation::Relu, Some(output)) if gradient.device().is_cuda() => {
            crate::ops::support::cuda::through_relu(output, gradient)
        }
        (Activation::Relu, Some(output)) => map2(
            output,
            gradient,
            |output, gradient| if output > 0.0 { gradient } else { 0.0 },
            |output, gradient| output.gt(0f32)?.to_dtype(gradient.dtype())?.mul(gradient),
        ),
        _ => Ok(gradient.clone()),
    }
}

/// Combines two tensors: on the CPU with `on_cpu`, elsewhere with candle's ops.
fn map2(
    a: &Tensor,
    b: &Tensor,
    on_cpu: impl Fn(f32, f32) -> f32 + Sync,
    elsewhere: impl Fn(&Tensor, &Tensor) -> candle_core::Result<Tensor>,
) -> Result<Tensor> {
    if !matches!(a.device(), Device::Cpu) {
        return Ok(elsewhere(a, b)?);
    }
    let values = with_slice::<f32, _>(a, |a| {
        with_slice::<f32, _>(b, |b| {
            assert_eq!(a.len(), b.len(), "values of two tensors");
            let mut out = Output::<f32>::new(a.len());
            let chunks = out.places().par_chunks_mut(CHUNK);
            // Plain loops over slices, which the compiler makes vectors of.
            chunks.zip(a.par_chunks(CHUNK)).zip(b.par_chunks(CHUNK)).for_each(|((out, a), b)| {
                for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                    out.write(on_cpu(*a, *b));
                }
            });
            // SAFETY: all three have equally many values, so that the chunks cover the output.
            unsafe { out.finish() }
        })
    })??;
    Ok(Tensor::from_vec(values, a.shape(), a.device())?)
}
