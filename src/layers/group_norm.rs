//! Group norms after convolutions.

use candle_core::Tensor;
use candle_nn::{Init, VarBuilder};

use super::get_f32;
use crate::error::Result;
use crate::ops::{Activation, group_norm};

/// Added to the variance: torch's default.
const EPS: f64 = 1e-5;

/// A group norm, then an activation. Its statistics are those of each image, so that it cannot be folded into the
/// convolution before it, and is the same in training and inference.
#[derive(Debug, Clone)]
pub struct GroupNorm {
    weight: Tensor,
    bias: Tensor,
    groups: usize,
    activation: Activation,
}

impl GroupNorm {
    /// Loads `weight` and `bias`, `[channels]` each.
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn load(
        weights: &VarBuilder,
        groups: usize,
        channels: usize,
        activation: Activation,
    ) -> Result<Self> {
        let weight = get_f32(weights, channels, "weight", Init::Const(1.0))?;
        let bias = get_f32(weights, channels, "bias", Init::Const(0.0))?;
        Ok(Self { weight, bias, groups, activation })
    }

    /// `[N, H, W, C]` → `[N, H, W, C]`.
    ///
    /// # Errors
    /// Those of [`group_norm`].
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        group_norm(input, self.groups, &self.weight, &self.bias, self.activation, EPS)
    }
}
