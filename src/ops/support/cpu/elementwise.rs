//! Passes over whole tensors, on all threads.

use candle_core::{Device, Tensor};
use rayon::prelude::*;

use super::memory::Output;
use crate::error::Result;
use crate::ops::support::activation::Activation;
use crate::ops::support::check::{unsupported, with_slice};

/// Values that a task works on.
pub(crate) const CHUNK: usize = 1 << 15;

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

/// The gradient in front of an activation, from that behind it and what its slope depends on
/// ([`Activation::gradient_reads`]): the activation's output or input.
pub(crate) fn through_activation(
    activation: Activation,
    known: Option<&Tensor>,
    gradient: &Tensor,
) -> Result<Tensor> {
    let (Some(known), true) = (known, activation != Activation::None) else {
        return Ok(gradient.clone());
    };
    match gradient.device() {
        Device::Cpu => {}
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => {
            return crate::ops::support::cuda::through_activation(activation, known, gradient);
        }
        other => return Err(unsupported("gradients of activations", other)),
    }
    // One loop for each: the compiler makes vectors of them.
    match activation {
        Activation::None => Ok(gradient.clone()),
        Activation::Relu => map2_on_cpu(known, gradient, |y, g| Activation::Relu.back(y, g)),
        Activation::Relu6 => map2_on_cpu(known, gradient, |y, g| Activation::Relu6.back(y, g)),
        Activation::HardSigmoid => {
            map2_on_cpu(known, gradient, |y, g| Activation::HardSigmoid.back(y, g))
        }
        Activation::HardSwish => {
            map2_on_cpu(known, gradient, |x, g| Activation::HardSwish.back(x, g))
        }
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
    map2_on_cpu(a, b, on_cpu)
}

fn map2_on_cpu(a: &Tensor, b: &Tensor, combine: impl Fn(f32, f32) -> f32 + Sync) -> Result<Tensor> {
    let values = with_slice::<f32, _>(a, |a| {
        with_slice::<f32, _>(b, |b| {
            assert_eq!(a.len(), b.len(), "values of two tensors");
            let mut out = Output::<f32>::new(a.len());
            let chunks = out.places().par_chunks_mut(CHUNK);
            // Plain loops over slices, which the compiler makes vectors of.
            chunks.zip(a.par_chunks(CHUNK)).zip(b.par_chunks(CHUNK)).for_each(|((out, a), b)| {
                for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                    out.write(combine(*a, *b));
                }
            });
            // SAFETY: all three have equally many values, so that the chunks cover the output.
            unsafe { out.finish() }
        })
    })??;
    Ok(Tensor::from_vec(values, a.shape(), a.device())?)
}

/// Pixels whose values are added in f32; the sums of such blocks are added in f64.
const PIXELS: usize = 256;

/// Sums over the pixels of each image, `[N, C]` for `[N, P, C]`. `add` gets the index of a pixel among those of all images,
/// and sums to add something to, one for each channel.
pub(crate) fn sum_pixels(
    [images, pixels, channels]: [usize; 3],
    add: impl Fn(usize, &mut [f32]) + Sync,
) -> Vec<f64> {
    let blocks = pixels.div_ceil(PIXELS);
    let parts: Vec<Vec<f32>> = (0..images * blocks)
        .into_par_iter()
        .map(|part| {
            let (image, first) = (part / blocks, part % blocks * PIXELS);
            let mut sums = vec![0f32; channels];
            for pixel in first..pixels.min(first + PIXELS) {
                add(image * pixels + pixel, &mut sums);
            }
            sums
        })
        .collect();
    let mut totals = vec![0f64; images * channels];
    for (part, sums) in parts.into_iter().enumerate() {
        let total = &mut totals[part / blocks * channels..][..channels];
        total.iter_mut().zip(sums).for_each(|(total, sum)| *total += f64::from(sum));
    }
    totals
}
