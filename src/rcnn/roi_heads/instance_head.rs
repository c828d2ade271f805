//! What can be asked of a detection besides class and box.

use candle_core::Tensor;

use crate::error::Result;
use crate::structures::{BatchGeometry, FeatureMaps, Instances, TargetNeeds};
use crate::targets::{ObjectBatch, Sampled};

/// A head that adds something to detections already chosen: masks, keypoints, an embedding.
pub trait InstanceHead: Send + Sync {
    /// Key of the output in [`DetectionBatch::extras`](crate::structures::DetectionBatch::extras).
    fn name(&self) -> &str;

    /// Computes `[N, D, …]` f32, slot by slot with `instances`, whose boxes are in pixels of the resized images.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    fn forward(
        &self,
        features: &FeatureMaps,
        instances: &Instances,
        geometry: &BatchGeometry,
    ) -> Result<Tensor>;

    /// Name of the loss, of a head that learns.
    fn loss_name(&self) -> Option<&str> {
        None
    }

    /// What the difference between predictions and objects costs: a number, of the samples that have found an object
    /// (`sampled.samples.positives`). Asked of heads with a [`Self::loss_name`] alone.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    fn loss(
        &self,
        features: &FeatureMaps,
        _sampled: &Sampled<'_>,
        _objects: &ObjectBatch,
        _geometry: &BatchGeometry,
    ) -> Result<Tensor> {
        let device = features.levels.first().map_or(&candle_core::Device::Cpu, Tensor::device);
        Ok(Tensor::zeros((), candle_core::DType::F32, device)?)
    }

    /// What the head learns from besides boxes and labels.
    fn target_needs(&self) -> TargetNeeds {
        TargetNeeds::BOXES
    }
}
