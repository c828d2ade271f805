//! MobileNetV3-Large (Howard et al., "Searching for MobileNetV3", arXiv:1905.02244).
//!
//! Blocks expand the channels by a 1×1 convolution, look around in each channel by itself, weigh the channels by what the
//! whole image shows (squeeze and excitation, in some blocks), and project them back to few.

mod block;
#[cfg(test)]
mod tests;

use candle_core::Tensor;
use candle_nn::VarBuilder;
use serde::{Deserialize, Serialize};

pub(crate) use block::{BlockShape, ConvStyle, InvertedResidual};

use super::{Body, Stage};
use crate::error::Result;
use crate::layers::{Conv2d, ConvShape, Initial, Norm};
use crate::ops::Activation;
use crate::section::Checks;

/// Channels are multiples of this.
const UNIT: usize = 8;
/// Channels of the stem.
const STEM: usize = 16;
/// What the last convolution does to the number of channels.
const LAST_EXPANSION: usize = 6;
/// Blocks from this one on have half the channels in a reduced tail: C4 and what follows.
const FIRST_OF_TAIL: usize = 12;

/// A body that is a MobileNetV3-Large.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MobileNetV3Config {
    /// Factor of all numbers of channels, which are then rounded to multiples of 8. 1 in all of torchvision's detectors.
    #[serde(default = "full_width")]
    pub width_mult: f64,
    /// Whether the blocks from C4 on have half the channels, as those of torchvision's SSDLite have.
    #[serde(default)]
    pub reduced_tail: bool,
    /// Normalisation after each convolution.
    pub norm: Norm,
    /// Added to the variance by every norm.
    pub norm_eps: f64,
    /// Share of a batch's statistics in the running ones, where norms are trained.
    #[serde(default = "default_momentum")]
    pub norm_momentum: f64,
}

fn full_width() -> f64 {
    1.0
}

fn default_momentum() -> f64 {
    0.1
}

impl MobileNetV3Config {
    /// Checks the numbers of the section.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), naming the field at fault.
    pub fn validate(&self, checks: &Checks) -> Result<()> {
        let expected = "`frozen_batch_norm` or `batch_norm`: convolutions have no biases";
        checks.require((self.norm != Norm::None).into(), "norm", "`none`", expected)?;
        let usable = self.width_mult > 0.0 && self.width_mult <= 16.0;
        let found = self.width_mult.to_string();
        checks.require(usable.into(), "width_mult", found, "a factor above 0, at most 16")?;
        checks.fractions(&[("norm_momentum", self.norm_momentum)])?;
        checks.eps("norm_eps", self.norm_eps)
    }

    /// Outputs of the stem, of the blocks that halve the size, and of the last convolution: C0 to C5.
    pub fn stages(&self) -> Vec<Stage> {
        let blocks = self.blocks();
        let mut stride = 2;
        let mut stages = vec![Stage { channels: self.stem(), stride }];
        for block in blocks.iter().filter(|block| block.stride > 1) {
            stride *= block.stride;
            stages.push(Stage { channels: block.out_channels, stride });
        }
        stages.push(Stage { channels: self.last(), stride });
        stages
    }

    /// Channels of the stem.
    pub(crate) fn stem(&self) -> usize {
        self.channels(STEM)
    }

    /// Channels of the last convolution.
    pub(crate) fn last(&self) -> usize {
        self.blocks().last().map_or(0, |block| LAST_EXPANSION * block.out_channels)
    }

    /// The blocks between the stem and the last convolution.
    pub(crate) fn blocks(&self) -> Vec<BlockShape> {
        use Activation::{HardSwish, Relu};
        // Window, expanded channels, channels of the output, whether there is a squeeze, activation, stride.
        let table = [
            (3, 16, 16, false, Relu, 1),
            (3, 64, 24, false, Relu, 2), // C1
            (3, 72, 24, false, Relu, 1),
            (5, 72, 40, true, Relu, 2), // C2
            (5, 120, 40, true, Relu, 1),
            (5, 120, 40, true, Relu, 1),
            (3, 240, 80, false, HardSwish, 2), // C3
            (3, 200, 80, false, HardSwish, 1),
            (3, 184, 80, false, HardSwish, 1),
            (3, 184, 80, false, HardSwish, 1),
            (3, 480, 112, true, HardSwish, 1),
            (3, 672, 112, true, HardSwish, 1),
            (5, 672, 160, true, HardSwish, 2), // C4
            (5, 960, 160, true, HardSwish, 1),
            (5, 960, 160, true, HardSwish, 1),
        ];
        let mut in_channels = self.stem();
        let block = |(index, row): (usize, (usize, usize, usize, bool, Activation, usize))| {
            let (kernel, expanded, out_channels, squeezed, activation, stride) = row;
            // C4's expansion works on what is before it.
            let of_tail = |first: usize| if self.reduced_tail && index >= first { 2 } else { 1 };
            let expanded = self.channels(expanded / of_tail(FIRST_OF_TAIL + 1));
            let out_channels = self.channels(out_channels / of_tail(FIRST_OF_TAIL));
            let squeeze = squeezed.then(|| divisible((expanded / 4) as f64));
            let shape = BlockShape {
                in_channels,
                kernel,
                expanded,
                out_channels,
                squeeze,
                activation,
                stride,
            };
            in_channels = out_channels;
            shape
        };
        table.into_iter().enumerate().map(block).collect()
    }

