//! Bodies: networks that were made to classify images, without their classifier.

use candle_nn::VarBuilder;
use serde::{Deserialize, Serialize};

use super::mobilenet_v3::{MobileNetV3, MobileNetV3Config};
pub use super::parts::{Body, Stage};
use super::resnet::{ResNet, ResNetConfig};
use super::ssdlite::{SplitMobileNetV3, split_parts, split_stages};
use super::vgg16::{Vgg16, Vgg16Config};
use crate::error::Result;
use crate::section::Checks;

/// The section `body` of a model file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum BodyConfig {
    /// ResNet-18 to 152, ResNeXt and Wide ResNet.
    Resnet(ResNetConfig),
    /// MobileNetV3-Large.
    #[serde(rename = "mobilenet_v3_large")]
    MobileNetV3Large(MobileNetV3Config),
    /// MobileNetV3-Large with its two outputs for SSDLite: of C4's first expansion, and of the last convolution.
    #[serde(rename = "split_mobilenet_v3_large")]
    SplitMobileNetV3Large(MobileNetV3Config),
    /// The beginning of a VGG16, for SSD.
    Vgg16(Vgg16Config),
}

impl BodyConfig {
    /// Checks the numbers of the section.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), naming the field at fault.
    pub fn validate(&self, checks: &Checks) -> Result<()> {
        match self {
            Self::Resnet(config) => config.validate(checks),
            Self::MobileNetV3Large(config) | Self::SplitMobileNetV3Large(config) => {
                config.validate(checks)
            }
            Self::Vgg16(config) => config.validate(checks),
        }
    }

    /// Builds the body from the weights at its prefix.
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn build(&self, weights: &VarBuilder) -> Result<Box<dyn Body>> {
        Ok(match self {
            Self::Resnet(config) => Box::new(ResNet::load(weights, config)?),
            Self::MobileNetV3Large(config) => Box::new(MobileNetV3::load(weights, config)?),
            Self::SplitMobileNetV3Large(config) => {
                Box::new(SplitMobileNetV3::load(weights, config)?)
            }
            Self::Vgg16(config) => Box::new(Vgg16::load(weights, config)?),
        })
    }

    /// The stages of the body, known without its weights.
    pub fn stages(&self) -> Vec<Stage> {
        match self {
            Self::Resnet(config) => config.stages(),
            Self::MobileNetV3Large(config) => config.stages(),
            Self::SplitMobileNetV3Large(config) => split_stages(config),
            Self::Vgg16(config) => config.stages(),
        }
    }

    /// Prefixes of the parameters of each part that may be frozen on its own, from the last to the first.
    pub fn parts(&self) -> Vec<Vec<String>> {
        match self {
            Self::Resnet(_) => ResNetConfig::parts(),
            Self::MobileNetV3Large(config) => config.parts(),
            Self::SplitMobileNetV3Large(config) => split_parts(config),
            Self::Vgg16(_) => Vgg16Config::parts(),
        }
    }

    /// Has the norms learned, for a body that starts without the weights that fixed norms belong to.
    pub fn learn_norms(&mut self) {
        match self {
            Self::Resnet(config) => config.norm.learn(&mut config.norm_eps),
            Self::MobileNetV3Large(config) | Self::SplitMobileNetV3Large(config) => {
                config.norm.learn(&mut config.norm_eps);
            }
            Self::Vgg16(_) => {}
        }
    }

    /// The settings of a ResNet, to be changed.
    pub fn as_resnet_mut(&mut self) -> Option<&mut ResNetConfig> {
        match self {
            Self::Resnet(config) => Some(config),
            _ => None,
        }
    }

    /// Prefixes of the parameters of norms that are never trained.
    pub fn fixed_norms(&self) -> Vec<String> {
        match self {
            Self::Resnet(config) => config.norm.fixed_at(""),
            Self::MobileNetV3Large(config) | Self::SplitMobileNetV3Large(config) => {
                config.norm.fixed_at("")
            }
            Self::Vgg16(_) => Vec::new(),
        }
    }
}
