//! What a backbone is made of: a body, and a neck on its stages.

use candle_core::Tensor;

use crate::error::Result;
use crate::structures::{FeatureLevel, FeatureMaps};

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

/// Makes levels of stages.
pub trait Neck: Send + Sync {
    /// The levels that [`Self::forward`] returns, in its order.
    fn levels(&self) -> &[FeatureLevel];

    /// Computes the levels from the outputs of a body, one tensor per stage.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    fn forward(&self, stages: Vec<Tensor>) -> Result<FeatureMaps>;
}
