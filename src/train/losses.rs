//! What the difference between predictions and truth costs: pure functions of values on the host.
//!
//! A loss is of a few hundred sampled boxes, whose predictions are one small download; its value has to be known on the
//! host anyway, to be logged and to be checked. So each function returns value *and* gradient, both exact, and
//! [`Loss::attach`] hangs them into the graph. Where a formula has a kink, the derivative is the reference's.

use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Tensor};

use crate::error::{Error, Result};

/// The error up to which a smooth L1 loss is quadratic. torchvision has the same for both box losses.
pub const SMOOTH_L1_BETA: f32 = 1.0 / 9.0;

/// Value of a loss, and its derivative by each prediction.
#[derive(Debug, Clone, PartialEq)]
pub struct Loss {
    /// The loss.
    pub value: f32,
    /// As long as the predictions.
    pub gradient: Vec<f32>,
}

impl Loss {
    /// What nothing sampled costs: nothing, for `predictions` predictions.
    fn nothing(predictions: usize) -> Self {
        Self { value: 0.0, gradient: vec![0.0; predictions] }
    }

    /// Sums up terms in f64, so that their number costs no precision.
    fn collect(predictions: usize, terms: impl IntoIterator<Item = (usize, f64, f64)>) -> Self {
        let mut loss = Self::nothing(predictions);
        let mut sum = 0f64;
        for (index, value, slope) in terms {
            sum += value;
            loss.gradient[index] += slope as f32;
        }
        loss.value = sum as f32;
        loss
    }

    /// The loss as a scalar of the graph, of which `predictions` are the argument. Any device; the gradient is uploaded.
    ///
    /// # Errors
    /// [`Error::Shape`] when there are not as many predictions as derivatives; those of candle.
    pub fn attach(self, predictions: &Tensor) -> Result<Tensor> {
        if predictions.elem_count() != self.gradient.len() {
            return Err(Error::Shape {
                op: "loss",
                argument: "predictions",
                expected: format!("{} elements, as the loss was computed of", self.gradient.len()),
                found: predictions.dims().to_vec(),
            });
        }
        let gradient = Tensor::from_vec(self.gradient, predictions.shape(), predictions.device())?;
        Ok(predictions.apply_op1(Attached { value: self.value, gradient })?)
    }
}

/// A function whose value and gradient at its argument are known.
struct Attached {
    value: f32,
    gradient: Tensor,
}

impl CustomOp1 for Attached {
    fn name(&self) -> &'static str {
        "loss"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![self.value]), Shape::from(())))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        predictions: &candle_core::CudaStorage,
        _: &Layout,
    ) -> candle_core::Result<(candle_core::CudaStorage, Shape)> {
        use candle_core::backend::BackendStorage;
        // The value travels as an argument.
        let value = crate::ops::support::cuda::scalar(predictions.device(), self.value)
            .map_err(candle_core::Error::wrap)?;
        Ok((value.into_storage(), Shape::from(())))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, grad: &Tensor) -> candle_core::Result<Option<Tensor>> {
        #[cfg(feature = "cuda")]
        if grad.device().is_cuda() {
            // A product of different shapes uploads them.
            let scaled = crate::ops::support::cuda::scale_by(&self.gradient, grad);
            return scaled.map(Some).map_err(candle_core::Error::wrap);
        }
        Ok(Some(self.gradient.broadcast_mul(grad)?))
    }
}

/// Whether a sampled anchor has found an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Objectness {
    /// It has.
    Object,
    /// It shows none.
    Background,
}

/// `loss_objectness`: binary cross-entropy of the logits of all sampled anchors of the batch, averaged.
///
/// Nothing sampled costs nothing; the reference then gives NaN.
///
/// # Errors
/// [`Error::Shape`] when there are not as many logits as labels.
///
/// Reference: torchvision `models/detection/rpn.py`, `compute_loss`.
pub fn objectness_loss(logits: &[f32], labels: &[Objectness]) -> Result<Loss> {
    same_length("logits", logits.len(), labels.len(), "one per sampled anchor")?;
    let share = 1.0 / labels.len().max(1) as f64;
    let terms = logits.iter().zip(labels).enumerate().map(|(index, (logit, label))| {
        let target = if *label == Objectness::Object { 1.0 } else { 0.0 };
        let (value, slope) = cross_entropy_with_logit(f64::from(*logit), target);
        (index, value * share, slope * share)
    });
    Ok(Loss::collect(logits.len(), terms))
}

/// `loss_rpn_box_reg`: smooth L1 between predicted and wanted deltas of the positive anchors, summed, divided by the
/// number of *all* sampled anchors of the batch.
///
/// Without positives it is 0.
///
/// # Errors
/// [`Error::Shape`] when there are not as many predictions as targets.
///
/// Reference: torchvision `models/detection/rpn.py`, `compute_loss`.
pub fn rpn_box_loss(deltas: &[[f32; 4]], targets: &[[f32; 4]], sampled: usize) -> Result<Loss> {
    same_length("deltas", deltas.len(), targets.len(), "one row per positive anchor")?;
    let share = 1.0 / sampled.max(1) as f64;
    let pairs = deltas.as_flattened().iter().zip(targets.as_flattened()).enumerate();
    let terms = pairs.map(|(index, (delta, target))| {
        let (value, slope) = smooth_l1(f64::from(*delta) - f64::from(*target));
        (index, value * share, slope * share)
    });
    Ok(Loss::collect(4 * deltas.len(), terms))
}

