//! Feature pyramid network (Lin et al., arXiv:1612.03144).

use candle_core::Tensor;
use candle_nn::VarBuilder;
use serde::{Deserialize, Serialize};

use super::{Neck, Stage};
use crate::error::Result;
use crate::layers::{Conv2d, ConvShape, Initial, Norm, NormAt};
use crate::ops::{Activation, MaxPool2dParams, Rounding, max_pool2d, upsample_add};
use crate::section::Checks;
use crate::structures::{FeatureLevel, FeatureMaps};

/// A neck that is a feature pyramid.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FpnConfig {
    /// The finest stage of the body that takes part, counted from 0.
    #[serde(default)]
    pub first_stage: usize,
    /// Channels of every level.
    pub channels: usize,
    /// Normalisation after each convolution.
    pub norm: Norm,
    /// Added to the variance by every norm, where there are norms.
    #[serde(default = "default_eps")]
    pub norm_eps: f64,
    /// Levels beyond those of the stages.
    pub extra_level: ExtraLevel,
}

fn default_eps() -> f64 {
    1e-5
}

/// How the pyramid gets levels beyond those of the stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExtraLevel {
    /// `pool`: every second row and column of the coarsest output.
    MaxPool,
    /// `p6` and `p7` by 3×3 convolutions of stride 2, from the coarsest output.
    ConvsOnOutput,
    /// `p6` and `p7` by 3×3 convolutions of stride 2, from the body's coarsest stage.
    ConvsOnStage,
}

impl FpnConfig {
    /// Checks the numbers of the section for a body of these stages.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), naming the field at fault.
    pub fn validate(&self, stages: &[Stage], checks: &Checks) -> Result<()> {
        checks.at_least_one(&[("channels", self.channels)])?;
        checks.eps("norm_eps", self.norm_eps)?;
        checks.require(
            (self.first_stage < stages.len()).into(),
            "first_stage",
            self.first_stage.to_string(),
            format!("less than {}, the number of the body's stages", stages.len()),
        )
    }

    /// The levels on a body of these stages, named as torchvision names them.
    pub fn levels(&self, stages: &[Stage]) -> Vec<FeatureLevel> {
        let channels = self.channels;
        let used = stages.get(self.first_stage..).unwrap_or_default();
        let mut levels: Vec<FeatureLevel> = used
            .iter()
            .enumerate()
            .map(|(index, stage)| FeatureLevel {
                name: index.to_string(),
                channels,
                stride: stage.stride,
            })
            .collect();
        let extra: &[&str] = match self.extra_level {
            ExtraLevel::MaxPool => &["pool"],
            ExtraLevel::ConvsOnOutput | ExtraLevel::ConvsOnStage => &["p6", "p7"],
        };
        let coarsest = used.last().map_or(1, |stage| stage.stride);
        levels.extend(extra.iter().zip(1..).map(|(name, doublings)| FeatureLevel {
            name: (*name).to_owned(),
            channels,
            stride: coarsest << doublings,
        }));
        levels
    }
}

/// Every level has the same channels and sees the coarser ones.
pub struct FeaturePyramid {
    first_stage: usize,
    inner_blocks: Vec<Conv2d>,
    layer_blocks: Vec<Conv2d>,
    extra: Extra,
    levels: Vec<FeatureLevel>,
}

/// What makes the extra levels.
enum Extra {
    MaxPool,
    /// `p6` and `p7`.
    Convs {
        source: Source,
        convs: Box<[Conv2d; 2]>,
    },
}

/// What `p6` is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Output,
    Stage,
}

