//! Bodies: networks that were made to classify images, without their classifier.

use candle_core::Tensor;
use candle_nn::VarBuilder;
use serde::{Deserialize, Serialize};

use super::resnet::{ResNet, ResNetConfig};
use crate::error::Result;
use crate::section::Checks;

/// What is known of the output of a stage before any image is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    /// Channels.
    pub channels: usize,
    /// Input pixels per cell, the same in y and x.
    pub stride: usize,
}

/// A network that reads pixels and hands out the outputs of its stages.
pub trait Body: Send + Sync {
    /// The outputs that [`Self::forward`] returns, in its order, finest first.
    fn stages(&self) -> &[Stage];

    /// Computes `[N, H_s, W_s, C_s]` of each stage from `pixels`: `[N, H, W, 3]` f32, normalised, zero padded.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    fn forward(&self, pixels: &Tensor) -> Result<Vec<Tensor>>;
}

/// The section `body` of a model file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum BodyConfig {
    /// ResNet-18 to 152.
    Resnet(ResNetConfig),
}

impl BodyConfig {
    /// Checks the numbers of the section.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), naming the field at fault.
    pub fn validate(&self, checks: &Checks) -> Result<()> {
        match self {
            Self::Resnet(config) => config.validate(checks),
        }
    }

    /// Builds the body from the weights at its prefix.
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn build(&self, weights: &VarBuilder) -> Result<Box<dyn Body>> {
        Ok(match self {
            Self::Resnet(config) => Box::new(ResNet::load(weights, config)?),
        })
    }

    /// The stages of the body, known without its weights.
    pub fn stages(&self) -> Vec<Stage> {
        match self {
            Self::Resnet(config) => config.stages(),
        }
    }

    /// Prefixes of the parameters of each part that may be frozen on its own, from the last to the first.
    pub fn parts(&self) -> Vec<Vec<String>> {
        match self {
            Self::Resnet(_) => ResNetConfig::parts(),
        }
    }

    /// Has the norms learned, for a body that starts without the weights that fixed norms belong to.
    pub fn learn_norms(&mut self) {
        match self {
            Self::Resnet(config) => config.norm.learn(&mut config.norm_eps),
        }
    }

    /// The settings of a ResNet, to be changed.
    pub fn as_resnet_mut(&mut self) -> Option<&mut ResNetConfig> {
        match self {
            Self::Resnet(config) => Some(config),
        }
    }

    /// Prefixes of the parameters of norms that are never trained.
    pub fn fixed_norms(&self) -> Vec<String> {
        match self {
            Self::Resnet(config) => config.norm.fixed_at(""),
        }
    }
}
