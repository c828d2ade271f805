//! Boxes from the pixels of the resized image to those of the original.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};

use super::support::check::{self, argument, with_slice};
use crate::error::Result;

const OP: &str = "scale_boxes";

/// Multiplies the boxes of each image by its own factors.
///
/// # Shapes
/// | argument | shape | dtype | unit |
/// | --- | --- | --- | --- |
/// | `boxes` | `[N, K, 4]` | f32 | xyxy pixels |
/// | `factors` | N pairs | f32 | `(y, x)` |
/// | returns | `[N, K, 4]` | f32 | xyxy pixels |
///
/// # Devices
/// CPU; CUDA in one launch for 32 images. The factors travel as numbers, not as a tensor.
///
/// # Gradients
/// None; detections are not trained through.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType) or
/// [`Error::Unsupported`](crate::Error::Unsupported).
///
/// Reference: torchvision `models/detection/transform.py`, `resize_boxes`.
pub fn scale_boxes(boxes: &Tensor, factors: &[(f32, f32)]) -> Result<Tensor> {
    let n = factors.len();
    let [_, k, _] = argument(OP, "boxes", boxes).dtype(DType::F32)?.dims("[N, K, 4]")?;
    argument(OP, "boxes", boxes).shape(&[n, k, 4], "[N, K, 4]")?;
    match boxes.device() {
        device @ Device::Cpu => {
            let scaled: Vec<f32> = with_slice(boxes, |boxes: &[f32]| {
                let per_image = boxes.chunks_exact((k * 4).max(1)).zip(factors);
                per_image
                    .flat_map(|(boxes, (y, x))| {
                        boxes
                            .as_chunks::<4>()
                            .0
                            .iter()
                            .flat_map(move |b| [b[0] * x, b[1] * y, b[2] * x, b[3] * y])
                    })
                    .collect()
            })?;
            Ok(Tensor::from_vec(scaled, (n, k, 4), device)?)
        }
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(boxes, factors),
        other => Err(check::unsupported(OP, other)),
    }
}
