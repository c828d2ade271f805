//! The network: a backbone and an architecture, for inference and for training.
//!
//! In: a batch of images, for training with its objects. Out: detections on the device, or losses. This room knows nothing
//! of weight files, and nothing of optimisers.

mod builder;

use candle_core::Tensor;
use candle_nn::VarBuilder;

pub use builder::NetworkBuilder;

use crate::architecture::Architecture;
use crate::backbone::Backbone;
use crate::config::ModelConfig;
use crate::error::Result;
use crate::postprocess::DetectionsConfig;
use crate::structures::{DetectionBatch, ImageBatch};
use crate::targets::{ObjectBatch, Sampler};
use crate::transform;

/// A detector's parts on a device.
pub struct DetectionNetwork {
    /// Batch → feature maps.
    pub backbone: Box<dyn Backbone>,
    /// Feature maps → detections, or losses.
    pub architecture: Box<dyn Architecture>,
}

impl DetectionNetwork {
    /// Loads the network that a model file describes, with torchvision's parameter names.
    ///
    /// # Errors
    /// Those of [`NetworkBuilder::build`].
    pub fn load(weights: &VarBuilder<'_>, config: &ModelConfig) -> Result<Self> {
        NetworkBuilder::default().build(weights, config)
    }

    /// Detects the objects of a batch; everything stays on its device.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    pub fn detect(&self, batch: &ImageBatch, config: &DetectionsConfig) -> Result<DetectionBatch> {
        let features = self.backbone.forward(&batch.pixels)?;
        let detected = self.architecture.detect(&features, &batch.geometry, config)?;
        transform::restore(detected.instances, detected.extras, &batch.geometry)
    }

    /// What the difference between predictions and objects costs, one number for each of the architecture's
    /// [`loss_names`](Architecture::loss_names).
    ///
    /// # Errors
    /// Those of the sampler, and of the ops it is made of.
    pub fn losses(
        &self,
        batch: &ImageBatch,
        objects: &ObjectBatch,
        sampler: &mut dyn Sampler,
    ) -> Result<Vec<Tensor>> {
        let features = self.backbone.forward(&batch.pixels)?;
        self.architecture.losses(&features, &batch.geometry, objects, sampler)
    }

    /// The architecture's own parts, if it is a `T`.
    pub fn parts<T: Architecture>(&self) -> Option<&T> {
        self.architecture.downcast_ref()
    }
}
