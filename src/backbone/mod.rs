//! From the batch to a feature pyramid.
//!
//! In: normalised pixels `[N, H, W, 3]`. Out: [`FeatureMaps`], finest first. This room knows nothing of boxes.

mod fpn;
mod resnet;

use candle_core::Tensor;
use candle_nn::VarBuilder;

pub use fpn::FeaturePyramid;
pub use resnet::ResNet;

use crate::config::BackboneConfig;
use crate::error::Result;
use crate::structures::{FeatureLevel, FeatureMaps};

/// A network that makes a feature pyramid.
pub trait Backbone: Send + Sync {
    /// The levels that [`Self::forward`] returns, in its order.
    fn levels(&self) -> &[FeatureLevel];

    /// Computes the levels from `pixels`: `[N, H, W, 3]` f32, normalised, zero padded.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    fn forward(&self, pixels: &Tensor) -> Result<FeatureMaps>;
}

/// Builds the backbone that a model file describes, from the weights under `backbone.`.
///
/// # Errors
/// Those of the weights' source, and of candle.
pub fn build(weights: &VarBuilder, config: &BackboneConfig) -> Result<Box<dyn Backbone>> {
    let body = ResNet::load(&weights.pp("body"), config)?;
    Ok(Box::new(FeaturePyramid::load(&weights.pp("fpn"), body, config)?))
}
