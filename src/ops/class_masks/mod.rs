//! The last layer of the mask head, applied for one class per box.

mod cpu;
mod cpu_backward;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
mod cuda_backward;
mod logits;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};
use half::bf16;

use super::support::check::{argument, lend, unsupported, with_slice};
use super::support::geometry;
use crate::error::Result;

pub use logits::class_mask_logits;

const OP: &str = "class_masks";

/// Computes the mask probabilities of each row's own class.
///
/// A 1×1 convolution to one channel per class, a sigmoid and the choice of the label's channel, in one: only the filter
/// of that class is applied, so 1/C of the work and no `[R, C, M, M]` in between. Rows with label 0, the background,
/// are empty slots and give zeros; so do labels from the number of classes on, which no detection carries.
///
/// # Shapes
/// | argument | shape | dtype | unit |
/// | --- | --- | --- | --- |
/// | `features` | `[R, M, M, C]` | f32, bf16; f16 on CUDA | after the transposed convolution and its ReLU |
/// | `weight` | `[num_classes, C]` or `[num_classes, C, 1, 1]` | f32 | filters of the convolution |
/// | `bias` | `[num_classes]` | f32 | |
/// | `labels` | `[R]` | u32 | category id; 0 for an empty slot |
/// | returns | `[R, M, M]` | f32 | probabilities, 0..=1 |
///
/// The two sides of a mask may differ.
///
/// # Devices
/// CPU, on the threads of the current rayon pool; CUDA, in one launch. O(R·M²·C) time, no scratch.
///
/// # Gradients
/// None; training computes its loss from [`class_mask_logits`].
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType) or
/// [`Error::Device`](crate::Error::Device) when the arguments don't fit the table;
/// [`Error::Unsupported`](crate::Error::Unsupported) on other devices.
///
/// # Example
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_detection::ops::class_masks;
///
/// let features = Tensor::new(&[[[[0f32, 2.0], [1.0, 0.0]]]], &Device::Cpu)?; // one row, 1×2 cells, two channels
/// let weight = Tensor::new(&[[9f32, 9.0], [1.0, 0.5]], &Device::Cpu)?;
/// let bias = Tensor::new(&[9f32, -1.0], &Device::Cpu)?;
/// let labels = Tensor::new(&[1u32], &Device::Cpu)?;
/// let masks = class_masks(&features, &weight, &bias, &labels)?;
/// assert_eq!(masks.to_vec3::<f32>()?, [[[0.5, 0.5]]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Reference: torchvision `models/detection/roi_heads.py`, `maskrcnn_inference`; He et al. 2017, section 3.
pub fn class_masks(
    features: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    labels: &Tensor,
) -> Result<Tensor> {
    let weight = &as_matrix(weight)?;
    let [n_rows, height, width, channels] = check(OP, features, weight, bias, labels)?;
    match features.device() {
        Device::Cpu => {
            let device = features.device();
            lend!(weight: f32, bias: f32, labels: u32);
            let filters = cpu::Filters { weight, bias, channels };
            let n_cells = height * width;
            let masks = match features.dtype() {
                DType::BF16 => with_slice::<bf16, _>(features, |features| {
                    cpu::run(features, &filters, labels, n_cells, geometry::sigmoid)
                }),
                _ => with_slice::<f32, _>(features, |features| {
                    cpu::run(features, &filters, labels, n_cells, geometry::sigmoid)
                }),
            }?;
            Ok(Tensor::from_vec(masks, (n_rows, height, width), device)?)
        }
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(features, weight, bias, labels),
        other => Err(unsupported(OP, other)),
    }
}

/// Filters of a 1×1 window as a matrix, outside of any graph; others as they are.
fn as_matrix(weight: &Tensor) -> Result<Tensor> {
    let weight = weight.detach();
    match weight.dims() {
        [_, _, 1, 1] => Ok(weight.flatten_from(1)?),
        _ => Ok(weight),
    }
}

/// Checks all arguments; returns R, the two sides, and C.
fn check(
    op: &'static str,
    features: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    labels: &Tensor,
) -> Result<[usize; 4]> {
    let dims @ [n_rows, _, _, channels] =
        argument(op, "features", features).compute_dtype()?.dims("[R, M, M, C]")?;
    let expected = "[num_classes, C] or [num_classes, C, 1, 1], with the C of the features";
    let filters = argument(op, "weight", weight).dtype(DType::F32)?.same_device(features)?;
    let [n_classes, filter_channels] = filters.dims(expected)?;
    if filter_channels != channels {
        return Err(filters.shape_error(expected));
    }
    argument(op, "bias", bias)
        .dtype(DType::F32)?
        .same_device(features)?
        .shape(&[n_classes], "[num_classes]")?;
    argument(op, "labels", labels)
        .dtype(DType::U32)?
        .same_device(features)?
        .shape(&[n_rows], "[R]")?;
    Ok(dims)
}
