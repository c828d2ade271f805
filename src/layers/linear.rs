//! Fully connected layers.

use candle_core::{DType, Tensor};
use candle_nn::VarBuilder;

use super::initial::Fans;
use super::{Initial, get_f32};
use crate::error::Result;
use crate::ops::{self, Activation, PreparedLinear, TrainableConv2d, TrainableLinear};

/// A matrix product with bias, then an activation.
#[derive(Debug, Clone)]
pub struct Linear {
    weights: LinearWeights,
    activation: Activation,
}

/// The forms of a linear layer.
#[derive(Debug, Clone)]
enum LinearWeights {
    /// All constants.
    Prepared(PreparedLinear),
    /// Some variables.
    Trainable(TrainableLinear),
    /// Some variables, over pooled features: a window as large as these, so that the variable keeps torch's order while
    /// channels are last.
    Window(TrainableConv2d),
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
        let fans = Fans { inputs: in_features, outputs: out_features };
        let weight =
            get_f32(weights, (out_features, in_features), "weight", Initial::Default.weight(fans))?;
        let bias = get_f32(weights, out_features, "bias", Initial::Default.bias(in_features))?;
        let weights = if weight.track_op() || bias.track_op() {
            LinearWeights::Trainable(TrainableLinear::new(&weight, &bias)?)
        } else {
            let weight = weight.to_dtype(weights.dtype())?;
            LinearWeights::Prepared(PreparedLinear::new(&weight, &bias)?)
        };
        Ok(Self { weights, activation })
    }

    /// Loads a layer over pooled features: `weight` `[O, C·side·side]`, whose columns run over channels, rows,
    /// columns, and `bias` `[O]`. Constants are reordered once, for features with channels last.
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
        let in_features = channels * side * side;
        let fans = Fans { inputs: in_features, outputs: out_features };
        let weight =
            get_f32(weights, (out_features, in_features), "weight", Initial::Default.weight(fans))?;
        let bias = get_f32(weights, out_features, "bias", Initial::Default.bias(in_features))?;
        let weights = if weight.track_op() || bias.track_op() {
            LinearWeights::Window(TrainableConv2d::over_windows(&weight, (side, side), &bias)?)
        } else {
            let weight = weight.to_dtype(weights.dtype())?;
            LinearWeights::Prepared(PreparedLinear::over_pooled(&weight, side * side, &bias)?)
        };
        Ok(Self { weights, activation })
    }

    /// Has the results in f32, whatever the layer computes in: for predictors that feed arithmetic on boxes.
    pub fn with_f32_output(mut self) -> Self {
        self.weights = match self.weights {
            LinearWeights::Prepared(weights) => {
                LinearWeights::Prepared(weights.with_output(DType::F32))
            }
            // Variables are in f32, and so is what is computed from them.
            trainable => trainable,
        };
        self
    }

    /// `[R, I]`, or pooled features `[R, side, side, C]`, → `[R, O]`.
    ///
    /// # Errors
    /// Those of [`ops::linear`].
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        match &self.weights {
            LinearWeights::Prepared(weights) => {
                ops::linear(&input.flatten_from(1)?, weights, self.activation)
            }
            LinearWeights::Trainable(weights) => {
                ops::linear_trainable(&input.flatten_from(1)?, weights, self.activation)
            }
            LinearWeights::Window(weights) => {
                let rows = ops::conv2d_trainable(input, weights, None, self.activation)?;
                Ok(rows.flatten_from(1)?)
            }
        }
    }
}
