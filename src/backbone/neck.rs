//! Necks: what makes the levels that a detector looks at from the stages of a body.

use candle_nn::VarBuilder;
use serde::{Deserialize, Serialize};

use super::Stage;
use super::fpn::{FeaturePyramid, FpnConfig};
pub use super::parts::Neck;
use super::ssd_levels::{SsdLevels, SsdLevelsConfig};
use super::ssdlite::{SsdLiteLevels, SsdLiteLevelsConfig};
use crate::error::Result;
use crate::section::Checks;
use crate::structures::FeatureLevel;

/// The section `neck` of a model file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum NeckConfig {
    /// A feature pyramid.
    Fpn(FpnConfig),
    /// The levels of SSD on a VGG16.
    SsdLevels(SsdLevelsConfig),
    /// The stages of the body, and coarser levels of separable convolutions.
    #[serde(rename = "ssdlite_levels")]
    SsdLiteLevels(SsdLiteLevelsConfig),
}

impl NeckConfig {
    /// Checks the numbers of the section for a body of these stages.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), naming the field at fault.
    pub fn validate(&self, stages: &[Stage], checks: &Checks) -> Result<()> {
        match self {
            Self::Fpn(config) => config.validate(stages, checks),
            Self::SsdLevels(config) => config.validate(stages, checks),
            Self::SsdLiteLevels(config) => config.validate(stages, checks),
        }
    }

    /// Builds the neck of a body of these stages, from the weights under `backbone.`.
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn build(&self, weights: &VarBuilder, stages: &[Stage]) -> Result<Box<dyn Neck>> {
        Ok(match self {
            Self::Fpn(config) => {
                Box::new(FeaturePyramid::load(&weights.pp("fpn"), stages, config)?)
            }
            Self::SsdLevels(config) => Box::new(SsdLevels::load(weights, stages, config)?),
            Self::SsdLiteLevels(config) => Box::new(SsdLiteLevels::load(weights, stages, config)?),
        })
    }

    /// The levels on a body of these stages, known without weights.
    pub fn levels(&self, stages: &[Stage]) -> Vec<FeatureLevel> {
        match self {
            Self::Fpn(config) => config.levels(stages),
            Self::SsdLevels(config) => config.levels(stages),
            Self::SsdLiteLevels(config) => config.levels(stages),
        }
    }

    /// The stride of the coarsest level that is added to a finer one, so that sides of the batch must be multiples of it.
    pub fn coarsest_aligned_stride(&self, stages: &[Stage]) -> usize {
        match self {
            Self::Fpn(_) => stages.last().map_or(1, |stage| stage.stride),
            Self::SsdLevels(_) | Self::SsdLiteLevels(_) => 1,
        }
    }

    /// Where the weights of the body are, under `backbone.`.
    pub fn body_prefix(&self) -> &'static str {
        match self {
            Self::Fpn(_) => "body",
            Self::SsdLevels(_) | Self::SsdLiteLevels(_) => "features",
        }
    }

    /// The settings of a feature pyramid, to be changed.
    pub fn as_fpn_mut(&mut self) -> Option<&mut FpnConfig> {
        match self {
            Self::Fpn(config) => Some(config),
            _ => None,
        }
    }

    /// Prefixes, under `backbone.`, of the parameters of norms that are never trained.
    pub fn fixed_norms(&self) -> Vec<String> {
        match self {
            Self::Fpn(config) => config.norm.fixed_at("fpn."),
            Self::SsdLevels(_) => Vec::new(),
            Self::SsdLiteLevels(config) => config.norm.fixed_at("extra."),
        }
    }

    /// Prefixes, under `backbone.`, of the parameters of each part of the body that is in the neck and may be frozen on its
    /// own, from the last to the first; these come after all parts in the body.
    pub fn parts(&self) -> Vec<Vec<String>> {
        match self {
            Self::Fpn(_) | Self::SsdLiteLevels(_) => Vec::new(),
            Self::SsdLevels(_) => SsdLevelsConfig::parts(),
        }
    }
}
