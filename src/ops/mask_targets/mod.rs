//! What the masks of boxes should have been.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};

use super::support::check::{argument, lend, unsupported};
use crate::error::{Error, Result};

const OP: &str = "mask_targets";

/// Numbers of a place, the last axis of [`ObjectMasks::places`].
const PLACE: usize = 9;

/// More samples per side of a cell than this have no places of their own: above it, f32 has no halves.
const MOST_SAMPLES: f32 = (1 << 23) as f32;

/// The outlines of the objects of a batch, in pixels of the images as they were before they were resized.
///
/// Of each object, a rectangle is kept that holds all its pixels; what lies outside of it does not belong to the object.
#[derive(Debug, Clone)]
pub struct ObjectMasks {
    /// `[bytes]` u8: what is kept of all objects, one after another, row by row; 1 inside of the object, else 0.
    pub pixels: Tensor,
    /// `[N, G, 9]` u32, for each object of each image: its first byte in `pixels`; top, left, rows and columns of what is
    /// kept; height and width of the original image; height and width of the resized one. Zeros where an image has fewer
    /// objects than others.
    pub places: Tensor,
}

/// Computes the share of an object in each of `side · side` cells of a box: what the mask head should say.
///
/// A cell is the mean of bilinear samples, as many per axis as a cell has pixels, rounded up; samples more than a pixel
/// outside of the resized image count as 0. A pixel of the resized image is the nearest one of the original. Boxes have
/// no half-pixel shift, and sides of one pixel at least. An object of which nothing is kept gives zeros, and so does a
/// box that is not finite, or so large that a cell has over 2^23 pixels along a side.
///
/// # Shapes
/// | argument | shape | dtype | unit |
/// | --- | --- | --- | --- |
/// | `masks` | see [`ObjectMasks`] | | |
/// | `boxes` | `[N, P, 4]` | f32 | pixels of the resized image, xyxy |
/// | `objects` | `[N, P]` | u32 | object of each box within its image, below G |
/// | `counts` | `[N]` | u32 | filled slots per image, ≤ P |
/// | returns | `[N, P, side, side]` | f32 | 0..=1; 0 above the counts |
///
/// # Devices
/// CPU, on the threads of the current rayon pool; CUDA, in one launch without scratch. Samples outside of the image cost
/// nothing. The CPU adds up rows, CUDA samples: results differ by rounding.
///
/// # Gradients
/// None; targets are constants.
///
/// # Errors
/// [`Error::Shape`], [`Error::DType`] or [`Error::Device`] when the arguments don't fit the table; [`Error::Config`] for
/// no cells; [`Error::Unsupported`] on other devices. On the CPU, [`Error::Pixels`] for a slot below the count whose object
/// is not below G, or whose object's place is not within `pixels` or its image. CUDA has no errors of values: a slot like
/// this gives numbers without meaning, and nothing outside of the tensors is read.
///
/// # Example
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_detection::ops::{ObjectMasks, mask_targets};
///
/// // One object, of which two rows of three pixels from (1, 1) on are kept, in an image of 4×6 pixels.
/// let masks = ObjectMasks {
///     pixels: Tensor::new(&[1u8, 1, 1, 1, 1, 0], &Device::Cpu)?,
///     places: Tensor::new(&[[[0u32, 1, 1, 2, 3, 4, 6, 4, 6]]], &Device::Cpu)?,
/// };
/// let boxes = Tensor::new(&[[[0.5f32, 0.5, 4.5, 2.5]]], &Device::Cpu)?;
/// let objects = Tensor::new(&[[0u32]], &Device::Cpu)?;
/// let counts = Tensor::new(&[1u32], &Device::Cpu)?;
/// let targets = mask_targets(&masks, &boxes, &objects, &counts, 2)?;
/// assert_eq!(targets.flatten_all()?.to_vec1::<f32>()?, [1.0, 0.5, 1.0, 0.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Reference: torchvision `models/detection/roi_heads.py`, `project_masks_on_boxes`; `models/detection/transform.py`,
/// `_resize_image_and_masks`; `ops/cpu/roi_align_common.h` with a sampling ratio of −1 and `aligned=false`.
pub fn mask_targets(
    masks: &ObjectMasks,
    boxes: &Tensor,
    objects: &Tensor,
    counts: &Tensor,
    side: usize,
) -> Result<Tensor> {
    let [n_images, n_slots, n_objects] = check(masks, boxes, objects, counts, side)?;
    match boxes.device() {
        Device::Cpu => {
            let device = boxes.device();
            let ObjectMasks { pixels, places } = masks;
            lend!(pixels: u8, places: u32, boxes: f32, objects: u32, counts: u32);
            let (places, _) = places.as_chunks();
            let (boxes, _) = boxes.as_chunks();
            let batch = cpu::Batch { pixels, places, boxes, objects, counts, n_objects, n_slots };
            Ok(Tensor::from_vec(batch.targets(side)?, (n_images, n_slots, side, side), device)?)
        }
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(masks, boxes, objects, counts, side),
        other => Err(unsupported(OP, other)),
    }
}

/// Checks all arguments; returns N, P and G.
fn check(
    masks: &ObjectMasks,
    boxes: &Tensor,
    objects: &Tensor,
    counts: &Tensor,
    side: usize,
) -> Result<[usize; 3]> {
    let expected = "[N, P, 4]";
    let checked = argument(OP, "boxes", boxes).dtype(DType::F32)?;
    let [n_images, n_slots, four] = checked.dims(expected)?;
    if four != 4 {
        return Err(checked.shape_error(expected));
    }
    argument(OP, "objects", objects)
        .dtype(DType::U32)?
        .same_device(boxes)?
        .shape(&[n_images, n_slots], "[N, P]")?;
    argument(OP, "counts", counts)
        .dtype(DType::U32)?
        .same_device(boxes)?
        .shape(&[n_images], "[N]")?;
    let pixels = argument(OP, "pixels", &masks.pixels).dtype(DType::U8)?.same_device(boxes)?;
    let [_] = pixels.dims("[bytes]")?;
    let expected = "[N, G, 9], with the N of the boxes";
    let places = argument(OP, "places", &masks.places).dtype(DType::U32)?.same_device(boxes)?;
    let [images, n_objects, numbers] = places.dims(expected)?;
    if images != n_images || numbers != PLACE {
        return Err(places.shape_error(expected));
    }
    if side == 0 {
        return Err(Error::Config {
            origin: OP.to_owned(),
            field: "side".to_owned(),
            found: "0".to_owned(),
            expected: "at least 1".to_owned(),
        });
    }
    Ok([n_images, n_slots, n_objects])
}
