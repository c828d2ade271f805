//! Anchors of all pyramid levels, computed on the device from shape scalars alone.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::{Device, Tensor};

use super::support::check;
use crate::error::Result;

const OP: &str = "anchor_grid";

/// One level of the grid: a cell anchor per size and ratio at every feature cell.
#[derive(Debug, Clone, PartialEq)]
pub struct AnchorLevel {
    /// Rows of the feature map.
    pub height: usize,
    /// Columns of the feature map.
    pub width: usize,
    /// Input pixels per row.
    pub stride_y: usize,
    /// Input pixels per column.
    pub stride_x: usize,
    /// Square roots of the anchors' areas, in pixels.
    pub sizes: Vec<f32>,
    /// Height / width.
    pub aspect_ratios: Vec<f32>,
}

/// What the anchors follow from.
#[derive(Debug, Clone, PartialEq)]
pub struct AnchorGridParams {
    /// The levels, finest first.
    pub levels: Vec<AnchorLevel>,
}

/// Computes the anchors of all levels.
///
/// A cell anchor of size `s` and ratio `r` is `[−w, −h, w, h] / 2` with `h = s·√r` and `w = s / √r`, rounded half to
/// even. It is moved by `(column · stride_x, row · stride_y)`: the first one is centred on the image's corner, without a
/// half-cell offset. Order: level, row, column, ratio, size.
///
/// # Shapes
/// | argument | shape | dtype | unit |
/// | --- | --- | --- | --- |
/// | returns | `[A, 4]` | f32 | xyxy pixels of the padded batch |
///
/// # Devices
/// CPU, and CUDA in one launch. Nothing is built on the host and copied: the level table travels as numbers, on CUDA
/// as a kernel argument of at most 8 levels, 16 sizes and 16 ratios a level.
///
/// # Gradients
/// None; the anchors depend on no tensor.
///
/// # Errors
/// [`Error::Config`](crate::Error::Config) for a table that is too long for CUDA;
/// [`Error::Unsupported`](crate::Error::Unsupported) on other devices.
///
/// # Example
/// ```
/// use candle_detection::ops::{AnchorGridParams, AnchorLevel, anchor_grid};
/// let level = AnchorLevel {
///     height: 2,
///     width: 3,
///     stride_y: 10,
///     stride_x: 13,
///     sizes: vec![32.0],
///     aspect_ratios: vec![1.0],
/// };
/// let params = AnchorGridParams { levels: vec![level] };
/// let anchors = anchor_grid(&params, &candle_core::Device::Cpu)?.to_vec2::<f32>()?;
/// assert_eq!(anchors[1], [-3.0, -16.0, 29.0, 16.0]);
/// # Ok::<(), candle_detection::Error>(())
/// ```
///
/// Reference: torchvision `models/detection/anchor_utils.py`; Ren et al. 2015, section 3.1.1.
pub fn anchor_grid(params: &AnchorGridParams, device: &Device) -> Result<Tensor> {
    match device {
        Device::Cpu => {
            let anchors = cpu::run(params);
            Ok(Tensor::from_vec(anchors.as_flattened().to_vec(), (anchors.len(), 4), device)?)
        }
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(params, device),
        other => Err(check::unsupported(OP, other)),
    }
}
