//! The two towers of FCOS and their three predictors.

use candle_core::Tensor;
use candle_nn::VarBuilder;
use serde::{Deserialize, Serialize};

use super::tower::{Tower, TowerLayout, predictor, predictor_above_zero};
use crate::error::Result;
use crate::layers::{Conv2d, Initial};
use crate::section::Checks;
use crate::structures::FeatureMaps;

/// The section `head` of an FCOS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FcosHeadConfig {
    /// 3×3 convolutions before each predictor, each with a bias and followed by a norm of 32 groups of channels.
    pub conv_depth: usize,
}

impl FcosHeadConfig {
    /// Checks the numbers of the section.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), naming the field at fault.
    pub fn validate(&self, checks: &Checks) -> Result<()> {
        checks.at_least_one(&[("conv_depth", self.conv_depth)])
    }
}

/// What the head predicts at each point, per level.
#[derive(Debug, Clone)]
pub struct FcosOutput {
    /// `[N, H_l, W_l, C]` f32, a logit per class.
    pub class_logits: Vec<Tensor>,
    /// `[N, H_l, W_l, 4]` f32, at least 0: distances to the left, upper, right and lower side, in strides.
    pub box_regression: Vec<Tensor>,
    /// `[N, H_l, W_l, 1]` f32, the logit of being at the center of the object.
    pub centerness: Vec<Tensor>,
}

/// Predicts classes, boxes and centerness from each level with the same weights; the last two share a tower.
pub struct FcosHead {
    class_tower: Tower,
    class_logits: Conv2d,
    box_tower: Tower,
    box_regression: Conv2d,
    centerness: Conv2d,
}

impl FcosHead {
    /// Loads the head from `classification_head.{conv, cls_logits}` and `regression_head.{conv, bbox_reg, bbox_ctrness}`.
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn load(
        weights: &VarBuilder,
        channels: usize,
        num_classes: usize,
        config: &FcosHeadConfig,
    ) -> Result<Self> {
        let (classes, boxes) = (weights.pp("classification_head"), weights.pp("regression_head"));
        let tower = |weights: &VarBuilder| {
            Tower::load(&weights.pp("conv"), channels, config.conv_depth, TowerLayout::Interleaved)
        };
        Ok(Self {
            class_tower: tower(&classes)?,
            class_logits: predictor(
                &classes.pp("cls_logits"),
                channels,
                num_classes,
                Initial::Rare,
            )?,
            box_tower: tower(&boxes)?,
            box_regression: predictor_above_zero(&boxes.pp("bbox_reg"), channels, 4)?,
            centerness: predictor(&boxes.pp("bbox_ctrness"), channels, 1, Initial::Small)?,
        })
    }

    /// Predicts from every level.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    pub fn forward(&self, features: &FeatureMaps) -> Result<FcosOutput> {
        let mut output = FcosOutput {
            class_logits: Vec::new(),
            box_regression: Vec::new(),
            centerness: Vec::new(),
        };
        for level in &features.levels {
            let hidden = self.class_tower.forward(level)?;
            output.class_logits.push(self.class_logits.forward(&hidden)?);
            let hidden = self.box_tower.forward(level)?;
            output.box_regression.push(self.box_regression.forward(&hidden)?);
            output.centerness.push(self.centerness.forward(&hidden)?);
        }
        Ok(output)
    }
}
