//! Feature pyramid network (Lin et al., arXiv:1612.03144).

use candle_core::Tensor;
use candle_nn::VarBuilder;

use super::{Backbone, ResNet};
use crate::config::{BackboneConfig, ExtraLevel, Norm};
use crate::error::Result;
use crate::layers::{Conv2d, ConvShape, Initial, NormAt};
use crate::ops::{Activation, MaxPool2dParams, max_pool2d, upsample_add};
use crate::structures::{FeatureLevel, FeatureMaps};

/// Input pixels per cell of the finest level.
const FINEST_STRIDE: usize = 4;

/// A network with a pyramid on top: every level has the same channels and sees the coarser ones.
pub struct FeaturePyramid {
    body: ResNet,
    inner_blocks: Vec<Conv2d>,
    layer_blocks: Vec<Conv2d>,
    extra_level: ExtraLevel,
    levels: Vec<FeatureLevel>,
}

impl FeaturePyramid {
    /// Loads the pyramid from `inner_blocks` (1×1) and `layer_blocks` (3×3), one of each per stage of `body`.
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn load(weights: &VarBuilder, body: ResNet, config: &BackboneConfig) -> Result<Self> {
        let channels = config.fpn_channels;
        let load = |blocks: &str, index: usize, in_channels, kernel| {
            let weights = weights.pp(blocks).pp(index);
            let shape = ConvShape::new((in_channels, channels), kernel, Initial::Linear);
            match config.fpn_norm {
                Norm::None => Conv2d::load(&weights.pp(0), shape, Activation::None),
                Norm::FrozenBatchNorm | Norm::BatchNorm => {
                    let norm = NormAt::new(weights.pp(1), config.norm_eps);
                    Conv2d::load_normed(&weights.pp(0), &norm, shape, Activation::None)
                }
            }
        };
        let stages = body.out_channels().iter().enumerate();
        let inner_blocks = stages
            .clone()
            .map(|(index, in_channels)| load("inner_blocks", index, *in_channels, 1))
            .collect::<Result<_>>()?;
        let layer_blocks = stages
            .map(|(index, _)| load("layer_blocks", index, channels, 3))
            .collect::<Result<_>>()?;
        let levels = level_table(body.out_channels().len(), channels);
        Ok(Self { body, inner_blocks, layer_blocks, extra_level: config.extra_level, levels })
    }
}

fn level_table(stages: usize, channels: usize) -> Vec<FeatureLevel> {
    let names = (0..stages).map(|index| index.to_string()).chain(["pool".to_owned()]);
    names
        .enumerate()
        .map(|(level, name)| FeatureLevel { name, channels, stride: FINEST_STRIDE << level })
        .collect()
}

impl Backbone for FeaturePyramid {
    fn levels(&self) -> &[FeatureLevel] {
        &self.levels
    }

    fn forward(&self, pixels: &Tensor) -> Result<FeatureMaps> {
        let stages = self.body.forward(pixels)?;
        let mut coarser: Option<Tensor> = None;
        let mut levels = Vec::with_capacity(self.levels.len());
        for ((stage, inner), layer) in
            stages.into_iter().zip(&self.inner_blocks).zip(&self.layer_blocks).rev()
        {
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
            let ExtraLevel::MaxPool = self.extra_level;
            let params = MaxPool2dParams { kernel: 1, stride: 2, padding: 0 };
            levels.push(max_pool2d(coarsest, &params)?);
        }
        Ok(FeatureMaps { levels })
    }
}