    /// Index of each stage's last feature among `features`: stem, blocks, last convolution.
    pub(crate) fn stage_indices(&self) -> Vec<usize> {
        let blocks = self.blocks();
        let strided = blocks.iter().enumerate().filter(|(_, block)| block.stride > 1);
        let strided = strided.map(|(index, _)| index + 1);
        [0].into_iter().chain(strided).chain([blocks.len() + 1]).collect()
    }

    /// How convolutions are normalised and first filled.
    pub(crate) fn style(&self, initial: Initial) -> ConvStyle {
        ConvStyle { initial, eps: self.norm_eps, momentum: self.norm_momentum }
    }

    /// The stages, from the last to the first, as torchvision's `trainable_backbone_layers` counts: each begins with a block
    /// that halves the size.
    pub(super) fn parts(&self) -> Vec<Vec<String>> {
        let starts = self.stage_indices();
        let ends = starts.iter().skip(1).copied().chain([self.blocks().len() + 2]);
        let parts = starts
            .iter()
            .zip(ends)
            .map(|(start, end)| (*start..end).map(|index| format!("{index}.")).collect::<Vec<_>>());
        let mut parts: Vec<_> = parts.collect();
        parts.reverse();
        parts
    }

    fn channels(&self, channels: usize) -> usize {
        divisible(channels as f64 * self.width_mult)
    }
}

/// The nearest multiple of 8, but not less than nine tenths of `channels`, as torchvision's `_make_divisible` has it.
fn divisible(channels: f64) -> usize {
    let nearest = ((channels + UNIT as f64 / 2.0) as usize / UNIT * UNIT).max(UNIT);
    if (nearest as f64) < 0.9 * channels { nearest + UNIT } else { nearest }
}

/// A MobileNetV3-Large without its classifier.
pub struct MobileNetV3 {
    stem: Conv2d,
    blocks: Vec<InvertedResidual>,
    last: Conv2d,
    /// Of [`MobileNetV3Config::stage_indices`].
    stage_indices: Vec<usize>,
    stages: Vec<Stage>,
}

impl MobileNetV3 {
    /// Loads the network from `0` (stem), `1` … `15` (blocks) and `16`: torchvision's `features`.
    ///
    /// # Errors
    /// Those of [`MobileNetV3Config::validate`], of the weights' source, and of candle.
    pub fn load(weights: &VarBuilder, config: &MobileNetV3Config) -> Result<Self> {
        config.validate(&Checks::new("a MobileNetV3"))?;
        let style = config.style(Initial::BeforeRelu);
        let shapes = config.blocks();
        let channels = shapes.last().map_or(0, |block| block.out_channels);
        let last = ConvShape::new((channels, config.last()), 1, style.initial);
        let blocks = shapes.iter().zip(1..);
        Ok(Self {
            stem: load_stem(&weights.pp(0), config, style)?,
            blocks: blocks
                .map(|(shape, index)| InvertedResidual::load(&weights.pp(index), shape, style))
                .collect::<Result<_>>()?,
            last: style.conv(&weights.pp(shapes.len() + 1), last, Activation::HardSwish)?,
            stage_indices: config.stage_indices(),
            stages: config.stages(),
        })
    }
}

/// The first convolution of a MobileNetV3, at `0` and `1`.
pub(crate) fn load_stem(
    weights: &VarBuilder,
    config: &MobileNetV3Config,
    style: ConvStyle,
) -> Result<Conv2d> {
    let shape = ConvShape::new((3, config.stem()), 3, style.initial).with_stride(2);
    style.conv(weights, shape, Activation::HardSwish)
}

impl Body for MobileNetV3 {
    fn stages(&self) -> &[Stage] {
        &self.stages
    }

    fn forward(&self, pixels: &Tensor) -> Result<Vec<Tensor>> {
        let mut features = self.stem.forward(pixels)?;
        let mut outputs = vec![features.clone()];
        for (block, index) in self.blocks.iter().zip(1..) {
            features = block.forward(&features)?;
            if self.stage_indices.contains(&index) {
                outputs.push(features.clone());
            }
        }
        outputs.push(self.last.forward(&features)?);
        Ok(outputs)
    }
}