impl FeaturePyramid {
    /// Loads the pyramid from `inner_blocks` (1×1) and `layer_blocks` (3×3), one of each per stage that takes part, and
    /// `extra_blocks.p6` and `.p7` where it has them.
    ///
    /// # Errors
    /// Those of [`FpnConfig::validate`], of the weights' source, and of candle.
    pub fn load(weights: &VarBuilder, stages: &[Stage], config: &FpnConfig) -> Result<Self> {
        config.validate(stages, &Checks::new("a feature pyramid"))?;
        let channels = config.channels;
        let load = |blocks: &str, index: usize, in_channels, kernel| {
            let weights = weights.pp(blocks).pp(index);
            let shape = ConvShape::new((in_channels, channels), kernel, Initial::Linear);
            match config.norm {
                Norm::None => Conv2d::load(&weights.pp(0), shape, Activation::None),
                Norm::FrozenBatchNorm | Norm::BatchNorm => {
                    let norm = NormAt::new(weights.pp(1), config.norm_eps);
                    Conv2d::load_normed(&weights.pp(0), &norm, shape, Activation::None)
                }
            }
        };
        let used = stages.get(config.first_stage..).unwrap_or_default();
        let inner_blocks = used
            .iter()
            .enumerate()
            .map(|(index, stage)| load("inner_blocks", index, stage.channels, 1))
            .collect::<Result<_>>()?;
        let layer_blocks = (0..used.len())
            .map(|index| load("layer_blocks", index, channels, 3))
            .collect::<Result<_>>()?;
        let coarsest = used.last().map_or(channels, |stage| stage.channels);
        let convs = |source, in_channels| -> Result<Extra> {
            let weights = weights.pp("extra_blocks");
            let shape = ConvShape::new((in_channels, channels), 3, Initial::Linear).with_stride(2);
            let of_p6 = ConvShape { in_channels: channels, ..shape };
            let p6 = Conv2d::load(&weights.pp("p6"), shape, Activation::None)?;
            let p7 = Conv2d::load(&weights.pp("p7"), of_p6, Activation::None)?;
            Ok(Extra::Convs { source, convs: Box::new([p6, p7]) })
        };
        let extra = match config.extra_level {
            ExtraLevel::MaxPool => Extra::MaxPool,
            ExtraLevel::ConvsOnOutput => convs(Source::Output, channels)?,
            ExtraLevel::ConvsOnStage => convs(Source::Stage, coarsest)?,
        };
        let first_stage = config.first_stage;
        Ok(Self { first_stage, inner_blocks, layer_blocks, extra, levels: config.levels(stages) })
    }

    /// The levels beyond those of the stages, from the coarsest output and, where they are made of it, the coarsest stage.
    fn extra_levels(&self, output: &Tensor, stage: Option<&Tensor>) -> Result<Vec<Tensor>> {
        match &self.extra {
            Extra::MaxPool => {
                let params =
                    MaxPool2dParams { kernel: 1, stride: 2, padding: 0, rounding: Rounding::Down };
                Ok(vec![max_pool2d(output, &params)?])
            }
            Extra::Convs { convs, .. } => {
                let [p6, p7] = convs.as_ref();
                let p6 = p6.forward(stage.unwrap_or(output))?;
                let p7 = p7.forward(&p6.relu()?)?;
                Ok(vec![p6, p7])
            }
        }
    }
}

impl Neck for FeaturePyramid {
    fn levels(&self) -> &[FeatureLevel] {
        &self.levels
    }

    fn forward(&self, stages: Vec<Tensor>) -> Result<FeatureMaps> {
        let kept = match &self.extra {
            Extra::Convs { source: Source::Stage, .. } => stages.last().cloned(),
            _ => None,
        };
        let mut coarser: Option<Tensor> = None;
        let mut levels = Vec::with_capacity(self.levels.len());
        let used = stages.into_iter().skip(self.first_stage);
        let used = used.collect::<Vec<_>>().into_iter();
        for ((stage, inner), layer) in used.zip(&self.inner_blocks).zip(&self.layer_blocks).rev() {
            let lateral = inner.forward(&stage)?;
            // The finest stage is as large as all that follows.
            drop(stage);
            let merged = match &coarser {
                Some(coarser) => {
                    let merged = upsample_add(coarser, &lateral)?;
                    drop(lateral);
                    merged
                }
                None => lateral,
            };
            levels.push(layer.forward(&merged)?);
            coarser = Some(merged);
        }
        levels.reverse();
        if let Some(coarsest) = levels.last() {
            let extra = self.extra_levels(coarsest, kept.as_ref())?;
            levels.extend(extra);
        }
        Ok(FeatureMaps { levels })
    }
}
