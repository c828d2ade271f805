//! Fully connected layers.

use candle_core::{DType, Tensor};
use candle_nn::{Init, VarBuilder};

use super::get_f32;
use crate::error::Result;
use crate::ops::{self, Activation, PreparedLinear};

/// A matrix product with bias, then an activation.
#[derive(Debug, Clone)]
pub struct Linear {
    weights: PreparedLinear,
    activation: Activation,
}

impl Linear {
    /// Loads `weight` `[O, I]` and `bias` `[O]`.
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn load(
        weights: &VarBuilder,
        in_features: usize,
        out_features: usize,
        activation: Activation,
    ) -> Result<Self> {
        let init = candle_nn::init::DEFAULT_KAIMING_NORMAL;
        let weight = get_f32(weights, (out_features, in_features), "weight", init)?;
        Self::from_weight(weights, &weight, activation)
    }

    /// Loads a layer over pooled features: `weight` `[O, C·side·side]`, whose columns run over channels, rows,
    /// columns, and `bias` `[O]`. It is reordered once, for features with channels last.
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn load_over_pooled(
        weights: &VarBuilder,
        channels: usize,
        side: usize,
        out_features: usize,
        activation: Activation,
    ) -> Result<Self> {
        let init = candle_nn::init::DEFAULT_KAIMING_NORMAL;
        let in_features = channels * side * side;
        let weight = get_f32(weights, (out_features, in_features), "weight", init)?
            .reshape((out_features, channels, side * side))?
            .transpose(1, 2)?
            .reshape((out_features, in_features))?;
        Self::from_weight(weights, &weight, activation)
    }

    fn from_weight(weights: &VarBuilder, weight: &Tensor, activation: Activation) -> Result<Self> {
        let bias = get_f32(weights, weight.dims()[0], "bias", Init::Const(0.0))?;
        let weight = weight.to_dtype(weights.dtype())?;
        Ok(Self { weights: PreparedLinear::new(&weight, &bias)?, activation })
    }

    /// Has the results in f32, whatever the layer computes in: for predictors that feed arithmetic on boxes.
    pub fn with_f32_output(mut self) -> Self {
        self.weights = self.weights.with_output(DType::F32);
        self
    }

    /// `[R, I]` → `[R, O]`.
    ///
    /// # Errors
    /// Those of [`ops::linear`].
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        ops::linear(input, &self.weights, self.activation)
    }
}