/// `loss_classifier`: cross-entropy of the class logits of all sampled proposals of the batch, averaged.
///
/// `logits` are `rows · classes`, row by row; `labels` one per row. Nothing sampled costs nothing.
///
/// # Errors
/// [`Error::Shape`] when lengths don't fit, or a label is no class.
///
/// Reference: torchvision `models/detection/roi_heads.py`, `fastrcnn_loss`.
pub fn classifier_loss(logits: &[f32], classes: usize, labels: &[u32]) -> Result<Loss> {
    same_length("class_logits", logits.len(), labels.len() * classes, "one per row and class")?;
    check_labels(labels, classes)?;
    let share = 1.0 / labels.len().max(1) as f64;
    let mut loss = Loss::nothing(logits.len());
    let mut sum = 0f64;
    let rows =
        logits.chunks_exact(classes.max(1)).zip(loss.gradient.chunks_exact_mut(classes.max(1)));
    for ((row, gradient), label) in rows.zip(labels) {
        let largest = row.iter().fold(f64::NEG_INFINITY, |largest, x| largest.max(f64::from(*x)));
        let total: f64 = row.iter().map(|x| (f64::from(*x) - largest).exp()).sum();
        let normaliser = largest + total.ln();
        sum += normaliser - f64::from(row[*label as usize]);
        for (class, (slope, logit)) in (0..).zip(gradient.iter_mut().zip(row)) {
            let wanted = if class == *label { 1.0 } else { 0.0 };
            *slope = (((f64::from(*logit) - normaliser).exp() - wanted) * share) as f32;
        }
    }
    loss.value = (sum * share) as f32;
    Ok(loss)
}

/// `loss_box_reg`: smooth L1 between the deltas of the true class and the wanted ones, summed over the positive
/// proposals, divided by the number of *all* sampled proposals of the batch.
///
/// `deltas` are `rows · classes` times four, row by row. `labels` and `targets` are one per row; label 0 is background,
/// which wants no deltas.
///
/// # Errors
/// [`Error::Shape`] when lengths don't fit, or a label is no class.
///
/// Reference: torchvision `models/detection/roi_heads.py`, `fastrcnn_loss`.
pub fn box_loss(
    deltas: &[f32],
    classes: usize,
    labels: &[u32],
    targets: &[[f32; 4]],
) -> Result<Loss> {
    let expected = 4 * labels.len() * classes;
    same_length("box_regression", deltas.len(), expected, "four per row and class")?;
    same_length("targets", targets.len(), labels.len(), "one per row")?;
    check_labels(labels, classes)?;
    let share = 1.0 / labels.len().max(1) as f64;
    let positives = labels
        .iter()
        .zip(targets)
        .enumerate()
        .filter(|(_, (label, _))| **label > 0)
        .map(|(row, (label, target))| (4 * (row * classes + *label as usize), target));
    let terms = positives.flat_map(|(start, target)| {
        (start..).zip(target).map(|(index, target)| {
            let (value, slope) = smooth_l1(f64::from(deltas[index]) - f64::from(*target));
            (index, value * share, slope * share)
        })
    });
    Ok(Loss::collect(deltas.len(), terms))
}

/// `loss_mask`: binary cross-entropy between the logits of the true class's masks and the wanted shares, averaged over
/// all cells of the positive proposals of the batch.
///
/// `logits` are `rows · cells`, of the class of each row; `targets` one list of `cells` shares in `0..=1` per row. Without
/// positives it is 0.
///
/// # Errors
/// [`Error::Shape`] when lengths don't fit.
///
/// Reference: torchvision `models/detection/roi_heads.py`, `maskrcnn_loss`.
pub fn mask_loss(logits: &[f32], cells: usize, targets: &[Vec<f32>]) -> Result<Loss> {
    same_length("mask_logits", logits.len(), targets.len() * cells, "one per row and cell")?;
    for target in targets {
        same_length("mask targets", target.len(), cells, "one per cell")?;
    }
    let share = 1.0 / logits.len().max(1) as f64;
    let pairs = logits.iter().zip(targets.iter().flatten()).enumerate();
    let terms = pairs.map(|(index, (logit, target))| {
        let (value, slope) = cross_entropy_with_logit(f64::from(*logit), f64::from(*target));
        (index, value * share, slope * share)
    });
    Ok(Loss::collect(logits.len(), terms))
}

/// Binary cross-entropy of the sigmoid of a logit, and its derivative.
fn cross_entropy_with_logit(logit: f64, target: f64) -> (f64, f64) {
    // max(x, 0) − x·t + ln(1 + e^−|x|): no exponential overflows.
    let value = logit.max(0.0) - logit * target + (-logit.abs()).exp().ln_1p();
    // The maximum drops NaN, which must show.
    let value = if logit.is_nan() { f64::NAN } else { value };
    (value, 1.0 / (1.0 + (-logit).exp()) - target)
}

/// `½ d² / β` for `|d| < β`, else `|d| − ½ β`; and its derivative, which is 0 at 0.
fn smooth_l1(difference: f64) -> (f64, f64) {
    let beta = f64::from(SMOOTH_L1_BETA);
    let size = difference.abs();
    if size < beta {
        (0.5 * difference * difference / beta, difference / beta)
    } else {
        (size - 0.5 * beta, difference.signum())
    }
}

fn same_length(argument: &'static str, found: usize, expected: usize, what: &str) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::Shape {
        op: "loss",
        argument,
        expected: format!("{expected}, {what}"),
        found: vec![found],
    })
}

fn check_labels(labels: &[u32], classes: usize) -> Result<()> {
    match labels.iter().find(|label| **label as usize >= classes) {
        None => Ok(()),
        Some(label) => Err(Error::Shape {
            op: "loss",
            argument: "labels",
            expected: format!("classes below {classes}"),
            found: vec![*label as usize],
        }),
    }
}

#[cfg(test)]
mod tests;
