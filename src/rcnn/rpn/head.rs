//! The convolutions that all levels share.

use candle_core::Tensor;
use candle_nn::VarBuilder;

use super::{RpnConfig, RpnOutput};
use crate::error::Result;
use crate::layers::{Conv2d, ConvShape, Initial};
use crate::ops::Activation;
use crate::structures::FeatureMaps;

/// Predicts objectness and deltas from each level with the same weights.
pub struct RpnHead {
    convs: Vec<Conv2d>,
    objectness: Conv2d,
    deltas: Conv2d,
}

impl RpnHead {
    /// Loads the head from `conv.N.0`, `cls_logits` and `bbox_pred`.
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn load(
        weights: &VarBuilder,
        channels: usize,
        anchors_per_location: usize,
        config: &RpnConfig,
    ) -> Result<Self> {
        let square = ConvShape::new((channels, channels), 3, Initial::Small);
        let predictor = |name: &str, out_channels| -> Result<Conv2d> {
            let shape = ConvShape::new((channels, out_channels), 1, Initial::Small);
            Ok(Conv2d::load(&weights.pp(name), shape, Activation::None)?.with_f32_output())
        };
        Ok(Self {
            convs: (0..config.conv_depth)
                .map(|i| Conv2d::load(&weights.pp("conv").pp(i).pp(0), square, Activation::Relu))
                .collect::<Result<_>>()?,
            objectness: predictor("cls_logits", anchors_per_location)?,
            deltas: predictor("bbox_pred", 4 * anchors_per_location)?,
        })
    }

    /// Predicts from every level.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    pub fn forward(&self, features: &FeatureMaps) -> Result<RpnOutput> {
        let predicted: Vec<(Tensor, Tensor)> =
            features.levels.iter().map(|level| self.forward_level(level)).collect::<Result<_>>()?;
        let (objectness, deltas) = predicted.into_iter().unzip();
        Ok(RpnOutput { objectness, deltas })
    }

    fn forward_level(&self, level: &Tensor) -> Result<(Tensor, Tensor)> {
        let mut hidden = level.clone();
        for conv in &self.convs {
            hidden = conv.forward(&hidden)?;
        }
        Ok((self.objectness.forward(&hidden)?, self.deltas.forward(&hidden)?))
    }
}
