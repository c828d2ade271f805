//! What the difference between predictions and truth costs, with the gradient by each prediction.
//!
//! A row is a sampled box, and its label says what it has found. Rows come in slots: one that holds no sample has
//! [`IGNORED_LABEL`], is not looked at and gets no gradient. So the number of samples may stay on the device.
//!
//! Terms are computed and added up in f64. Nothing to learn from costs nothing, where the reference gives NaN; a
//! prediction that is NaN shows. Where a formula has a kink, the derivative is the reference's.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};

use super::support::autograd::{Backward, record};
use super::support::check::{argument, lend, unsupported, with_optional_slice};
use super::support::matches::IGNORED_LABEL;
use crate::error::{Error, Result};

/// The error up to which a smooth L1 loss is quadratic. torchvision has the same for both box losses.
pub const SMOOTH_L1_BETA: f32 = 1.0 / 9.0;

/// `loss_objectness`: binary cross-entropy of the logits of sampled anchors, averaged.
///
/// # Shapes
/// `R` may be several axes, of which only the product counts.
///
/// | argument | shape | dtype | |
/// | --- | --- | --- | --- |
/// | `logits` | any with R values | f32 | |
/// | `labels` | `[R]` | u32 | 0 for background, above for an object, [`IGNORED_LABEL`] |
/// | returns | `[]` | f32 | 0 without a row to look at |
///
/// # Devices
/// CPU; CUDA in two launches, and one for the gradient.
///
/// # Gradients
/// Of `logits`.
///
/// # Errors
/// [`Error::Shape`], [`Error::DType`] or [`Error::Device`] when the arguments don't fit the table;
/// [`Error::Unsupported`] on other devices.
///
/// # Example
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_detection::ops::{IGNORED_LABEL, objectness_loss};
///
/// let logits = Tensor::new(&[0f32, 0.0, 5.0], &Device::Cpu)?;
/// let labels = Tensor::new(&[1u32, 0, IGNORED_LABEL], &Device::Cpu)?;
/// let loss = objectness_loss(&logits, &labels)?.to_scalar::<f32>()?;
/// assert!((loss - 2f32.ln()).abs() < 1e-6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Reference: torchvision `models/detection/rpn.py`, `compute_loss`.
pub fn objectness_loss(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let loss = Loss::Objectness;
    check_rows(loss, "logits", logits, labels, &[])?;
    Compared::new(loss, logits, labels, None, 1).cost(logits)
}

/// `loss_classifier`: cross-entropy of the class logits of sampled proposals, averaged.
///
/// # Shapes
/// `R` may be several axes, of which only the product counts.
///
/// | argument | shape | dtype | |
/// | --- | --- | --- | --- |
/// | `logits` | `[R, C]`, at least one class | f32 | |
/// | `labels` | `[R]` | u32 | classes, or [`IGNORED_LABEL`] |
/// | returns | `[]` | f32 | 0 without a row to look at |
///
/// # Devices
/// CPU; CUDA in two launches, and one for the gradient. A label that is no class is an error on the CPU; on CUDA, where
/// nobody waits to see it, the loss is NaN.
///
/// # Gradients
/// Of `logits`.
///
/// # Errors
/// As for [`objectness_loss`]; [`Error::Shape`] for a label that is no class, on the CPU.
///
/// # Example
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_detection::ops::classifier_loss;
///
/// let logits = Tensor::new(&[[1f32, 1.0], [9.0, 9.0]], &Device::Cpu)?;
/// let labels = Tensor::new(&[0u32, 1], &Device::Cpu)?;
/// let loss = classifier_loss(&logits, &labels)?.to_scalar::<f32>()?;
/// assert!((loss - 2f32.ln()).abs() < 1e-6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Reference: torchvision `models/detection/roi_heads.py`, `fastrcnn_loss`.
pub fn classifier_loss(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let loss = Loss::Classifier;
    let classes = logits.dims().last().copied().filter(|classes| *classes > 0);
    let classes = classes.ok_or_else(|| {
        argument(loss.op(), "logits", logits).shape_error("[R, C], at least one class")
    })?;
    check_rows(loss, "logits", logits, labels, &[classes])?;
    Compared::new(loss, logits, labels, None, classes).cost(logits)
}

