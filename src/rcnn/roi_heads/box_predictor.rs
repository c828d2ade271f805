//! Class and box of each proposal.

use candle_core::Tensor;
use candle_nn::VarBuilder;

use crate::error::Result;
use crate::layers::Linear;
use crate::ops::Activation;

/// Two fully connected layers side by side.
pub struct BoxPredictor {
    class_logits: Linear,
    box_regression: Linear,
}

impl BoxPredictor {
    /// Loads the predictor from `cls_score` and `bbox_pred`.
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn load(weights: &VarBuilder, in_features: usize, num_classes: usize) -> Result<Self> {
        let load = |name: &str, out_features| -> Result<Linear> {
            let weights = weights.pp(name);
            let layer = Linear::load(&weights, in_features, out_features, Activation::None)?;
            Ok(layer.with_f32_output())
        };
        Ok(Self {
            class_logits: load("cls_score", num_classes)?,
            box_regression: load("bbox_pred", 4 * num_classes)?,
        })
    }

    /// `[R, hidden]` → class logits `[R, C]` and box regression `[R, 4·C]`.
    ///
    /// # Errors
    /// Those of [`crate::ops::linear`].
    pub fn forward(&self, features: &Tensor) -> Result<(Tensor, Tensor)> {
        Ok((self.class_logits.forward(features)?, self.box_regression.forward(features)?))
    }
}
