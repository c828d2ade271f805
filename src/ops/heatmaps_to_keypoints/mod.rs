//! Where the keypoints of boxes are, by their heatmaps.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};

use super::support::check::{argument, lend, unsupported};
use crate::error::Result;

const OP: &str = "heatmaps_to_keypoints";

/// Places along a side at which a heatmap is evaluated, at most. No image that fits a network's memory has a box of so
/// many pixels.
const MOST_PLACES: f32 = 16384.0;

/// Finds the largest value of each heatmap, enlarged to the size of its box, and its place in the original image.
///
/// A map is resized bicubically (`a = −0.75`, half-pixel centers, no antialiasing, border pixels repeated) to one value
/// per pixel of the box, whose sides are taken as at least 1 and rounded up; that is done on the way, without room for the
/// result. The first of several largest values in the order of rows counts. Its place is that of the center of its pixel,
/// `(column + ½) · width / ⌈width⌉ + x₁`, and likewise for y, times the factor of its image.
///
/// A value that is NaN is never the largest; a map of nothing else has its first place, and NaN for a score.
///
/// # Shapes
/// | argument | shape | dtype | unit |
/// | --- | --- | --- | --- |
/// | `heatmaps` | `[N · K, M, M', P]`, M and M' at least 1 | f32 | logits |
/// | `boxes` | `[N, K, 4]` | f32 | pixels of the resized image, xyxy |
/// | `counts` | `[N]` | u32 | filled slots per image |
/// | `factors` | N pairs | f32 | `(y, x)`, original pixels per resized one |
/// | returns | `[N, K, P, 3]` | f32 | x, y in original pixels; the logit there. 0 above the counts |
///
/// # Devices
/// CPU, on the threads of the current rayon pool, where rows that can't hold the largest value are left out; CUDA, in one
/// launch for 32 images. The factors travel as numbers, not as a tensor. Sides of more than 16384 pixels are evaluated at
/// so many places.
///
/// # Gradients
/// None; detections are not trained through.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType) or
/// [`Error::Device`](crate::Error::Device) when the arguments don't fit the table;
/// [`Error::Unsupported`](crate::Error::Unsupported) on other devices.
///
/// # Example
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_detection::ops::heatmaps_to_keypoints;
///
/// // One box of 2×2 pixels, one keypoint.
/// let heatmaps = Tensor::new(&[0f32, 1.0, 0.0, 0.0], &Device::Cpu)?.reshape((1, 2, 2, 1))?;
/// let boxes = Tensor::new(&[[[10f32, 20.0, 12.0, 22.0]]], &Device::Cpu)?;
/// let counts = Tensor::new(&[1u32], &Device::Cpu)?;
/// let keypoints = heatmaps_to_keypoints(&heatmaps, &boxes, &counts, &[(1.0, 2.0)])?;
/// assert_eq!(keypoints.flatten_all()?.to_vec1::<f32>()?, [23.0, 20.5, 1.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Reference: torchvision `models/detection/roi_heads.py`, `heatmaps_to_keypoints`; `models/detection/transform.py`,
/// `resize_keypoints`; torch `nn.functional.interpolate` with `mode="bicubic"`.
pub fn heatmaps_to_keypoints(
    heatmaps: &Tensor,
    boxes: &Tensor,
    counts: &Tensor,
    factors: &[(f32, f32)],
) -> Result<Tensor> {
    let images = factors.len();
    let checked = argument(OP, "boxes", boxes).dtype(DType::F32)?;
    let [_, slots, _] = checked.dims("[N, K, 4]")?;
    checked.shape(&[images, slots, 4], "[N, K, 4]")?;
    argument(OP, "counts", counts)
        .dtype(DType::U32)?
        .same_device(boxes)?
        .shape(&[images], "[N]")?;
    let expected = format!("[{}, M, M', P], M and M' at least 1", images * slots);
    let checked = argument(OP, "heatmaps", heatmaps).dtype(DType::F32)?.same_device(boxes)?;
    let [maps, height, width, keypoints] = checked.dims(&expected)?;
    if maps != images * slots || height == 0 || width == 0 {
        return Err(checked.shape_error(&expected));
    }
    match boxes.device() {
        device @ Device::Cpu => {
            lend!(heatmaps: f32, boxes: f32, counts: u32);
            let (boxes, _) = boxes.as_chunks();
            let batch = cpu::Batch { heatmaps, size: [height, width], keypoints, boxes };
            let found = batch.find(counts, factors);
            Ok(Tensor::from_vec(found, (images, slots, keypoints, 3), device)?)
        }
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(heatmaps, boxes, counts, factors),
        other => Err(unsupported(OP, other)),
    }
}
