//! What SSDLite (Sandler et al., arXiv:1801.04381; Howard et al., arXiv:1905.02244, section 6.3) looks at: a MobileNetV3 in
//! two parts, and four coarser levels.

use candle_core::Tensor;
use candle_nn::VarBuilder;
use serde::{Deserialize, Serialize};

use super::mobilenet_v3::{ConvStyle, InvertedResidual, MobileNetV3Config, load_stem};
use super::ssd_levels::named;
use super::{Body, Neck, Stage};
use crate::error::Result;
use crate::layers::{Conv2d, ConvShape, Initial, Norm};
use crate::ops::Activation;
use crate::section::Checks;
use crate::structures::{FeatureLevel, FeatureMaps};

/// Index of C4's first block among the features of a MobileNetV3: of the stages, only the last convolution comes later.
fn c4(config: &MobileNetV3Config) -> usize {
    config.stage_indices().into_iter().rev().nth(1).unwrap_or(0)
}

/// The two outputs of [`SplitMobileNetV3`]: of C4's expansion, and of the last convolution.
pub(super) fn split_stages(config: &MobileNetV3Config) -> Vec<Stage> {
    let stages = config.stages();
    let expanded = config.blocks().get(c4(config).saturating_sub(1)).map(|block| block.expanded);
    let [.., before, _, last] = stages.as_slice() else { return Vec::new() };
    vec![Stage { channels: expanded.unwrap_or(0), stride: before.stride }, *last]
}

/// The stages of [`SplitMobileNetV3`] that may be frozen, from the last to the first: those of a MobileNetV3.
pub(super) fn split_parts(config: &MobileNetV3Config) -> Vec<Vec<String>> {
    let c4 = c4(config);
    let place = |prefix: &String| -> Vec<String> {
        let index: usize = prefix.trim_end_matches('.').parse().unwrap_or(0);
        match index.checked_sub(c4) {
            None => vec![format!("0.{index}.")],
            Some(0) => vec![format!("0.{index}."), "1.0.".to_owned()],
            Some(after) => vec![format!("1.{after}.")],
        }
    };
    config.parts().iter().map(|prefixes| prefixes.iter().flat_map(place).collect()).collect()
}

/// A MobileNetV3-Large without its classifier, cut after the expansion of C4's first block.
pub struct SplitMobileNetV3 {
    stem: Conv2d,
    blocks: Vec<InvertedResidual>,
    /// Index of C4's first block in `blocks`.
    cut: usize,
    last: Conv2d,
    stages: Vec<Stage>,
}

impl SplitMobileNetV3 {
    /// Loads the network from `0` (what is before the cut) and `1`: torchvision's `features` of SSDLite.
    ///
    /// # Errors
    /// Those of [`MobileNetV3Config::validate`], of the weights' source, and of candle.
    pub fn load(weights: &VarBuilder, config: &MobileNetV3Config) -> Result<Self> {
        config.validate(&Checks::new("a MobileNetV3"))?;
        let style = config.style(Initial::Lite);
        let (before, after) = (weights.pp(0), weights.pp(1));
        let (shapes, c4) = (config.blocks(), c4(config));
        let mut blocks = Vec::with_capacity(shapes.len());
        for (shape, index) in shapes.iter().zip(1..) {
            blocks.push(match index {
                _ if index < c4 => InvertedResidual::load(&before.pp(index), shape, style)?,
                _ if index == c4 => {
                    InvertedResidual::load_from(&before.pp(index), &after.pp(0), shape, style)?
                }
                _ => InvertedResidual::load(&after.pp(index - c4), shape, style)?,
            });
        }
        let channels = shapes.last().map_or(0, |block| block.out_channels);
        let last = ConvShape::new((channels, config.last()), 1, style.initial);
        Ok(Self {
            stem: load_stem(&before.pp(0), config, style)?,
            last: style.conv(&after.pp(shapes.len() + 1 - c4), last, Activation::HardSwish)?,
            blocks,
            cut: c4.saturating_sub(1),
            stages: split_stages(config),
        })
    }
}

impl Body for SplitMobileNetV3 {
    fn stages(&self) -> &[Stage] {
        &self.stages
    }