/// `loss_rpn_box_reg` and `loss_box_reg`: smooth L1 between predicted and wanted deltas of the rows with an object,
/// summed, divided by the number of *all* rows that are looked at.
///
/// # Shapes
/// `R` may be several axes, of which only the product counts.
///
/// | argument | shape | dtype | |
/// | --- | --- | --- | --- |
/// | `deltas` | `[R, 4]`, of no class, or `[R, 4 · C]`, of C classes | f32 | |
/// | `labels` | `[R]` | u32 | 0 for background, which wants no deltas; classes, or [`IGNORED_LABEL`] |
/// | `targets` | `[R, 4]` | f32 | looked at where a row has an object |
/// | returns | `[]` | f32 | 0 without an object |
///
/// Of the deltas of several classes, those of the label's are compared.
///
/// # Devices
/// CPU; CUDA in two launches, and one for the gradient. Where deltas are of classes, a label that is none is an error on
/// the CPU; on CUDA, where nobody waits to see it, the loss is NaN.
///
/// # Gradients
/// Of `deltas`; 0 where prediction and target are equal.
///
/// # Errors
/// As for [`classifier_loss`].
///
/// # Example
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_detection::ops::box_loss;
///
/// let deltas = Tensor::new(&[[1f32, 0.0, 0.0, 0.0], [7.0, 7.0, 7.0, 7.0]], &Device::Cpu)?;
/// let (labels, targets) = (Tensor::new(&[1u32, 0], &Device::Cpu)?, deltas.zeros_like()?);
/// let loss = box_loss(&deltas, &labels, &targets)?.to_scalar::<f32>()?;
/// assert!((loss - 17.0 / 36.0).abs() < 1e-6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Reference: torchvision `models/detection/rpn.py`, `compute_loss`, and `models/detection/roi_heads.py`,
/// `fastrcnn_loss`.
pub fn box_loss(deltas: &Tensor, labels: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let loss = Loss::Boxes;
    let columns = deltas.dims().last().copied();
    let columns = columns.filter(|columns| *columns > 0 && columns.is_multiple_of(4));
    let columns = columns
        .ok_or_else(|| argument(loss.op(), "deltas", deltas).shape_error("[R, 4] or [R, 4 · C]"))?;
    check_rows(loss, "deltas", deltas, labels, &[columns])?;
    check_rows(loss, "targets", targets, labels, &[4])?;
    Compared::new(loss, deltas, labels, Some(targets), columns).cost(deltas)
}

/// `loss_mask`: binary cross-entropy between the logits of the true class's masks and the wanted shares, averaged over
/// all cells of the rows with an object.
///
/// # Shapes
/// `R` may be several axes, of which only the product counts.
///
/// | argument | shape | dtype | |
/// | --- | --- | --- | --- |
/// | `logits` | `[R, M, M']` | f32 | of each row's own class |
/// | `labels` | `[R]` | u32 | 0 for background, above for an object, [`IGNORED_LABEL`] |
/// | `targets` | `[R, M, M']` | f32 | shares in `0..=1`, looked at where a row has an object |
/// | returns | `[]` | f32 | 0 without an object |
///
/// # Devices
/// CPU; CUDA in two launches, and one for the gradient.
///
/// # Gradients
/// Of `logits`.
///
/// # Errors
/// As for [`objectness_loss`].
///
/// # Example
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_detection::ops::mask_loss;
///
/// let logits = Tensor::new(&[[[0f32, 0.0]], [[7.0, 7.0]]], &Device::Cpu)?; // two rows, 1×2 cells
/// let labels = Tensor::new(&[3u32, 0], &Device::Cpu)?;
/// let targets = Tensor::new(&[[[1f32, 0.5]], [[0.0, 0.0]]], &Device::Cpu)?;
/// let loss = mask_loss(&logits, &labels, &targets)?.to_scalar::<f32>()?;
/// assert!((loss - 2f32.ln()).abs() < 1e-6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Reference: torchvision `models/detection/roi_heads.py`, `maskrcnn_loss`.
pub fn mask_loss(logits: &Tensor, labels: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let loss = Loss::Masks;
    let [.., height, width] = *logits.dims() else {
        return Err(argument(loss.op(), "logits", logits).shape_error("[R, M, M']"));
    };
    check_rows(loss, "logits", logits, labels, &[height, width])?;
    check_rows(loss, "targets", targets, labels, &[height, width])?;
    Compared::new(loss, logits, labels, Some(targets), height * width).cost(logits)
}

/// Which loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    Objectness,
    Classifier,
    Boxes,
    Masks,
}

