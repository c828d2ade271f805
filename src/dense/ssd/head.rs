//! What predicts classes and boxes, with weights of its own for every level.

use candle_core::Tensor;
use candle_nn::VarBuilder;

use super::config::{SeparableHeadConfig, SsdHeadConfig};
use crate::error::Result;
use crate::layers::{Conv2d, ConvShape, Initial, NormAt};
use crate::ops::Activation;
use crate::structures::{FeatureLevel, FeatureMaps};

/// Predicts one kind of numbers for the default boxes of each level.
pub struct ScoringHead {
    levels: Vec<LevelHead>,
}

/// Of one level.
struct LevelHead {
    /// The first half of a separable convolution.
    around: Option<Conv2d>,
    predictor: Conv2d,
}

impl ScoringHead {
    /// Loads the convolutions from `module_list.0`, `.1` …, with `columns` numbers for each of the boxes of a cell.
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn load(
        weights: &VarBuilder,
        levels: &[FeatureLevel],
        boxes_per_cell: &[usize],
        columns: usize,
        config: &SsdHeadConfig,
    ) -> Result<Self> {
        let load = |(index, (level, boxes)): (usize, (&FeatureLevel, &usize))| {
            let weights = weights.pp("module_list").pp(index);
            LevelHead::load(&weights, (level.channels, boxes * columns), config)
        };
        let levels = levels.iter().zip(boxes_per_cell).enumerate().map(load);
        Ok(Self { levels: levels.collect::<Result<_>>()? })
    }

    /// `[N, H_l, W_l, boxes · columns]` f32 of each level.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    pub fn forward(&self, features: &FeatureMaps) -> Result<Vec<Tensor>> {
        let levels = self.levels.iter().zip(&features.levels);
        levels.map(|(head, features)| head.forward(features)).collect()
    }
}

impl LevelHead {
    fn load(
        weights: &VarBuilder,
        channels: (usize, usize),
        config: &SsdHeadConfig,
    ) -> Result<Self> {
        let predictor = |weights: VarBuilder, kernel, initial| -> Result<Conv2d> {
            let shape = ConvShape::new(channels, kernel, initial);
            Ok(Conv2d::load(&weights, shape, Activation::None)?.with_f32_output())
        };
        match config {
            SsdHeadConfig::Conv => Ok(Self {
                around: None,
                predictor: predictor(weights.clone(), 3, Initial::Xavier)?,
            }),
            SsdHeadConfig::Separable(SeparableHeadConfig { norm_eps, norm_momentum, .. }) => {
                let (input, _) = channels;
                let shape = ConvShape::new((input, input), 3, Initial::Lite).with_groups(input);
                let of_around = weights.pp(0);
                let norm = NormAt::new(of_around.pp(1), *norm_eps).with_momentum(*norm_momentum);
                let relu6 = Activation::Relu6;
                Ok(Self {
                    around: Some(Conv2d::load_normed(&of_around.pp(0), &norm, shape, relu6)?),
                    predictor: predictor(weights.pp(1), 1, Initial::Lite)?,
                })
            }
        }
    }

    fn forward(&self, features: &Tensor) -> Result<Tensor> {
        match &self.around {
            Some(around) => self.predictor.forward(&around.forward(features)?),
            None => self.predictor.forward(features),
        }
    }
}
