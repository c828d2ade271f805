//! One step of training: images and targets → losses → gradients.

use std::collections::HashMap;
use std::fmt;

use candle_core::{Tensor, TensorId};

use super::batch::Batch;
use super::collector::Collector;
use super::gradients::Gradients;
use super::ground_truth::GroundTruth;
use super::network::Network;
use super::objects::ObjectBatch;
use super::parameters::Parameter;
use super::sample::Sampler;
use super::{roi_losses, rpn_losses};
use crate::error::{Error, Result};
use crate::ops::pack_results;
use crate::ops::support::autograd::Leaves;
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

    /// The mean over batches of one network; `None` of none.
    pub fn mean(all: &[Self]) -> Option<Self> {
        let (first, others) = all.split_first()?;
        let sum = others.iter().fold(*first, |sum, losses| sum.plus(losses));
        Some(sum.scaled(1.0 / all.len() as f32))
    }

    /// From their values, in the order of [`Self::named`]: four, and one where the model has a mask head.
    pub(super) fn of(values: &[f32]) -> Self {
        let value = |place: usize| values.get(place).copied();
        let [objectness, rpn_box_reg, classifier, box_reg] =
            [0, 1, 2, 3].map(|place| value(place).unwrap_or(0.0));
        Self { objectness, rpn_box_reg, classifier, box_reg, mask: value(4) }
    }

    /// Each multiplied by a number.
    pub(super) fn scaled(&self, factor: f32) -> Self {
        self.map(|_, value| value * factor)
    }

    /// The sum with the losses of another batch of the same network.
    pub(super) fn plus(&self, other: &Self) -> Self {
        let others: Vec<f32> = other.named().map(|(_, value)| value).collect();
        self.map(|index, value| value + others[index])
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
    /// Ids of the images.
    images: Vec<u64>,
    values: Tensor,
    total: Tensor,
    leaves: Leaves,
}

impl Evaluated {
    /// The losses: from a GPU a download, which waits for them.
    ///
    /// # Errors
    /// [`Error::NonFinite`], which names the images; those of candle.
    pub fn losses(&self) -> Result<Losses> {
        #[cfg(feature = "cuda")]
        crate::ops::count_download(&self.values);
        let losses = Losses::of(&self.values.to_vec1::<f32>()?);
        if losses.are_finite() {
            return Ok(losses);
        }
        Err(Error::NonFinite {
            what: "a loss".to_owned(),
            images: self.images.clone(),
            losses: losses.to_string(),
        })
    }

    /// The losses where they were computed, `[L]` f32 in the order of [`Losses::named`], outside of any graph. They may not
    /// be finite.
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// The gradients of the sum of the losses by `parameters`. The graph is freed.
    ///
    /// # Errors
    /// Those of candle.
    pub fn gradients(self, parameters: &[Parameter]) -> Result<Gradients> {
        let collector = Collector::new(parameters.into(), None);
        let receiver = collector.clone();
        self.backward(parameters, move |place, gradient| receiver.add(place, gradient))?;
        collector.finish()
    }

    /// Computes the gradients of the sum of the losses, and hands each over as soon as it is complete, while the pass goes
    /// on: the last layer's first. `receive` gets the place among `parameters` and the gradient, contiguous, of the
    /// parameter's shape; from a GPU it is work in the queue. A parameter that no loss depends on is left out. The graph
    /// is freed.
    ///
    /// # Errors
    /// What `receive` returns, which ends the pass; those of candle.
    pub fn backward(
        self,
        parameters: &[Parameter],
        mut receive: impl FnMut(usize, Tensor) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let ids = parameters.iter().map(|parameter| parameter.var.id());
        let places: HashMap<TensorId, usize> = ids.zip(0..).collect();
        self.leaves.backward(&self.total, move |id, gradient| match places.get(&id) {
            Some(place) => receive(*place, gradient.contiguous()?),
            None => Ok(()),
        })
    }
}

impl Network {
    /// Computes the losses of a batch, which need not be finite. No parameter is changed, and of the buffers only the
    /// running statistics of batch norms that are trained; for a validation loss, drop the graph.
    ///
    /// # Errors
    /// [`Error::Target`] for a target that the model can't learn from, [`Error::TrainingState`] for a batch without
    /// images or with another number of targets, and those of the sampler and of the ops.
    pub fn evaluate(&self, batch: &Batch, sampler: &mut dyn Sampler) -> Result<Evaluated> {
        check_batch(batch)?;
        let trained = self.parameters().trainable();
        let leaves = Leaves::new(trained.iter().map(|parameter| &parameter.var))?;
        let losses = leaves.watch(|| self.losses_of(batch, sampler))?;
        let total = losses[1..].iter().try_fold(losses[0].clone(), |sum, loss| sum + loss)?;
        let values = pack_results(&losses.iter().collect::<Vec<_>>())?;
        let images = batch.targets.iter().map(|target| target.image_id).collect();
        Ok(Evaluated { images, values, total, leaves })
    }

    /// Images and targets → losses, in the order of [`Losses::named`].
    fn losses_of(&self, batch: &Batch, sampler: &mut dyn Sampler) -> Result<Vec<Tensor>> {
        let mut image = self.config.image.clone();
        image.min_size = batch.min_size.unwrap_or(image.min_size);
        let input = transform::to_batch(&batch.images, &image, &self.device, self.dtype())?;
        let geometry = &input.geometry;
        let objects = ObjectBatch::upload(&self.ground_truth(batch, geometry)?, &self.device)?;

        let features = self.backbone.forward(&input.pixels)?;
        let predicted = self.rpn.predict(&features)?;
        let proposals = self.rpn.propose(&detached(&predicted), geometry)?;
        let mut losses =
            rpn_losses::losses(self, &predicted, &objects, geometry, sampler)?.to_vec();
        losses
            .extend(roi_losses::losses(self, &features, &proposals, &objects, geometry, sampler)?);
        Ok(losses)
    }
}

impl Network {
    fn ground_truth(&self, batch: &Batch, geometry: &BatchGeometry) -> Result<Vec<GroundTruth>> {
        let classes = self.config.num_classes;
        let pairs = batch.targets.iter().zip(&geometry.images);
        pairs
            .map(|(target, image)| GroundTruth::new(target, image, classes, self.target_needs()))
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