    fn forward(&self, pixels: &Tensor) -> Result<Vec<Tensor>> {
        let mut features = self.stem.forward(pixels)?;
        let mut outputs = Vec::with_capacity(self.stages.len());
        for (index, block) in self.blocks.iter().enumerate() {
            features = if index == self.cut {
                let expanded = block.expand(&features)?;
                let features = block.project(&expanded)?;
                outputs.push(expanded);
                features
            } else {
                block.forward(&features)?
            };
        }
        outputs.push(self.last.forward(&features)?);
        Ok(outputs)
    }
}

/// A neck that takes the stages of a body as they are, and adds coarser levels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SsdLiteLevelsConfig {
    /// Of each added level; between its two 1×1 convolutions there are half as many.
    pub channels: Vec<usize>,
    /// Normalisation after each convolution.
    pub norm: Norm,
    /// Added to the variance by every norm.
    pub norm_eps: f64,
    /// Share of a batch's statistics in the running ones, where norms are trained.
    pub norm_momentum: f64,
}

impl SsdLiteLevelsConfig {
    /// Checks the numbers of the section.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), naming the field at fault.
    pub fn validate(&self, stages: &[Stage], checks: &Checks) -> Result<()> {
        checks.require((!stages.is_empty()).into(), "kind", "a body without stages", "some")?;
        let found = format!("{:?}", self.channels);
        let usable = self.channels.iter().all(|channels| *channels >= 2);
        checks.require(usable.into(), "channels", found, "at least 2 each")?;
        let expected = "`frozen_batch_norm` or `batch_norm`: convolutions have no biases";
        checks.require((self.norm != Norm::None).into(), "norm", "`none`", expected)?;
        checks.fractions(&[("norm_momentum", self.norm_momentum)])?;
        checks.eps("norm_eps", self.norm_eps)
    }

    /// The levels on a body of these stages.
    pub fn levels(&self, stages: &[Stage]) -> Vec<FeatureLevel> {
        let mut levels: Vec<(usize, usize)> =
            stages.iter().map(|stage| (stage.channels, stage.stride)).collect();
        let coarsest = stages.last().map_or(1, |stage| stage.stride);
        let added = self.channels.iter().zip(1..);
        levels.extend(added.map(|(channels, doublings)| (*channels, coarsest << doublings)));
        named(levels)
    }
}

/// Coarser levels of 1×1, 3×3 depthwise and 1×1 convolutions.
pub struct SsdLiteLevels {
    extras: Vec<[Conv2d; 3]>,
    levels: Vec<FeatureLevel>,
}

impl SsdLiteLevels {
    /// Loads the levels from `extra`.
    ///
    /// # Errors
    /// Those of [`SsdLiteLevelsConfig::validate`], of the weights' source, and of candle.
    pub fn load(
        weights: &VarBuilder,
        stages: &[Stage],
        config: &SsdLiteLevelsConfig,
    ) -> Result<Self> {
        config.validate(stages, &Checks::new("SSDLite's levels"))?;
        let style = ConvStyle {
            initial: Initial::Lite,
            eps: config.norm_eps,
            momentum: config.norm_momentum,
        };
        let mut in_channels = stages.last().map_or(0, |stage| stage.channels);
        let mut extras = Vec::with_capacity(config.channels.len());
        for (level, &channels) in config.channels.iter().enumerate() {
            let weights = weights.pp("extra").pp(level);
            let between = channels / 2;
            let shape = |channels, kernel| ConvShape::new(channels, kernel, style.initial);
            let shapes = [
                shape((in_channels, between), 1),
                shape((between, between), 3).with_stride(2).with_groups(between),
                shape((between, channels), 1),
            ];
            let conv =
                |index: usize| style.conv(&weights.pp(index), shapes[index], Activation::Relu6);
            extras.push([conv(0)?, conv(1)?, conv(2)?]);
            in_channels = channels;
        }
        Ok(Self { extras, levels: config.levels(stages) })
    }
}

impl Neck for SsdLiteLevels {
    fn levels(&self) -> &[FeatureLevel] {
        &self.levels
    }

    fn forward(&self, stages: Vec<Tensor>) -> Result<FeatureMaps> {
        let mut levels = stages;
        for convs in &self.extras {
            let Some(mut features) = levels.last().cloned() else { break };
            for conv in convs {
                features = conv.forward(&features)?;
            }
            levels.push(features);
        }
        Ok(FeatureMaps { levels })
    }
}
