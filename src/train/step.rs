//! One step of training: images and targets → losses → gradients.

use std::collections::HashMap;

use candle_core::{Tensor, TensorId};

use super::batch::Batch;
use super::collector::Collector;
use super::gradients::Gradients;
use super::losses::{LossNames, Losses};
use super::network::Network;
use super::parameters::Parameter;
use crate::error::{Error, Result};
use crate::ops::pack_results;
use crate::ops::support::autograd::Leaves;
use crate::structures::BatchGeometry;
use crate::targets::{GroundTruth, ObjectBatch, Sampler};
use crate::transform;

/// The losses of a batch, with the graph they were computed by.
pub struct Evaluated {
    /// Ids of the images.
    images: Vec<u64>,
    names: LossNames,
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
        let losses = Losses::new(&self.names, &self.values.to_vec1::<f32>()?);
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
        let names = self.loss_names().clone();
        Ok(Evaluated { images, names, values, total, leaves })
    }

    /// Images and targets → losses, in the order of [`Losses::named`].
    fn losses_of(&self, batch: &Batch, sampler: &mut dyn Sampler) -> Result<Vec<Tensor>> {
        let mut image = self.config.image.clone();
        image.min_size = batch.min_size.unwrap_or(image.min_size);
        let input = transform::to_batch(&batch.images, &image, &self.device, self.dtype())?;
        let geometry = &input.geometry;
        let objects = ObjectBatch::upload(&self.ground_truth(batch, geometry)?, &self.device)?;

        self.parts.losses(&input, &objects, sampler)
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
