//! Layers between the pooled features and the box predictor.

use candle_core::Tensor;
use candle_nn::VarBuilder;

use crate::config::{BoxHeadKind, ModelConfig};
use crate::error::Result;
use crate::layers::{Conv2d, ConvShape, Initial, Linear, NormAt};
use crate::ops::{Activation, FilledRows};

/// Convolutions of the second kind of head.
const CONVS: usize = 4;
/// Place of the fully connected layer after four convolutions and a flattening, in torchvision's list of layers.
const FC_INDEX: usize = 5;
/// Added to the variance by the norms of the heads: batch norm's default, whatever the backbone has.
pub(super) const HEAD_NORM_EPS: f64 = 1e-5;

/// Convolutions, if any, then fully connected layers.
pub struct BoxHead {
    convs: Vec<Conv2d>,
    fully_connected: Vec<Linear>,
}

impl BoxHead {
    /// Loads the head of the model's kind: `fc6`, `fc7`, or `0` … `3` and `5`.
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn load(weights: &VarBuilder, channels: usize, config: &ModelConfig) -> Result<Self> {
        let head = &config.box_head;
        let (side, hidden) = (head.roi_output, head.hidden);
        let over_pooled = |name: String| {
            Linear::load_over_pooled(&weights.pp(name), channels, side, hidden, Activation::Relu)
        };
        match head.kind {
            BoxHeadKind::TwoMlp => Ok(Self {
                convs: Vec::new(),
                fully_connected: vec![
                    over_pooled("fc6".to_owned())?,
                    Linear::load(&weights.pp("fc7"), hidden, hidden, Activation::Relu)?,
                ],
            }),
            BoxHeadKind::FourConvOneFc => Ok(Self {
                convs: (0..CONVS)
                    .map(|index| normed_conv(&weights.pp(index), channels, channels))
                    .collect::<Result<_>>()?,
                fully_connected: vec![over_pooled(FC_INDEX.to_string())?],
            }),
        }
    }

    /// `[R, side, side, C]` → `[R, hidden]`; what is made of rows that are not `filled` means nothing.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    pub fn forward(&self, pooled: &Tensor, filled: FilledRows) -> Result<Tensor> {
        let mut features = pooled.clone();
        for conv in &self.convs {
            features = conv.forward_filled(&features, filled)?;
        }
        for layer in &self.fully_connected {
            features = layer.forward(&features)?;
        }
        Ok(features)
    }
}

/// A 3×3 convolution with batch norm and ReLU: weights at `0`, norm at `1`.
pub(super) fn normed_conv(
    weights: &VarBuilder,
    in_channels: usize,
    out_channels: usize,
) -> Result<Conv2d> {
    let shape = ConvShape::new((in_channels, out_channels), 3, Initial::BeforeRelu);
    let norm = NormAt::new(weights.pp(1), HEAD_NORM_EPS);
    Conv2d::load_normed(&weights.pp(0), &norm, shape, Activation::Relu)
}
