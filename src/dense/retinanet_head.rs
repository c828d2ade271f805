//! The two towers of RetinaNet and their predictors.

use candle_core::Tensor;
use candle_nn::VarBuilder;
use serde::{Deserialize, Serialize};

use super::tower::{Tower, TowerNorm, predictor};
use crate::error::Result;
use crate::layers::{Conv2d, Initial};
use crate::section::Checks;
use crate::structures::FeatureMaps;

/// The section `head` of a RetinaNet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetinaNetHeadConfig {
    /// 3×3 convolutions before each predictor.
    pub conv_depth: usize,
    /// What follows each of them; without, they have biases.
    pub norm: TowerNorm,
}

impl RetinaNetHeadConfig {
    /// Checks the numbers of the section for levels of so many channels.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), naming the field at fault.
    pub fn validate(&self, channels: usize, checks: &Checks) -> Result<()> {
        checks.at_least_one(&[("conv_depth", self.conv_depth)])?;
        self.norm.validate(channels, checks)
    }
}

/// What the head predicts, per level.
#[derive(Debug, Clone)]
pub struct RetinaNetOutput {
    /// `[N, H_l, W_l, a·C]` f32, a logit per anchor of a cell and class.
    pub class_logits: Vec<Tensor>,
    /// `[N, H_l, W_l, a·4]` f32, dx, dy, dw, dh per anchor of a cell.
    pub box_regression: Vec<Tensor>,
}

/// Predicts classes and boxes from each level with the same weights.
pub struct RetinaNetHead {
    class_tower: Tower,
    class_logits: Conv2d,
    box_tower: Tower,
    box_regression: Conv2d,
}

impl RetinaNetHead {
    /// Loads the head from `classification_head.{conv, cls_logits}` and `regression_head.{conv, bbox_reg}`.
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn load(
        weights: &VarBuilder,
        channels: usize,
        anchors_per_location: usize,
        num_classes: usize,
        config: &RetinaNetHeadConfig,
    ) -> Result<Self> {
        let (classes, boxes) = (weights.pp("classification_head"), weights.pp("regression_head"));
        let tower = |weights: &VarBuilder| {
            Tower::load(&weights.pp("conv"), channels, config.conv_depth, config.norm.into())
        };
        let (logits, deltas) = (anchors_per_location * num_classes, anchors_per_location * 4);
        Ok(Self {
            class_tower: tower(&classes)?,
            class_logits: predictor(&classes.pp("cls_logits"), channels, logits, Initial::Rare)?,
            box_tower: tower(&boxes)?,
            box_regression: predictor(&boxes.pp("bbox_reg"), channels, deltas, Initial::Small)?,
        })
    }

    /// Predicts from every level.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    pub fn forward(&self, features: &FeatureMaps) -> Result<RetinaNetOutput> {
        let mut output = RetinaNetOutput { class_logits: Vec::new(), box_regression: Vec::new() };
        for level in &features.levels {
            let hidden = self.class_tower.forward(level)?;
            output.class_logits.push(self.class_logits.forward(&hidden)?);
            let hidden = self.box_tower.forward(level)?;
            output.box_regression.push(self.box_regression.forward(&hidden)?);
        }
        Ok(output)
    }
}
