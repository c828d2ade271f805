//! Towers: the same few convolutions on every level, in front of a predictor.

use candle_core::Tensor;
use candle_nn::VarBuilder;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::layers::{Conv2d, ConvShape, GroupNorm, Initial};
use crate::ops::Activation;
use crate::section::Checks;

/// Groups of channels that a norm of a tower has.
pub(super) const GROUPS: usize = 32;

/// What follows the convolutions of a tower, besides a ReLU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TowerNorm {
    /// Nothing.
    None,
    /// A norm of 32 groups of channels.
    GroupNorm,
}

impl TowerNorm {
    /// Checks that the channels of a tower make groups.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), naming `norm`.
    pub(super) fn validate(self, channels: usize, checks: &Checks) -> Result<()> {
        let fits = self == Self::None || (channels > 0 && channels.is_multiple_of(GROUPS));
        let found = format!("`group_norm` of {channels} channels");
        checks.require(fits.into(), "norm", found, format!("channels in {GROUPS} groups"))
    }
}

/// Where the layers of a tower are, and which they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TowerLayout {
    /// Layer `i` has its convolution at `i.0`, which has a bias.
    Biased,
    /// Layer `i` has its convolution at `i.0`, which has no bias, and its norm at `i.1`.
    Normed,
    /// Layer `i` has its convolution at `3·i`, which has a bias, and its norm at `3·i + 1`.
    Interleaved,
}

impl From<TowerNorm> for TowerLayout {
    fn from(norm: TowerNorm) -> Self {
        match norm {
            TowerNorm::None => Self::Biased,
            TowerNorm::GroupNorm => Self::Normed,
        }
    }
}

/// 3×3 convolutions that keep the number of channels, each followed by a norm where there are norms, and a ReLU.
pub(super) struct Tower {
    layers: Vec<(Conv2d, Option<GroupNorm>)>,
}

impl Tower {
    /// Loads `depth` layers.
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn load(
        weights: &VarBuilder,
        channels: usize,
        depth: usize,
        layout: TowerLayout,
    ) -> Result<Self> {
        let shape = square(channels, channels, Initial::Small);
        let layers = (0..depth)
            .map(|index| {
                let none = Activation::None;
                let norm_at = |weights: &VarBuilder| {
                    GroupNorm::load(weights, GROUPS, channels, Activation::Relu)
                };
                match layout {
                    TowerLayout::Biased => {
                        let conv = &weights.pp(index).pp(0);
                        Ok((Conv2d::load(conv, shape, Activation::Relu)?, None))
                    }
                    TowerLayout::Normed => {
                        let weights = weights.pp(index);
                        let conv = Conv2d::load_without_bias(&weights.pp(0), shape, none)?;
                        Ok((conv, Some(norm_at(&weights.pp(1))?)))
                    }
                    TowerLayout::Interleaved => {
                        let conv = Conv2d::load(&weights.pp(3 * index), shape, none)?;
                        Ok((conv, Some(norm_at(&weights.pp(3 * index + 1))?)))
                    }
                }
            })
            .collect::<Result<_>>()?;
        Ok(Self { layers })
    }

    /// `[N, H, W, C]` → `[N, H, W, C]`.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    pub fn forward(&self, level: &Tensor) -> Result<Tensor> {
        let mut hidden = level.clone();
        for (conv, norm) in &self.layers {
            hidden = conv.forward(&hidden)?;
            if let Some(norm) = norm {
                hidden = norm.forward(&hidden)?;
            }
        }
        Ok(hidden)
    }
}

/// A 3×3 convolution that predicts numbers in f32.
///
/// # Errors
/// Those of the weights' source, and of candle.
pub(super) fn predictor(
    weights: &VarBuilder,
    in_channels: usize,
    out_channels: usize,
    initial: Initial,
) -> Result<Conv2d> {
    let shape = square(in_channels, out_channels, initial);
    Ok(Conv2d::load(weights, shape, Activation::None)?.with_f32_output())
}

/// A 3×3 convolution that predicts numbers in f32, none below 0.
///
/// # Errors
/// Those of the weights' source, and of candle.
pub(super) fn predictor_above_zero(
    weights: &VarBuilder,
    in_channels: usize,
    out_channels: usize,
) -> Result<Conv2d> {
    let shape = square(in_channels, out_channels, Initial::Small);
    Ok(Conv2d::load(weights, shape, Activation::Relu)?.with_f32_output())
}

fn square(in_channels: usize, out_channels: usize, initial: Initial) -> ConvShape {
    ConvShape::new((in_channels, out_channels), 3, initial)
}
