//! A norm after a convolution as part of its weights.

use candle_core::{DType, Device, Tensor};
use rayon::prelude::*;

use crate::error::Result;
use crate::ops::support::check::{argument, lend};

const OP: &str = "scale_filters";

/// Multiplies each filter of a convolution by a number of its own: `out[o, ..] = scale[o] · weight[o, ..]`.
///
/// # Shapes
/// | argument | shape | dtype |
/// | --- | --- | --- |
/// | `weight` | `[O, I, kh, kw]` | f32 |
/// | `scale` | `[O]` | f32 |
/// | returns | `[O, I, kh, kw]` | f32 |
///
/// # Devices
/// CPU, on the threads of the current rayon pool, where candle's own product would wake a second pool of threads that
/// spin beside these; elsewhere, candle's product.
///
/// # Gradients
/// None; a layer with variables keeps its scale apart.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType) or
/// [`Error::Device`](crate::Error::Device) when the arguments don't fit the table.
///
/// # Example
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_detection::ops::scale_filters;
///
/// let weight = Tensor::new(&[[[[1f32, 2.0]]], [[[3.0, 4.0]]]], &Device::Cpu)?;
/// let scale = Tensor::new(&[10f32, 0.5], &Device::Cpu)?;
/// let scaled = scale_filters(&weight, &scale)?;
/// assert_eq!(scaled.flatten_all()?.to_vec1::<f32>()?, [10.0, 20.0, 1.5, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Reference: torchvision `ops/misc.py`, `FrozenBatchNorm2d`, whose scale this is.
pub fn scale_filters(weight: &Tensor, scale: &Tensor) -> Result<Tensor> {
    let dims: [usize; 4] =
        argument(OP, "weight", weight).dtype(DType::F32)?.dims("[O, I, kh, kw]")?;
    argument(OP, "scale", scale)
        .dtype(DType::F32)?
        .same_device(weight)?
        .shape(&dims[..1], "[O], with the O of the weight")?;
    if !matches!(weight.device(), Device::Cpu) {
        return Ok(weight.broadcast_mul(&scale.reshape(((), 1, 1, 1))?)?);
    }
    let shape = weight.shape();
    lend!(weight: f32, scale: f32);
    let values = dims[1..].iter().product::<usize>().max(1);
    let mut out = vec![0.0; weight.len()];
    let filters = out.par_chunks_mut(values).zip(weight.par_chunks(values)).zip(scale);
    filters.for_each(|((out, weight), scale)| {
        out.iter_mut().zip(weight).for_each(|(out, weight)| *out = weight * scale);
    });
    Ok(Tensor::from_vec(out, shape, &Device::Cpu)?)
}
