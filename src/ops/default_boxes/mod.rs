//! Default boxes of all feature levels, computed on the device from shape scalars alone.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::{Device, Tensor};

use super::support::check;
use crate::error::Result;

const OP: &str = "default_boxes";

/// One level: the same boxes at every feature cell.
#[derive(Debug, Clone, PartialEq)]
pub struct DefaultBoxLevel {
    /// Rows of the feature map.
    pub height: usize,
    /// Columns of the feature map.
    pub width: usize,
    /// Cells along the image's height, which need not be whole: the image's height divided by the level's step.
    pub cells_y: f32,
    /// Cells along the image's width.
    pub cells_x: f32,
    /// Width and height of each box, as fractions of the image's.
    pub sides: Vec<[f32; 2]>,
}

/// What default boxes follow from.
#[derive(Debug, Clone, PartialEq)]
pub struct DefaultBoxesParams {
    /// The levels, finest first.
    pub levels: Vec<DefaultBoxLevel>,
    /// Height and width of the padded batch, in pixels.
    pub image_size: (usize, usize),
}

/// Computes the default boxes of all levels.
///
/// A box of cell (row, column) has its center at `((column + ½) / cells_x, (row + ½) / cells_y)` and its sides as given;
/// both are fractions of the image, which multiplies the corners. Corners are not clipped. Order: level, row, column,
/// box.
///
/// # Shapes
/// | argument | shape | dtype | unit |
/// | --- | --- | --- | --- |
/// | returns | `[A, 4]` | f32 | xyxy pixels of the padded batch |
///
/// # Devices
/// CPU, and CUDA in one launch. Nothing is built on the host and copied: the level table travels as numbers, on CUDA
/// as a kernel argument of at most 8 levels and 16 boxes a cell.
///
/// # Gradients
/// None; the boxes depend on no tensor.
///
/// # Errors
/// [`Error::Config`](crate::Error::Config) for a table that is too long for CUDA;
/// [`Error::Unsupported`](crate::Error::Unsupported) on other devices.
///
/// # Example
/// ```
/// use candle_detection::ops::{DefaultBoxLevel, DefaultBoxesParams, default_boxes};
/// let sides = vec![[0.5, 0.25]];
/// let level = DefaultBoxLevel { height: 1, width: 2, cells_y: 1.0, cells_x: 2.0, sides };
/// let params = DefaultBoxesParams { levels: vec![level], image_size: (100, 200) };
/// let boxes = default_boxes(&params, &candle_core::Device::Cpu)?.to_vec2::<f32>()?;
/// assert_eq!(boxes[1], [100.0, 37.5, 200.0, 62.5]);
/// # Ok::<(), candle_detection::Error>(())
/// ```
///
/// Reference: torchvision `models/detection/anchor_utils.py`, `DefaultBoxGenerator`; Liu et al. 2016, section 2.2.
pub fn default_boxes(params: &DefaultBoxesParams, device: &Device) -> Result<Tensor> {
    match device {
        Device::Cpu => {
            let boxes = cpu::run(params);
            Ok(Tensor::from_vec(boxes.as_flattened().to_vec(), (boxes.len(), 4), device)?)
        }
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(params, device),
        other => Err(check::unsupported(OP, other)),
    }
}
