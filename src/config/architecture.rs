//! The section `architecture` of a model file.

use serde::{Deserialize, Serialize};

use crate::architecture::{Architecture, Foundation};
use crate::dense::{Fcos, FcosConfig, RetinaNet, RetinaNetConfig, Ssd, SsdConfig};
use crate::error::Result;
use crate::rcnn::{GeneralizedRcnn, HeadConstructor, RcnnConfig};
use crate::section::Checks;
use crate::structures::{FeatureLevel, InstanceParts};

/// The detector without its backbone; the only place that knows which kinds there are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ArchitectureConfig {
    /// A two-stage detector.
    Rcnn(RcnnConfig),
    /// RetinaNet.
    Retinanet(RetinaNetConfig),
    /// FCOS.
    Fcos(FcosConfig),
    /// SSD and SSDLite.
    Ssd(SsdConfig),
    /// One of the user's own, whose settings are not looked at.
    Custom(CustomConfig),
}

/// An architecture from outside the crate: see
/// [`NetworkBuilder::architecture`](crate::NetworkBuilder::architecture).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CustomConfig {
    /// Whatever the architecture reads.
    #[serde(default)]
    pub settings: toml::Table,
}

impl ArchitectureConfig {
    /// Checks the numbers of the section for a backbone of these levels.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), naming the field at fault.
    pub fn validate(&self, levels: &[FeatureLevel], checks: &Checks) -> Result<()> {
        match self {
            Self::Rcnn(config) => config.validate(levels, checks),
            Self::Retinanet(config) => config.validate(levels, checks),
            Self::Fcos(config) => config.validate(levels, checks),
            Self::Ssd(config) => config.validate(levels, checks),
            Self::Custom(_) => Ok(()),
        }
    }

    /// Builds the architecture on a backbone, with heads on the detections beside its own.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for heads on an architecture that takes none, and for one of the user's own,
    /// which the user builds; those of the weights' source, and of candle.
    pub fn build(
        &self,
        foundation: &Foundation<'_>,
        heads: &[HeadConstructor],
    ) -> Result<Box<dyn Architecture>> {
        if !matches!(self, Self::Rcnn(_)) && !heads.is_empty() {
            return Err(Checks::new("the model").fault(
                "architecture.kind",
                format!("that of a detector without proposals, with {} heads", heads.len()),
                "`rcnn`, or no call of `NetworkBuilder::head`",
            ));
        }
        match self {
            Self::Rcnn(config) => Ok(Box::new(GeneralizedRcnn::load(foundation, config, heads)?)),
            Self::Retinanet(config) => Ok(Box::new(RetinaNet::load(foundation, config)?)),
            Self::Fcos(config) => Ok(Box::new(Fcos::load(foundation, config)?)),
            Self::Ssd(config) => Ok(Box::new(Ssd::load(foundation, config)?)),
            Self::Custom(_) => Err(Checks::new("the model").fault(
                "architecture.kind",
                "`custom`",
                "a constructor, given to `NetworkBuilder::architecture`",
            )),
        }
    }

    /// What detections have besides boxes, and what training learns from.
    pub fn parts(&self) -> InstanceParts {
        match self {
            Self::Rcnn(config) => config.parts(),
            _ => InstanceParts::BOXES,
        }
    }

    /// Prefixes of the parameters of norms that are never trained.
    pub fn fixed_norms(&self) -> Vec<String> {
        match self {
            Self::Rcnn(config) => config.fixed_norms(),
            Self::Ssd(config) => config.fixed_norms(),
            Self::Retinanet(_) | Self::Fcos(_) | Self::Custom(_) => Vec::new(),
        }
    }

    /// The settings of a two-stage detector.
    pub fn as_rcnn(&self) -> Option<&RcnnConfig> {
        match self {
            Self::Rcnn(config) => Some(config),
            _ => None,
        }
    }

    /// The settings of a two-stage detector, to be changed.
    pub fn as_rcnn_mut(&mut self) -> Option<&mut RcnnConfig> {
        match self {
            Self::Rcnn(config) => Some(config),
            _ => None,
        }
    }

    /// The settings of a RetinaNet, to be changed.
    pub fn as_retinanet_mut(&mut self) -> Option<&mut RetinaNetConfig> {
        match self {
            Self::Retinanet(config) => Some(config),
            _ => None,
        }
    }

    /// The settings of an FCOS, to be changed.
    pub fn as_fcos_mut(&mut self) -> Option<&mut FcosConfig> {
        match self {
            Self::Fcos(config) => Some(config),
            _ => None,
        }
    }

    /// The settings of an SSD, to be changed.
    pub fn as_ssd_mut(&mut self) -> Option<&mut SsdConfig> {
        match self {
            Self::Ssd(config) => Some(config),
            _ => None,
        }
    }
}
