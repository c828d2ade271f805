//! From mask probabilities to masks as large as the image.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};

use super::support::check::{argument, lend, unsupported};
use crate::error::Result;

const OP: &str = "paste_masks";

/// What [`paste_masks`] needs to know besides probabilities and boxes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PasteMasksParams {
    /// Rows of the image.
    pub height: usize,
    /// Columns of the image.
    pub width: usize,
    /// A pixel belongs to a mask if its probability is strictly above this. torchvision's examples use 0.5.
    pub threshold: f32,
}

/// Draws the masks of one image's detections at full size.
///
/// The probabilities get a border of zeros, the box grows by the same share about its centre, its corners are cut to
/// whole pixels, and bilinear interpolation without antialiasing resizes the one to the other; then the threshold
/// decides. Pixels outside of a box are 0 whatever the threshold is, and so is everything of a box outside the image,
/// a reversed, an infinite or a NaN one. The result is that of [`Mask::binarize`](crate::structures::Mask::binarize).
///
/// Meant for masks that stay on a device or leave it all at once: `D · height · width` bytes. On the host,
/// [`Mask`](crate::structures::Mask) keeps the probabilities instead, and computes only what its boxes cover.
///
/// # Shapes
/// | argument | shape | dtype | unit |
/// | --- | --- | --- | --- |
/// | `probabilities` | `[D, M, M]` | f32 | 0..=1; M at least 1 |
/// | `boxes` | `[D, 4]` | f32 | pixels of the image, xyxy |
/// | returns | `[D, height, width]` | u8 | 255 inside of the mask, else 0 |
///
/// # Devices
/// CPU, on the threads of the current rayon pool; CUDA, in one launch. O(D·height·width) time, no scratch to speak of.
///
/// # Gradients
/// None.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType) or
/// [`Error::Device`](crate::Error::Device) when the arguments don't fit the table;
/// [`Error::Unsupported`](crate::Error::Unsupported) on other devices.
///
/// # Example
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_detection::ops::{PasteMasksParams, paste_masks};
///
/// let probabilities = Tensor::ones((1, 2, 2), DType::F32, &Device::Cpu)?;
/// let boxes = Tensor::new(&[[1f32, 1.0, 3.0, 2.0]], &Device::Cpu)?;
/// let params = PasteMasksParams { height: 4, width: 5, threshold: 0.5 };
/// let masks = paste_masks(&probabilities, &boxes, &params)?;
/// let row = [0, 255, 255, 255, 0];
/// assert_eq!(masks.get(0)?.to_vec2::<u8>()?, [[0; 5], row, [0; 5], [0; 5]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Reference: torchvision `models/detection/roi_heads.py`, `paste_masks_in_image`.
pub fn paste_masks(
    probabilities: &Tensor,
    boxes: &Tensor,
    params: &PasteMasksParams,
) -> Result<Tensor> {
    let expected = "[D, M, M], M at least 1";
    let checked = argument(OP, "probabilities", probabilities).dtype(DType::F32)?;
    let [n_masks, side, columns] = checked.dims(expected)?;
    if side == 0 || side != columns {
        return Err(checked.shape_error(expected));
    }
    argument(OP, "boxes", boxes)
        .dtype(DType::F32)?
        .same_device(probabilities)?
        .shape(&[n_masks, 4], "[D, 4]")?;
    match probabilities.device() {
        Device::Cpu => {
            let device = probabilities.device();
            lend!(probabilities: f32, boxes: f32);
            let masks = cpu::run(probabilities, side, boxes, params);
            Ok(Tensor::from_vec(masks, (n_masks, params.height, params.width), device)?)
        }
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(probabilities, boxes, params),
        other => Err(unsupported(OP, other)),
    }
}
