//! RetinaNet (Lin et al., arXiv:1708.02002).

use std::collections::BTreeMap;

use candle_core::Tensor;
use serde::{Deserialize, Serialize};

use super::retinanet_head::{RetinaNetHead, RetinaNetHeadConfig, RetinaNetOutput};
use super::selection::{Regression, by_ref, instances};
use crate::anchor_utils::{AnchorGenerator, AnchorsConfig, per_anchor};
use crate::architecture::{Architecture, Detected, Foundation};
use crate::error::Result;
use crate::ops::{
    AssignParams, BoxCoding, BoxCost, BoxSet, DenseBoxLossParams, DenseTruth, Normalization,
    TopPairsParams, Unfound, assign, dense_box_loss, focal_loss, top_pairs,
};
use crate::postprocess::DetectionsConfig;
use crate::section::Checks;
use crate::structures::{BatchGeometry, FeatureLevel, FeatureMaps};
use crate::targets::{ObjectBatch, Sampler};

/// How box regressions describe boxes.
const CODING: BoxCoding = BoxCoding::Deltas { weights: [1.0; 4] };

/// The section `architecture` of a RetinaNet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetinaNetConfig {
    /// Best (anchor, class) pairs kept per level and image, of those above the detections' threshold.
    pub candidates_per_level: usize,
    /// Reference boxes.
    pub anchors: AnchorsConfig,
    /// Towers and predictors.
    pub head: RetinaNetHeadConfig,
    /// How the model learns.
    #[serde(default)]
    pub training: RetinaNetTrainingConfig,
}

/// Numbers of the training flow that belong to the model, not to a run; torchvision's unless a file says otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetinaNetTrainingConfig {
    /// An anchor is positive when its IoU with an object is at least this.
    pub positive_iou: f32,
    /// An anchor is negative when its IoU with every object is below this; in between it is ignored.
    pub negative_iou: f32,
    /// How far a predicted box is from an object's.
    pub box_loss: BoxLoss,
}

/// How a predicted box is compared with an object's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BoxLoss {
    /// Absolute differences of the deltas.
    L1,
    /// One less the generalized IoU of the boxes.
    Giou,
}

impl Default for RetinaNetTrainingConfig {
    fn default() -> Self {
        Self { positive_iou: 0.5, negative_iou: 0.4, box_loss: BoxLoss::L1 }
    }
}

impl RetinaNetConfig {
    /// Checks the numbers of the section for a backbone of these levels.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), naming the field at fault.
    pub fn validate(&self, levels: &[FeatureLevel], checks: &Checks) -> Result<()> {
        checks.at_least_one(&[("candidates_per_level", self.candidates_per_level)])?;
        self.anchors.validate(levels.len(), &checks.section("anchors"))?;
        let channels = levels.first().map_or(0, |level| level.channels);
        self.head.validate(channels, &checks.section("head"))?;
        let RetinaNetTrainingConfig { positive_iou, negative_iou, .. } = self.training;
        checks.section("training").matching(positive_iou, negative_iou)
    }
}

/// Class and box of every anchor; an anchor's classes don't compete.
pub struct RetinaNet {
    head: RetinaNetHead,
    anchors: AnchorGenerator,
    num_classes: usize,
    candidates_per_level: usize,
    training: RetinaNetTrainingConfig,
}

impl RetinaNet {
    /// Names of the losses.
    pub const LOSSES: [&str; 2] = ["classification", "bbox_regression"];

    /// Loads the network from `head.`, with torchvision's parameter names.
    ///
    /// # Errors
    /// Those of [`RetinaNetConfig::validate`], of the weights' source, and of candle.
    pub fn load(foundation: &Foundation<'_>, config: &RetinaNetConfig) -> Result<Self> {
        let Foundation { weights, levels, num_classes } = foundation;
        config.validate(levels, &Checks::new("the model").section("architecture"))?;
        let channels = levels.first().map_or(0, |level| level.channels);
        let anchors = AnchorGenerator::new(&config.anchors);
        let per_cell = anchors.num_anchors_per_location();
        let head = weights.pp("head");
        Ok(Self {
            head: RetinaNetHead::load(&head, channels, per_cell, *num_classes, &config.head)?,
            anchors,
            num_classes: *num_classes,
            candidates_per_level: config.candidates_per_level,
            training: config.training.clone(),
        })
    }

    /// The anchors, for those who want to look at them.
    pub fn anchor_generator(&self) -> &AnchorGenerator {
        &self.anchors
    }

    /// Predicts classes and box of every anchor.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    pub fn predict(&self, features: &FeatureMaps) -> Result<RetinaNetOutput> {
        self.head.forward(features)
    }
}

impl Architecture for RetinaNet {
    fn detect(
        &self,
        features: &FeatureMaps,
        geometry: &BatchGeometry,
        config: &DetectionsConfig,
    ) -> Result<Detected> {
        let predicted = self.predict(features)?;
        let anchors = self.anchors.generate(geometry, &predicted.class_logits)?;
        let logits = per_anchor(&predicted.class_logits, &[self.num_classes])?;
        let levels = per_anchor(&predicted.box_regression, &[4])?;
        let params = TopPairsParams {
            score_threshold: config.score_threshold,
            per_level: self.candidates_per_level,
        };
        let pairs = top_pairs(&by_ref(&logits), None, &params)?;
        let regression = Regression { anchors: &anchors, levels: &levels, coding: CODING };
        let instances = instances(&pairs, &regression, geometry, config)?.trim_to_counts()?;
        Ok(Detected { instances, extras: BTreeMap::new() })
    }

    fn loss_names(&self) -> Vec<String> {
        Self::LOSSES.map(str::to_owned).to_vec()
    }

    fn losses(
        &self,
        features: &FeatureMaps,
        geometry: &BatchGeometry,
        objects: &ObjectBatch,
        _: &mut dyn Sampler,
    ) -> Result<Vec<Tensor>> {
        let predicted = self.predict(features)?;
        let anchors = self.anchors.generate(geometry, &predicted.class_logits)?;
        let params = AssignParams {
            positive_iou: self.training.positive_iou,
            negative_iou: self.training.negative_iou,
            unfound: Unfound::GivenToBestBoxes,
        };
        let boxes = BoxSet::Shared(&anchors);
        let matches = assign(boxes, &objects.boxes, &objects.counts, &params)?;
        let truth = DenseTruth { matches: &matches, objects: objects.by_ref() };
        let normalization = Normalization::PerImage;
        let logits = by_ref(&predicted.class_logits);
        let classes = focal_loss(&logits, self.num_classes, truth, normalization)?;
        let cost = match self.training.box_loss {
            BoxLoss::L1 => BoxCost::L1,
            BoxLoss::Giou => BoxCost::Giou,
        };
        let params = DenseBoxLossParams { coding: CODING, cost, normalization };
        let regression = by_ref(&predicted.box_regression);
        Ok(vec![classes, dense_box_loss(&regression, &anchors, truth, &params)?])
    }
}
