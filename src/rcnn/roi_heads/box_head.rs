//! Layers between the pooled features and the box predictor.

use candle_core::Tensor;
use candle_nn::VarBuilder;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::layers::{Conv2d, ConvShape, Initial, Linear, NormAt};
use crate::ops::{Activation, FilledRows};
use crate::section::Checks;

/// Convolutions of the second kind of head.
const CONVS: usize = 4;
/// Place of the fully connected layer after four convolutions and a flattening, in torchvision's list of layers.
const FC_INDEX: usize = 5;
/// Added to the variance by the norms of the heads: batch norm's default, whatever the backbone has.
pub(super) const HEAD_NORM_EPS: f64 = 1e-5;

/// The section `box_head` of the architecture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoxHeadConfig {
    /// Layers between the pooled features and the predictor.
    pub kind: BoxHeadKind,
    /// Cells per side of the pooled features.
    pub roi_output: usize,
    /// Samples per side of a cell.
    pub roi_sampling: usize,
    /// Units of the fully connected layers.
    pub hidden: usize,
    /// Divisors of dx, dy, dw, dh.
    pub box_weights: [f32; 4],
    /// Pixels of the resized image; a candidate stays when both sides are at least this.
    pub min_box_side: f32,
}

/// Layers between the pooled features and the predictor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BoxHeadKind {
    /// Two fully connected layers.
    TwoMlp,
    /// Four 3×3 convolutions with batch norm, then one fully connected layer.
    FourConvOneFc,
}

impl BoxHeadConfig {
    /// Checks the numbers of the section.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), naming the field at fault.
    pub fn validate(&self, checks: &Checks) -> Result<()> {
        checks.at_least_one(&[
            ("roi_output", self.roi_output),
            ("roi_sampling", self.roi_sampling),
            ("hidden", self.hidden),
        ])?;
        checks.positive("box_weights", &self.box_weights)?;
        checks.side("min_box_side", self.min_box_side)
    }
}

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
    pub fn load(weights: &VarBuilder, channels: usize, head: &BoxHeadConfig) -> Result<Self> {
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
