//! What predictions at every place of a pyramid cost, with the gradient by each of them.
//!
//! Predictions stay in their levels. What each place is to learn follows from its match, and an image's costs are divided
//! as [`Normalization`] says. Costs are added up in f64 and in an order of their own, so that a sum does not depend on who
//! comes first. Where nothing is learned, nothing is looked at; a prediction that is NaN shows.

mod compared;
mod cpu;
mod cpu_focal;
mod cpu_hard_negatives;
#[cfg(feature = "cuda")]
mod cuda;
mod evaluate;
mod given;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use candle_core::{DType, Tensor};

use super::box_targets::Objects;
use super::support::box_coding::BoxCoding;
use super::support::check::argument;
use super::support::levels::Levels;
use crate::error::{Error, Result};
use compared::Compared;

/// Weight of the focal loss where the target is 1, and one less it where it is 0: the reference's.
pub const FOCAL_ALPHA: f32 = 0.25;
/// The error up to which [`BoxCost::SmoothL1`] is quadratic in the reference's one-stage detectors.
pub const DENSE_SMOOTH_L1_BETA: f32 = 1.0;

/// What costs are divided by, a positive being a place that has found an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Normalization {
    /// An image's costs by its positives, or 1 without any; then the mean over images.
    PerImage,
    /// All costs by the positives of the batch, or 1 without any.
    PerBatch,
}

/// What places are to learn.
#[derive(Debug, Clone, Copy)]
pub struct DenseTruth<'a> {
    /// `[N, A]` u32, see [`Match::code`](super::Match::code): what each place has found.
    pub matches: &'a Tensor,
    /// The objects of the batch.
    pub objects: Objects<'a>,
}

/// How far a predicted box is from the wanted one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum BoxCost {
    /// Sum of absolute differences of the values that describe the boxes.
    L1,
    /// As L1, but `½ d² / β` for differences `d` below β, else `|d| − ½ β`.
    SmoothL1 {
        /// Above 0.
        beta: f32,
    },
    /// One less the generalized IoU of the boxes themselves.
    Giou,
}

/// Parameters of [`dense_box_loss`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DenseBoxLossParams {
    /// How predictions describe boxes.
    pub coding: BoxCoding,
    /// How boxes are compared.
    pub cost: BoxCost,
    /// What costs are divided by.
    pub normalization: Normalization,
}

/// Sigmoid focal loss of the class logits of all places that are not ignored, with α = 0.25 and γ = 2.
///
/// A place wants 1 of the label of the object that it has found, and 0 of every other class; background wants 0 of all.
/// With the probability p of what is wanted, a logit costs `−α (1 − p)² ln p`, with `1 − α` where 0 is wanted.
///
/// # Shapes
/// | argument | shape | dtype | |
/// | --- | --- | --- | --- |
/// | `logits` | levels of `[N, H_l, W_l, a · C]`, or whatever holds as many values for each image | f32 | |
/// | `classes` | C | | labels are below |
/// | `truth` | see [`DenseTruth`]; A is the number of places of all levels | u32, f32 | |
/// | returns | `[]` | f32 | |
///
/// # Devices
/// CPU, on the threads of the current rayon pool, value and gradient in one pass and in f32 but for the sums; CUDA in
/// four launches, and one for the gradient. A label that is no class, or a match that is no object, is an error on the CPU;
/// on CUDA, where nobody waits to see it, the loss is NaN.
///
/// # Gradients
/// Of `logits`.
///
/// # Errors
/// [`Error::Shape`], [`Error::DType`] or [`Error::Device`] when the arguments don't fit the table; [`Error::Config`] for
/// more than 8 levels on CUDA; [`Error::Unsupported`] on other devices.
///
/// Reference: torchvision `ops/focal_loss.py`; `models/detection/retinanet.py` and `fcos.py`, `compute_loss`; Lin et al.,
/// arXiv:1708.02002.
pub fn focal_loss(
    logits: &[&Tensor],
    classes: usize,
    truth: DenseTruth<'_>,
    normalization: Normalization,
) -> Result<Tensor> {
    Compared::new(Loss::Focal, logits, classes, None, truth, normalization)?.cost(logits)
}

/// What predicted boxes of the places that have found an object cost, compared with that object.
///
/// # Shapes
/// | argument | shape | dtype | |
/// | --- | --- | --- | --- |
/// | `predictions` | levels of `[N, H_l, W_l, a · 4]`, see [`BoxCoding`] | f32 | |
/// | `anchors` | `[A, 4]`, each with an area | f32 | xyxy pixels |
/// | `truth` | see [`DenseTruth`] | u32, f32 | |
/// | returns | `[]` | f32 | 0 without an object |
///
/// # Devices
/// As for [`focal_loss`].
///
/// # Gradients
/// Of `predictions`. Where a formula has a kink, the derivative is the reference's: 0 where an L1 difference is 0.
///
/// # Errors
/// As for [`focal_loss`].
///
/// Reference: torchvision `models/detection/_utils.py`, `_box_loss`; `ops/giou_loss.py`.
pub fn dense_box_loss(
    predictions: &[&Tensor],
    anchors: &Tensor,
    truth: DenseTruth<'_>,
    params: &DenseBoxLossParams,
) -> Result<Tensor> {
    let DenseBoxLossParams { coding, cost, normalization } = *params;
    let loss = Loss::Boxes { coding, cost };
    Compared::new(loss, predictions, 4, Some(anchors), truth, normalization)?.cost(predictions)
}