impl Loss {
    fn op(self) -> &'static str {
        match self {
            Self::Objectness => "objectness_loss",
            Self::Classifier => "classifier_loss",
            Self::Boxes => "box_loss",
            Self::Masks => "mask_loss",
        }
    }

    /// Whether rows with a label are averaged over.
    fn counts(self, label: u32) -> bool {
        match self {
            Self::Objectness | Self::Classifier | Self::Boxes => label != IGNORED_LABEL,
            Self::Masks => label != IGNORED_LABEL && label > 0,
        }
    }

    /// Terms of a row that are averaged over, of rows with so many predictions.
    fn terms(self, width: usize) -> usize {
        match self {
            Self::Objectness | Self::Classifier | Self::Boxes => 1,
            Self::Masks => width,
        }
    }

    /// The number of classes among which labels must be, where predictions are of classes.
    fn classes(self, width: usize) -> Option<usize> {
        match self {
            Self::Classifier => Some(width),
            Self::Boxes => (width > 4).then_some(width / 4),
            Self::Objectness | Self::Masks => None,
        }
    }
}

/// Requires f32 values, a row of these dimensions for each label.
fn check_rows(
    loss: Loss,
    name: &'static str,
    values: &Tensor,
    labels: &Tensor,
    row: &[usize],
) -> Result<()> {
    argument(loss.op(), "labels", labels).dtype(DType::U32)?;
    let checked = argument(loss.op(), name, values).dtype(DType::F32)?.same_device(labels)?;
    let rows = labels.elem_count();
    let leading = values.dims().strip_suffix(row).map(|dims| dims.iter().product::<usize>());
    if leading == Some(rows) {
        return Ok(());
    }
    Err(checked.shape_error(&format!("{rows} rows, one per label, of {row:?}")))
}

/// Requires labels to be classes.
fn check_labels(op: &'static str, labels: &[u32], classes: usize) -> Result<()> {
    let is_class = |label: &u32| *label == IGNORED_LABEL || (*label as usize) < classes;
    match labels.iter().find(|label| !is_class(label)) {
        None => Ok(()),
        Some(label) => Err(Error::Shape {
            op,
            argument: "labels",
            expected: format!("classes below {classes}"),
            found: vec![*label as usize],
        }),
    }
}

/// Rows of predictions and what they should be, cut off from any graph.
struct Compared {
    loss: Loss,
    predictions: Tensor,
    labels: Tensor,
    targets: Option<Tensor>,
    /// Predictions of a row.
    width: usize,
}

impl Compared {
    fn new(
        loss: Loss,
        predictions: &Tensor,
        labels: &Tensor,
        targets: Option<&Tensor>,
        width: usize,
    ) -> Self {
        Self {
            loss,
            predictions: predictions.detach(),
            labels: labels.clone(),
            targets: targets.map(Tensor::detach),
            width,
        }
    }

    /// The loss, as a function of the predictions in their graph.
    fn cost(self, predictions: &Tensor) -> Result<Tensor> {
        let (value, share) = match predictions.device() {
            Device::Cpu => self.cost_on_cpu(),
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => cuda::cost(&self),
            other => Err(unsupported(self.loss.op(), other)),
        }?;
        let op = self.loss.op();
        record(op, &[predictions], value, || Ok(LossBackward { compared: self, share }))
    }

    fn cost_on_cpu(&self) -> Result<(Tensor, Tensor)> {
        let (value, share) = self.with_rows(|rows| {
            if let Some(classes) = self.loss.classes(self.width) {
                check_labels(self.loss.op(), rows.labels, classes)?;
            }
            Ok(rows.cost())
        })?;
        Ok((Tensor::new(value, &Device::Cpu)?, Tensor::new(share, &Device::Cpu)?))
    }

    fn with_rows<R>(&self, work: impl FnOnce(cpu::Rows<'_>) -> Result<R>) -> Result<R> {
        let Self { loss, predictions, labels, targets, width } = self;
        lend!(predictions: f32, labels: u32);
        with_optional_slice(targets.as_ref(), |targets| {
            let targets = targets.unwrap_or_default();
            work(cpu::Rows { loss: *loss, width: *width, predictions, labels, targets })
        })?
    }
}

struct LossBackward {
    compared: Compared,
    /// `[]` f64: one over the number of terms that the loss is averaged over, or 0.
    share: Tensor,
}

impl Backward for LossBackward {
    fn backward(
        &self,
        _: Option<&Tensor>,
        gradient: &Tensor,
        _: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let Self { compared, share } = self;
        let of_predictions = match gradient.device() {
            Device::Cpu => {
                let factor = share.to_scalar::<f64>()? * f64::from(gradient.to_scalar::<f32>()?);
                let slopes = compared.with_rows(|rows| Ok(rows.slopes(factor)))?;
                Tensor::from_vec(slopes, compared.predictions.shape(), &Device::Cpu)?
            }
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => cuda::slopes(compared, share, gradient)?,
            other => return Err(unsupported("gradients of losses", other)),
        };
        Ok(vec![Some(of_predictions)])
    }
}
