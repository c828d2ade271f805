//! The feature pyramid.

use candle_core::Tensor;

/// What is known of a pyramid level before any image is seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeatureLevel {
    /// torchvision's name: `0` … `3`, `pool`.
    pub name: String,
    /// Channels.
    pub channels: usize,
    /// Input pixels per cell, the same in y and x.
    pub stride: usize,
}

/// The maps of a feature pyramid, finest first.
#[derive(Debug, Clone)]
pub struct FeatureMaps {
    /// `[N, H_l, W_l, C]` f32, channels last.
    pub levels: Vec<Tensor>,
}
