//! What heatmaps of keypoints cost, with the gradient by each logit.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};

use super::support::autograd::{Backward, record};
use super::support::check::{argument, lend, unsupported, with_slice};
use super::support::matches::IGNORED_LABEL;
use crate::error::{Error, Result};

const OP: &str = "keypoint_loss";

/// `loss_keypoint`: cross-entropy of each keypoint's heatmap, the cell of the keypoint being the true class of all cells;
/// averaged over the keypoints that have a cell.
///
/// # Shapes
/// `R` may be several axes, of which only the product counts.
///
/// | argument | shape | dtype | |
/// | --- | --- | --- | --- |
/// | `logits` | `[R, M, M', P]` | f32 | |
/// | `targets` | `[R, P]` | u32 | cells, counted row by row, or [`IGNORED_LABEL`] |
/// | returns | `[]` | f32 | 0 without a keypoint to learn from |
///
/// Terms are computed and added up in f64, in the order of rows and keypoints. A logit that is NaN shows where its keypoint
/// counts; others are not looked at.
///
/// # Devices
/// CPU, on the threads of the current rayon pool; CUDA in two launches, and one for the gradient. A target that is no cell
/// is an error on the CPU; on CUDA, where nobody waits to see it, the loss is NaN.
///
/// # Gradients
/// Of `logits`; zero where the loss is 0 for want of keypoints.
///
/// # Errors
/// [`Error::Shape`], [`Error::DType`] or [`Error::Device`] when the arguments don't fit the table, or for a target that is
/// no cell, on the CPU; [`Error::Unsupported`] on other devices.
///
/// # Example
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_detection::ops::{IGNORED_LABEL, keypoint_loss};
///
/// let logits = Tensor::zeros((1, 2, 3, 2), DType::F32, &Device::Cpu)?; // two keypoints, six cells each
/// let targets = Tensor::new(&[[4u32, IGNORED_LABEL]], &Device::Cpu)?;
/// let loss = keypoint_loss(&logits, &targets)?.to_scalar::<f32>()?;
/// assert!((loss - 6f32.ln()).abs() < 1e-6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Reference: torchvision `models/detection/roi_heads.py`, `keypointrcnn_loss`.
pub fn keypoint_loss(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let compared = Compared::new(logits, targets)?;
    let (value, normalizers, share) = match logits.device() {
        Device::Cpu => compared.cost_on_cpu(),
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::cost(&compared),
        other => Err(unsupported(OP, other)),
    }?;
    record(OP, &[logits], value, || Ok(KeypointLossBackward { compared, normalizers, share }))
}

/// Heatmaps and what they should show, cut off from any graph.
struct Compared {
    /// `[R, M, M', P]`.
    logits: Tensor,
    /// `[R, P]`.
    targets: Tensor,
    maps: Maps,
}

/// Lengths of axes.
#[derive(Clone, Copy)]
struct Maps {
    /// R.
    rows: usize,
    /// M · M'.
    cells: usize,
    /// P.
    keypoints: usize,
}

impl Compared {
    fn new(logits: &Tensor, targets: &Tensor) -> Result<Self> {
        argument(OP, "targets", targets).dtype(DType::U32)?;
        let checked = argument(OP, "logits", logits).dtype(DType::F32)?.same_device(targets)?;
        let [of_rows @ .., height, width, keypoints] = logits.dims() else {
            return Err(checked.shape_error("[R, M, M', P]"));
        };
        let rows = of_rows.iter().product();
        let of_targets = targets.dims().strip_suffix(&[*keypoints]);
        if of_targets.map(|dims| dims.iter().product()) != Some(rows) {
            let expected = format!("[R, P], {rows} rows of {keypoints} keypoints");
            return Err(argument(OP, "targets", targets).shape_error(&expected));
        }
        let maps = Maps { rows, cells: height * width, keypoints: *keypoints };
        Ok(Self { logits: logits.detach(), targets: targets.clone(), maps })
    }

    /// The loss, `[R, P]` logarithms of sums of exponentials, and one over the number of terms or 0.
    fn cost_on_cpu(&self) -> Result<(Tensor, Tensor, Tensor)> {
        let Self { logits, targets, maps } = self;
        lend!(logits: f32, targets: u32);
        let is_cell = |target: &&u32| **target == IGNORED_LABEL || (**target as usize) < maps.cells;
        if let Some(target) = targets.iter().find(|target| !is_cell(target)) {
            return Err(Error::Shape {
                op: OP,
                argument: "targets",
                expected: format!("cells below {}", maps.cells),
                found: vec![*target as usize],
            });
        }
        let normalizers = cpu::normalizers(logits, targets, *maps);
        let (value, share) = cpu::cost(logits, targets, &normalizers, *maps);
        let device = &Device::Cpu;
        let normalizers = Tensor::from_vec(normalizers, (maps.rows, maps.keypoints), device)?;
        Ok((Tensor::new(value, device)?, normalizers, Tensor::new(share, device)?))
    }
}

struct KeypointLossBackward {
    compared: Compared,
    /// `[R, P]` f64: the logarithm of the sum of the exponentials of each map that counts.
    normalizers: Tensor,
    /// `[]` f64: one over the number of keypoints that count, or 0.
    share: Tensor,
}

impl Backward for KeypointLossBackward {
    fn backward(
        &self,
        _: Option<&Tensor>,
        gradient: &Tensor,
        _: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let Self { compared, normalizers, share } = self;
        let of_logits = match gradient.device() {
            Device::Cpu => {
                let factor = share.to_scalar::<f64>()? * f64::from(gradient.to_scalar::<f32>()?);
                let Compared { logits, targets, maps } = compared;
                let shape = logits.shape();
                lend!(logits: f32, targets: u32);
                let slopes = with_slice(normalizers, |normalizers| {
                    cpu::slopes(logits, targets, normalizers, *maps, factor)
                })?;
                Tensor::from_vec(slopes, shape, &Device::Cpu)?
            }
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => cuda::slopes(compared, normalizers, share, gradient)?,
            other => return Err(unsupported("gradients of keypoint_loss", other)),
        };
        Ok(vec![Some(of_logits)])
    }
}
