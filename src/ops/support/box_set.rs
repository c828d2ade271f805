//! Boxes of a batch, in one of two forms.

use candle_core::{DType, Device, Tensor};

use super::check::argument;
use crate::error::Result;

/// The boxes of a batch, xyxy in pixels of the resized images.
#[derive(Debug, Clone, Copy)]
pub enum BoxSet<'a> {
    /// `[B, 4]` f32: the same for every image, such as anchors.
    Shared(&'a Tensor),
    /// Slots of each image, such as proposals.
    PerImage {
        /// `[N, B, 4]` f32.
        boxes: &'a Tensor,
        /// `[N]` u32, valid slots.
        counts: &'a Tensor,
    },
}

impl<'a> BoxSet<'a> {
    /// All corners.
    pub(crate) fn boxes(&self) -> &'a Tensor {
        match self {
            Self::Shared(boxes) | Self::PerImage { boxes, .. } => boxes,
        }
    }

    /// Valid slots of each image, where they are not all.
    pub(crate) fn counts(&self) -> Option<&'a Tensor> {
        match self {
            Self::Shared(_) => None,
            Self::PerImage { counts, .. } => Some(counts),
        }
    }

    /// Boxes from one image to the next, in memory.
    pub(crate) fn image_stride(&self, per_image: usize) -> usize {
        match self {
            Self::Shared(_) => 0,
            Self::PerImage { .. } => per_image,
        }
    }

    /// Requires boxes of `n` images on a device, and returns how many an image has.
    pub(crate) fn check(&self, op: &'static str, n: usize, device: &Device) -> Result<usize> {
        let boxes = argument(op, "boxes", self.boxes()).dtype(DType::F32)?.on(device)?;
        match self {
            Self::Shared(_) => {
                let [per_image, corners] = boxes.dims("[B, 4]")?;
                if corners == 4 { Ok(per_image) } else { Err(boxes.shape_error("[B, 4]")) }
            }
            Self::PerImage { counts, .. } => {
                let [images, per_image, corners] = boxes.dims("[N, B, 4]")?;
                if (images, corners) != (n, 4) {
                    return Err(boxes.shape_error(&format!("[{n}, B, 4]")));
                }
                argument(op, "counts", counts).dtype(DType::U32)?.on(device)?.shape(&[n], "[N]")?;
                Ok(per_image)
            }
        }
    }
}
