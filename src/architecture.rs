//! What an architecture is: two compositions over the same parts.
//!
//! In: feature maps of a backbone. Out: in inference, instances and what was asked of them; in training, with the objects
//! of the batch, losses with names. The rooms of architectures (`rcnn`, …) implement it; this room knows none of them.

use std::any::Any;
use std::collections::BTreeMap;

use candle_core::Tensor;
use candle_nn::VarBuilder;

use crate::error::Result;
use crate::postprocess::DetectionsConfig;
use crate::structures::{BatchGeometry, FeatureLevel, FeatureMaps, Instances, TargetNeeds};
use crate::targets::{ObjectBatch, Sampler};

/// What an architecture is built from.
#[derive(Clone)]
pub struct Foundation<'a> {
    /// All weights of the model.
    pub weights: VarBuilder<'a>,
    /// What the backbone hands out.
    pub levels: &'a [FeatureLevel],
    /// Number of classes, the background (label 0) included.
    pub num_classes: usize,
}

/// What an architecture has detected, on the device.
#[derive(Debug, Clone)]
pub struct Detected {
    /// In pixels of the resized images.
    pub instances: Instances,
    /// What else was asked of each instance, by name: `[N, D, …]`, slot by slot.
    pub extras: BTreeMap<String, Tensor>,
}

/// A detector without its backbone.
///
/// Both flows are made of the same parts, whose parameters are constants for inference and variables for training;
/// nothing in an architecture asks which.
pub trait Architecture: Any + Send + Sync {
    /// Detects the objects of a batch; everything stays on its device, and no shape depends on what is found.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    fn detect(
        &self,
        features: &FeatureMaps,
        geometry: &BatchGeometry,
        config: &DetectionsConfig,
    ) -> Result<Detected>;

    /// Names of the losses, torchvision's where it has one.
    fn loss_names(&self) -> Vec<String>;

    /// What the difference between predictions and `objects` costs: a number for each of [`Self::loss_names`], in their
    /// order, on the device and with the graph it was computed by.
    ///
    /// # Errors
    /// Those of the sampler, and of the ops it is made of.
    fn losses(
        &self,
        features: &FeatureMaps,
        geometry: &BatchGeometry,
        objects: &ObjectBatch,
        sampler: &mut dyn Sampler,
    ) -> Result<Vec<Tensor>>;

    /// What targets need besides boxes and labels.
    fn target_needs(&self) -> TargetNeeds {
        TargetNeeds::BOXES
    }
}

impl dyn Architecture {
    /// The architecture itself, if it is a `T`: for those who look into its parts.
    pub fn downcast_ref<T: Architecture>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }
}
