//! Boxes of chosen (anchor, class) pairs.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};

use super::support::box_coding::BoxCoding;
use super::support::check::{self, argument};
use crate::error::Result;

const OP: &str = "decode_boxes";

/// Sizes and meaning of [`decode_boxes`].
#[derive(Debug, Clone, PartialEq)]
pub struct DecodeBoxesParams {
    /// Height and width of each resized image, in pixels: boxes are clipped to it.
    pub image_sizes: Vec<(usize, usize)>,
    /// What the regression says.
    pub coding: BoxCoding,
}

/// Boxes, slot by slot with their pairs.
#[derive(Debug, Clone)]
pub struct DecodedBoxes {
    /// `[N, S, 4]` f32, xyxy, clipped; zero in invalid slots.
    pub boxes: Tensor,
    /// `[N, S]` u8, 1 where the slot holds a box.
    pub valid: Tensor,
}

/// Decodes the boxes of chosen anchors and clips them to the image.
///
/// A box with a corner that is not finite becomes invalid. There is no least side.
///
/// # Shapes
/// | argument | shape | dtype | unit |
/// | --- | --- | --- | --- |
/// | `anchors` | `[A, 4]` | f32 | xyxy pixels |
/// | `regression` | each `[N, A_l, 4]`, `Σ A_l = A` | f32 | see [`BoxCoding`] |
/// | `index` | `[N, S]` | u32, < A | anchor of each slot |
/// | `valid` | `[N, S]` | u8 | 0: the slot is empty |
/// | returns | `[N, S, …]` | see [`DecodedBoxes`] | |
///
/// # Devices
/// CPU; CUDA with at most 8 levels, in one launch for 32 images. The image sizes travel as numbers, not as a tensor.
///
/// # Gradients
/// None; detections are not trained through.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType),
/// [`Error::Device`](crate::Error::Device) or [`Error::Unsupported`](crate::Error::Unsupported);
/// [`Error::Config`](crate::Error::Config) for too many levels.
///
/// Reference: torchvision `models/detection/_utils.py`, `BoxCoder.decode` and `BoxLinearCoder.decode`, and
/// `ops/boxes.py`, `clip_boxes_to_image`.
pub fn decode_boxes(
    anchors: &Tensor,
    regression: &[&Tensor],
    index: &Tensor,
    valid: &Tensor,
    params: &DecodeBoxesParams,
) -> Result<DecodedBoxes> {
    let [total, _] = argument(OP, "anchors", anchors).dtype(DType::F32)?.dims("[A, 4]")?;
    argument(OP, "anchors", anchors).shape(&[total, 4], "[A, 4]")?;
    let [n, slots] =
        argument(OP, "index", index).dtype(DType::U32)?.same_device(anchors)?.dims("[N, S]")?;
    argument(OP, "valid", valid)
        .dtype(DType::U8)?
        .same_device(anchors)?
        .shape(&[n, slots], "[N, S]")?;
    let mut lengths = Vec::with_capacity(regression.len());
    for level in regression {
        let argument = argument(OP, "regression", level).dtype(DType::F32)?.same_device(anchors)?;
        let [_, length, _] = argument.dims("[N, A_l, 4]")?;
        argument.shape(&[n, length, 4], "[N, A_l, 4]")?;
        lengths.push(length);
    }
    if lengths.iter().sum::<usize>() != total {
        let expected = format!("[Σ A_l, 4] with A_l = {lengths:?}");
        return Err(argument(OP, "anchors", anchors).shape_error(&expected));
    }
    if params.image_sizes.len() != n {
        let expected = format!("[N, S] with N = {} image sizes", params.image_sizes.len());
        return Err(argument(OP, "index", index).shape_error(&expected));
    }
    match anchors.device() {
        device @ Device::Cpu => {
            let (boxes, valid) = cpu::run(anchors, regression, index, valid, params)?;
            Ok(DecodedBoxes {
                boxes: Tensor::from_vec(boxes, (n, slots, 4), device)?,
                valid: Tensor::from_vec(valid, (n, slots), device)?,
            })
        }
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(anchors, regression, index, valid, params),
        other => Err(check::unsupported(OP, other)),
    }
}
