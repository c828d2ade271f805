//! The network that a model file describes, with parts of the user's own where there are any.

use std::sync::Arc;

use candle_nn::VarBuilder;

use super::DetectionNetwork;
use crate::architecture::{Architecture, Foundation};
use crate::backbone::{Backbone, Body, BodyAndNeck, Neck, Stage};
use crate::config::ModelConfig;
use crate::error::Result;
use crate::rcnn::HeadConstructor;
use crate::rcnn::roi_heads::InstanceHead;
use crate::structures::FeatureLevel;

type Constructor<P> = Arc<dyn Fn(VarBuilder<'_>, &ModelConfig) -> Result<Box<P>> + Send + Sync>;
type NeckConstructor =
    Arc<dyn Fn(VarBuilder<'_>, &[Stage], &ModelConfig) -> Result<Box<dyn Neck>> + Send + Sync>;
type ArchitectureConstructor =
    Arc<dyn Fn(&Foundation<'_>, &ModelConfig) -> Result<Box<dyn Architecture>> + Send + Sync>;

/// Builds networks, of the crate's parts and of the user's own. A clone builds the same: for inference and for training
/// it is handed to [`DetectorBuilder::network`](crate::DetectorBuilder::network) and to
/// `train::Network::from_checkpoint_with`.
#[derive(Clone, Default)]
pub struct NetworkBuilder {
    backbone: Option<Constructor<dyn Backbone>>,
    body: Option<Constructor<dyn Body>>,
    neck: Option<NeckConstructor>,
    architecture: Option<ArchitectureConstructor>,
    heads: Vec<HeadConstructor>,
}

impl NetworkBuilder {
    /// A backbone of your own, in place of body and neck, built from the weights under `backbone.`.
    #[must_use]
    pub fn backbone(
        mut self,
        build: impl Fn(VarBuilder<'_>, &ModelConfig) -> Result<Box<dyn Backbone>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.backbone = Some(Arc::new(build));
        self
    }

    /// A body of your own, under the model's neck, built from the weights under `backbone.body.` where the neck is a
    /// feature pyramid.
    #[must_use]
    pub fn body(
        mut self,
        build: impl Fn(VarBuilder<'_>, &ModelConfig) -> Result<Box<dyn Body>> + Send + Sync + 'static,
    ) -> Self {
        self.body = Some(Arc::new(build));
        self
    }

    /// A neck of your own on the stages of the body, built from the weights under `backbone.`.
    #[must_use]
    pub fn neck(
        mut self,
        build: impl Fn(VarBuilder<'_>, &[Stage], &ModelConfig) -> Result<Box<dyn Neck>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.neck = Some(Arc::new(build));
        self
    }

    /// An architecture of your own, whatever the section `architecture` says.
    #[must_use]
    pub fn architecture(
        mut self,
        build: impl Fn(&Foundation<'_>, &ModelConfig) -> Result<Box<dyn Architecture>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.architecture = Some(Arc::new(build));
        self
    }

    /// One more head on the detections of a two-stage detector, built from the weights under `roi_heads.`.
    #[must_use]
    pub fn head(
        mut self,
        build: impl Fn(VarBuilder<'_>, &[FeatureLevel]) -> Result<Box<dyn InstanceHead>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.heads.push(Arc::new(build));
        self
    }

    /// Builds the network that a model file describes, from weights with torchvision's parameter names.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) where sections don't fit each other; those of the constructors, of the
    /// weights' source, and of candle.
    pub fn build(
        &self,
        weights: &VarBuilder<'_>,
        config: &ModelConfig,
    ) -> Result<DetectionNetwork> {
        let backbone = self.build_backbone(&weights.pp("backbone"), config)?;
        let architecture = {
            let foundation = Foundation {
                weights: weights.clone(),
                levels: backbone.levels(),
                num_classes: config.num_classes,
            };
            match &self.architecture {
                Some(build) => build(&foundation, config)?,
                None => config.architecture.build(&foundation, &self.heads)?,
            }
        };
        Ok(DetectionNetwork { backbone, architecture })
    }

    fn build_backbone(
        &self,
        weights: &VarBuilder<'_>,
        config: &ModelConfig,
    ) -> Result<Box<dyn Backbone>> {
        if let Some(build) = &self.backbone {
            return build(weights.clone(), config);
        }
        let of_body = match config.neck.body_prefix() {
            "" => weights.clone(),
            prefix => weights.pp(prefix),
        };
        let body = match &self.body {
            Some(build) => build(of_body, config)?,
            None => config.body.build(&of_body)?,
        };
        let neck = match &self.neck {
            Some(build) => build(weights.clone(), body.stages(), config)?,
            None => config.neck.build(weights, body.stages())?,
        };
        Ok(Box::new(BodyAndNeck::new(body, neck)))
    }
}
