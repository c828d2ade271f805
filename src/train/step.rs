//! One step of training: images and targets → losses → gradients.

use std::fmt;

use candle_core::Tensor;

use super::batch::Batch;
use super::gradients::Gradients;
use super::ground_truth::GroundTruth;
use super::losses::Loss;
use super::network::Network;
use super::parameters::Parameter;
use super::sample::Sampler;
use super::{roi_losses, rpn_losses};
use crate::error::{Error, Result};
use crate::rpn::RpnOutput;
use crate::structures::BatchGeometry;
use crate::transform;

/// The losses of a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Losses {
    /// Is there an object at an anchor: cross-entropy.
    pub objectness: f32,
    /// Where exactly: smooth L1 of the deltas of anchors.
    pub rpn_box_reg: f32,
    /// What is it: cross-entropy.
    pub classifier: f32,
    /// Where exactly: smooth L1 of the deltas of proposals.
    pub box_reg: f32,
    /// Which pixels: cross-entropy; `None` where the model has no mask head.
    pub mask: Option<f32>,
}

impl Losses {
    /// The sum, which training makes small.
    pub fn total(&self) -> f32 {
        self.named().map(|(_, value)| value).sum()
    }

    /// Each with torchvision's name.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, f32)> {
        let mask = self.mask.map(|mask| ("loss_mask", mask));
        [
            ("loss_objectness", self.objectness),
            ("loss_rpn_box_reg", self.rpn_box_reg),
            ("loss_classifier", self.classifier),
            ("loss_box_reg", self.box_reg),
        ]
        .into_iter()
        .chain(mask)
    }

    /// How many there are at most.
    pub(super) const COUNT: usize = 5;

    /// Each multiplied by a number.
    pub(super) fn scaled(&self, factor: f32) -> Self {
        self.map(|_, value| value * factor)
    }

    /// The sum with the losses of another batch of the same network.
    pub(super) fn plus(&self, other: &Self) -> Self {
        let others: Vec<f32> = other.named().map(|(_, value)| value).collect();
        self.map(|index, value| value + others[index])
    }

    /// With other values, in the order of [`Self::named`].
    pub(super) fn replaced(&self, values: &[f32]) -> Self {
        self.map(|index, _| values[index])
    }

    fn map(&self, change: impl Fn(usize, f32) -> f32) -> Self {
        Self {
            objectness: change(0, self.objectness),
            rpn_box_reg: change(1, self.rpn_box_reg),
            classifier: change(2, self.classifier),
            box_reg: change(3, self.box_reg),
            mask: self.mask.map(|mask| change(4, mask)),
        }
    }

    /// Whether all are finite.
    pub fn are_finite(&self) -> bool {
        self.named().all(|(_, value)| value.is_finite())
    }
}

impl fmt::Display for Losses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (name, value)) in self.named().enumerate() {
            let separator = if place > 0 { ", " } else { "" };
            write!(f, "{separator}{name} {value:.4}")?;
        }
        Ok(())
    }
}

/// The losses of a batch, with the graph they were computed by.
pub struct Evaluated {
    /// Their values.
    pub losses: Losses,
    total: Option<Tensor>,
}

impl Evaluated {
    /// The gradients of the sum of the losses by `parameters`. The graph is freed.
    ///
    /// # Errors
    /// Those of candle.
    pub fn gradients(self, parameters: &[Parameter]) -> Result<Gradients> {
        let Some(total) = self.total else {
            let zeros = |p: &Parameter| Ok((p.name.clone(), p.var.zeros_like()?));
            let zeros: Vec<_> = parameters.iter().map(zeros).collect::<Result<_>>()?;
            return Gradients::from_tensors(zeros);
        };
        Gradients::take(&mut total.backward()?, parameters)
    }
}

impl Network {
    /// Computes the losses of a batch. No parameter is changed, and of the buffers only the running statistics of batch
    /// norms that are trained; for a validation loss, drop the graph.
    ///
    /// # Errors
    /// [`Error::Target`] for a target that the model can't learn from, [`Error::TrainingState`] for a batch without
    /// images or with another number of targets, [`Error::NonFinite`], and those of the sampler and of the ops.
    pub fn evaluate(&self, batch: &Batch, sampler: &mut dyn Sampler) -> Result<Evaluated> {
        check_batch(batch)?;
        let mut image = self.config.image.clone();
        image.min_size = batch.min_size.unwrap_or(image.min_size);
        let input = transform::to_batch(&batch.images, &image, &self.device, self.dtype())?;
        let geometry = &input.geometry;
        let truths = self.ground_truth(batch, geometry)?;

        let features = self.backbone.forward(&input.pixels)?;
        let predicted = self.rpn.predict(&features)?;
        let proposals = self.rpn.propose(&detached(&predicted), geometry)?;
        let [objectness, rpn_box_reg] =
            rpn_losses::losses(self, &predicted, &truths, geometry, sampler)?;
        let (classifier, box_reg, mask) =
            roi_losses::losses(self, &features, &proposals, &truths, geometry, sampler)?;

        let losses = Losses {
            objectness: objectness.value,
            rpn_box_reg: rpn_box_reg.value,
            classifier: classifier.value,
            box_reg: box_reg.value,
            mask: mask.as_ref().map(|mask| mask.value),
        };
        if !losses.are_finite() {
            let images = batch.targets.iter().map(|target| target.image_id).collect();
            return Err(Error::NonFinite {
                what: "a loss".to_owned(),
                images,
                losses: losses.to_string(),
            });
        }
        let terms = [objectness, rpn_box_reg, classifier, box_reg].into_iter().chain(mask);
        let mut total: Option<Tensor> = None;
        for graph in terms.filter_map(|term| term.graph) {
            total = Some(match total {
                Some(total) => (total + graph)?,
                None => graph,
            });
        }
        Ok(Evaluated { losses, total })
    }
}

impl Network {
    fn ground_truth(&self, batch: &Batch, geometry: &BatchGeometry) -> Result<Vec<GroundTruth>> {
        let classes = self.config.num_classes;
        let pairs = batch.targets.iter().zip(&geometry.images);
        pairs
            .map(|(target, image)| GroundTruth::new(target, image, classes, self.mask_use()))
            .collect()
    }
}

fn check_batch(batch: &Batch) -> Result<()> {
    let (images, targets) = (batch.images.len(), batch.targets.len());
    if images > 0 && images == targets {
        return Ok(());
    }
    Err(Error::TrainingState {
        what: "a batch".to_owned(),
        found: format!("{images} images and {targets} targets"),
        expected: "one target per image, and at least one image".to_owned(),
    })
}

/// Proposals are constants: nothing is learned through them.
fn detached(output: &RpnOutput) -> RpnOutput {
    let detach = |levels: &[Tensor]| levels.iter().map(Tensor::detach).collect();
    RpnOutput { objectness: detach(&output.objectness), deltas: detach(&output.deltas) }
}

/// A loss, and its place in the graph unless nothing was sampled.
pub(super) struct LossTerm {
    value: f32,
    graph: Option<Tensor>,
}

impl LossTerm {
    /// Downloads predictions, computes their loss, and hangs it into the graph.
    pub(super) fn of(
        predictions: Option<Tensor>,
        loss: impl FnOnce(&[f32]) -> Result<Loss>,
    ) -> Result<Self> {
        let Some(predictions) = predictions else {
            return Ok(Self { value: loss(&[])?.value, graph: None });
        };
        let loss = loss(&predictions.flatten_all()?.detach().to_vec1::<f32>()?)?;
        Ok(Self { value: loss.value, graph: Some(loss.attach(&predictions)?) })
    }
}
