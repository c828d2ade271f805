//! From the batch to feature maps: a body that reads pixels, and a neck that makes levels of its stages.
//!
//! In: normalised pixels `[N, H, W, 3]`. Out: [`FeatureMaps`], finest first. This room knows nothing of boxes.
//! It reads, checks and builds the sections `body` and `neck` of a model file.

mod body;
mod fpn;
mod mobilenet_v3;
mod neck;
mod parts;
mod resnet;
mod ssd_levels;
mod ssdlite;
mod vgg16;

use candle_core::Tensor;
use candle_nn::VarBuilder;

pub use body::{Body, BodyConfig, Stage};
pub use fpn::{ExtraLevel, FeaturePyramid, FpnConfig};
pub use mobilenet_v3::{MobileNetV3, MobileNetV3Config};
pub use neck::{Neck, NeckConfig};
pub use resnet::{ResNet, ResNetConfig};
pub use ssd_levels::{SsdLevels, SsdLevelsConfig};
pub use ssdlite::{SplitMobileNetV3, SsdLiteLevels, SsdLiteLevelsConfig};
pub use vgg16::{Vgg16, Vgg16Config};

use crate::error::Result;
use crate::structures::{FeatureLevel, FeatureMaps};

/// A network that makes feature maps.
pub trait Backbone: Send + Sync {
    /// The levels that [`Self::forward`] returns, in its order.
    fn levels(&self) -> &[FeatureLevel];

    /// Computes the levels from `pixels`: `[N, H, W, 3]` f32, normalised, zero padded.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    fn forward(&self, pixels: &Tensor) -> Result<FeatureMaps>;
}

/// A body and what is on top of it.
pub struct BodyAndNeck {
    body: Box<dyn Body>,
    neck: Box<dyn Neck>,
}

impl BodyAndNeck {
    /// A neck that was built for the stages of `body`.
    pub fn new(body: Box<dyn Body>, neck: Box<dyn Neck>) -> Self {
        Self { body, neck }
    }
}

impl Backbone for BodyAndNeck {
    fn levels(&self) -> &[FeatureLevel] {
        self.neck.levels()
    }

    fn forward(&self, pixels: &Tensor) -> Result<FeatureMaps> {
        self.neck.forward(self.body.forward(pixels)?)
    }
}

/// Builds what the sections `body` and `neck` describe, from the weights under `backbone.`.
///
/// # Errors
/// Those of the weights' source, and of candle.
pub fn build(
    weights: &VarBuilder,
    body: &BodyConfig,
    neck: &NeckConfig,
) -> Result<Box<dyn Backbone>> {
    let of_body = match neck.body_prefix() {
        "" => weights.clone(),
        prefix => weights.pp(prefix),
    };
    let body = body.build(&of_body)?;
    let neck = neck.build(weights, body.stages())?;
    Ok(Box::new(BodyAndNeck::new(body, neck)))
}