/// Binary cross-entropy of the centerness of the points that have found an object, divided by the positives of the batch.
///
/// With the distances of a point to the sides of its object, it wants
/// `√((min(l, r) / max(l, r)) · (min(t, b) / max(t, b)))`: 1 at the center, 0 on a side. A point outside its object, which
/// [`assign_points`](super::assign_points) never gives, makes the loss NaN.
///
/// # Shapes
/// | argument | shape | dtype | |
/// | --- | --- | --- | --- |
/// | `logits` | levels of `[N, H_l, W_l, a]` | f32 | |
/// | `anchors` | `[A, 4]`, around each point | f32 | xyxy pixels |
/// | `truth` | see [`DenseTruth`] | u32, f32 | |
/// | returns | `[]` | f32 | 0 without an object |
///
/// # Devices
/// As for [`focal_loss`].
///
/// # Gradients
/// Of `logits`.
///
/// # Errors
/// As for [`focal_loss`].
///
/// Reference: torchvision `models/detection/fcos.py`, `FCOSHead.compute_loss`; Tian et al., arXiv:1904.01355, section 3.3.
pub fn centerness_loss(
    logits: &[&Tensor],
    anchors: &Tensor,
    truth: DenseTruth<'_>,
) -> Result<Tensor> {
    let by = Normalization::PerBatch;
    Compared::new(Loss::Centerness, logits, 1, Some(anchors), truth, by)?.cost(logits)
}

/// Cross-entropy of the class logits of the places that have found an object and of each image's hardest others, divided by
/// the positives of the batch.
///
/// A place that has found nothing wants class 0. Of these, the `negatives_per_positive` times as many as the image has
/// positives that cost most are learned from; of those that cost the same, the first. Where an image has fewer, the rest
/// are its first positives, which then count twice: the reference sorts them last, but leaves them in.
///
/// # Shapes
/// | argument | shape | dtype | |
/// | --- | --- | --- | --- |
/// | `logits` | levels of `[N, H_l, W_l, a · C]` | f32 | |
/// | `classes` | C, the background included | | labels are below |
/// | `truth` | see [`DenseTruth`]; places that are ignored are left out | u32, f32 | |
/// | `negatives_per_positive` | | | 3 in the reference |
/// | returns | `[]` | f32 | 0 without an object |
///
/// # Devices
/// CPU, on the threads of the current rayon pool; CUDA in six launches, and one for the gradient. Otherwise as for
/// [`focal_loss`].
///
/// # Gradients
/// Of `logits`. Which negatives are chosen is not differentiated.
///
/// # Errors
/// As for [`focal_loss`].
///
/// Reference: torchvision `models/detection/ssd.py`, `compute_loss`; Liu et al., arXiv:1512.02325, section 2.2.
pub fn hard_negative_loss(
    logits: &[&Tensor],
    classes: usize,
    truth: DenseTruth<'_>,
    negatives_per_positive: usize,
) -> Result<Tensor> {
    let loss = Loss::HardNegatives { per_positive: negatives_per_positive };
    let by = Normalization::PerBatch;
    Compared::new(loss, logits, classes, None, truth, by)?.cost(logits)
}

/// Which loss.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Loss {
    Focal,
    Boxes { coding: BoxCoding, cost: BoxCost },
    Centerness,
    HardNegatives { per_positive: usize },
}

impl Loss {
    fn op(self) -> &'static str {
        match self {
            Self::Focal => "focal_loss",
            Self::Boxes { .. } => "dense_box_loss",
            Self::Centerness => "centerness_loss",
            Self::HardNegatives { .. } => "hard_negative_loss",
        }
    }

    /// What the levels are called.
    fn predictions(self) -> &'static str {
        match self {
            Self::Boxes { .. } => "predictions",
            Self::Focal | Self::Centerness | Self::HardNegatives { .. } => "logits",
        }
    }

    /// Whether predictions are of classes, of which labels must be.
    fn has_classes(self) -> bool {
        matches!(self, Self::Focal | Self::HardNegatives { .. })
    }
}

/// Checks all arguments; returns how levels are read, and the number of objects of an image.
fn check(
    loss: Loss,
    predictions: &[&Tensor],
    width: usize,
    anchors: Option<&Tensor>,
    truth: DenseTruth<'_>,
) -> Result<(Levels, usize)> {
    let op = loss.op();
    let DenseTruth { matches, objects } = truth;
    let [images, rows] = argument(op, "matches", matches).dtype(DType::U32)?.dims("[N, A]")?;
    let levels =
        Levels::check(op, loss.predictions(), predictions, (images, width, rows), matches)?;
    if let Some(anchors) = anchors {
        let checked = argument(op, "anchors", anchors).dtype(DType::F32)?.same_device(matches)?;
        checked.shape(&[rows, 4], "[A, 4]")?;
    }
    let boxes = argument(op, "objects.boxes", objects.boxes).dtype(DType::F32)?;
    let [_, n_objects, _] = boxes.same_device(matches)?.dims("[N, G, 4]")?;
    boxes.shape(&[images, n_objects, 4], "[N, G, 4]")?;
    let labels = argument(op, "objects.labels", objects.labels).dtype(DType::U32)?;
    labels.same_device(matches)?.shape(&[images, n_objects], "[N, G]")?;
    if let Loss::Boxes { cost: BoxCost::SmoothL1 { beta }, .. } = loss
        && !(beta > 0.0 && beta.is_finite())
    {
        return Err(Error::Config {
            origin: op.to_owned(),
            field: "beta".to_owned(),
            found: beta.to_string(),
            expected: "a number above 0".to_owned(),
        });
    }
    Ok((levels, n_objects))
}
