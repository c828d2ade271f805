//! Where the keypoints of sampled boxes should have been found.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};

use super::support::check::{argument, lend, unsupported};
use crate::error::{Error, Result};

const OP: &str = "keypoint_targets";

/// Finds the cells of a box's heatmap in which the keypoints of its object lie.
///
/// With `side · side` cells over the box, a keypoint lies in column `⌊(x − x₁) · side / (x₂ − x₁)⌋`, and in the last one on
/// the box's right border; likewise for rows. Cells count row by row. A keypoint that is outside of the box, or whose
/// visibility is 0, has none.
///
/// # Shapes
/// | argument | shape | dtype | unit |
/// | --- | --- | --- | --- |
/// | `keypoints` | `[N, G, P, 3]` | f32 | x, y in pixels of the resized image; visible above 0 |
/// | `boxes` | `[N, S, 4]` | f32 | pixels of the resized image, xyxy |
/// | `objects` | `[N, S]` | u32 | object of each box within its image, below G |
/// | `counts` | `[N]` | u32 | filled slots per image |
/// | returns | `[N, S, P]` | u32 | cell, or [`IGNORED_LABEL`](super::IGNORED_LABEL) where there is none and above the counts |
///
/// # Devices
/// CPU; CUDA in one launch.
///
/// # Gradients
/// None: targets are constants.
///
/// # Errors
/// [`Error::Shape`], [`Error::DType`] or [`Error::Device`] when the arguments don't fit the table; [`Error::Config`] for
/// no cells; [`Error::Unsupported`] on other devices. On the CPU, [`Error::Pixels`] for a slot below the count whose
/// object is not below G; on CUDA, such a slot has no cells.
///
/// # Example
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_detection::ops::{IGNORED_LABEL, keypoint_targets};
///
/// // An object with two keypoints, of which one is not labelled.
/// let keypoints = Tensor::new(&[[[[12f32, 25.0, 2.0], [0.0, 0.0, 0.0]]]], &Device::Cpu)?;
/// let boxes = Tensor::new(&[[[10f32, 20.0, 18.0, 28.0]]], &Device::Cpu)?;
/// let objects = Tensor::new(&[[0u32]], &Device::Cpu)?;
/// let counts = Tensor::new(&[1u32], &Device::Cpu)?;
/// let targets = keypoint_targets(&keypoints, &boxes, &objects, &counts, 4)?;
/// assert_eq!(targets.flatten_all()?.to_vec1::<u32>()?, [2 * 4 + 1, IGNORED_LABEL]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Reference: torchvision `models/detection/roi_heads.py`, `keypoints_to_heatmap`.
pub fn keypoint_targets(
    keypoints: &Tensor,
    boxes: &Tensor,
    objects: &Tensor,
    counts: &Tensor,
    side: usize,
) -> Result<Tensor> {
    let expected = "[N, S, 4]";
    let checked = argument(OP, "boxes", boxes).dtype(DType::F32)?;
    let [images, slots, four] = checked.dims(expected)?;
    if four != 4 {
        return Err(checked.shape_error(expected));
    }
    let on_device =
        |name, tensor, dtype| argument(OP, name, tensor).dtype(dtype)?.same_device(boxes);
    on_device("objects", objects, DType::U32)?.shape(&[images, slots], "[N, S]")?;
    on_device("counts", counts, DType::U32)?.shape(&[images], "[N]")?;
    let checked = on_device("keypoints", keypoints, DType::F32)?;
    let [_, n_objects, points, _] = checked.dims("[N, G, P, 3]")?;
    checked.shape(&[images, n_objects, points, 3], "[N, G, P, 3]")?;
    if side == 0 {
        return Err(Error::Config {
            origin: OP.to_owned(),
            field: "side".to_owned(),
            found: "0".to_owned(),
            expected: "at least 1".to_owned(),
        });
    }
    match boxes.device() {
        device @ Device::Cpu => {
            lend!(keypoints: f32, boxes: f32, objects: u32, counts: u32);
            let (keypoints, _) = keypoints.as_chunks();
            let (boxes, _) = boxes.as_chunks();
            let batch = cpu::Batch { keypoints, boxes, objects, counts, n_objects, points, slots };
            Ok(Tensor::from_vec(batch.targets(side)?, (images, slots, points), device)?)
        }
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(keypoints, boxes, objects, counts, side),
        other => Err(unsupported(OP, other)),
    }
}
