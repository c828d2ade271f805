//! SSD (Liu et al., arXiv:1512.02325): default boxes at every cell of several feature maps, each given a class and a shift.
//!
//! SSDLite is the same with separable convolutions.

mod config;
mod head;

use std::collections::BTreeMap;

use candle_core::Tensor;

pub use config::{
    DefaultBoxesConfig, SeparableHeadConfig, SsdConfig, SsdHeadConfig, SsdTrainingConfig,
};
pub use head::ScoringHead;

use super::selection::{Regression, by_ref, instances};
use crate::anchor_utils::{DefaultBoxGenerator, per_anchor};
use crate::architecture::{Architecture, Detected, Foundation};
use crate::error::Result;
use crate::ops::{
    AssignParams, BoxCoding, BoxCost, BoxSet, DENSE_SMOOTH_L1_BETA, DenseBoxLossParams, DenseTruth,
    Normalization, TopPerClassParams, Unfound, assign, dense_box_loss, hard_negative_loss,
    top_per_class,
};
use crate::postprocess::DetectionsConfig;
use crate::section::Checks;
use crate::structures::{BatchGeometry, FeatureMaps};
use crate::targets::{ObjectBatch, Sampler};

/// Two heads on default boxes.
pub struct Ssd {
    classification: ScoringHead,
    regression: ScoringHead,
    default_boxes: DefaultBoxGenerator,
    num_classes: usize,
    candidates_per_class: usize,
    coding: BoxCoding,
    training: SsdTrainingConfig,
}

/// What the heads say of the default boxes, `a` of them at a cell.
#[derive(Debug, Clone)]
pub struct SsdPredictions {
    /// `[N, H_l, W_l, a · C]` f32 of each level: class logits, the background's first.
    pub cls_logits: Vec<Tensor>,
    /// `[N, H_l, W_l, a · 4]` f32 of each level: dx, dy, dw, dh, times the weights.
    pub bbox_regression: Vec<Tensor>,
}

impl Ssd {
    /// Loads the heads from `head.`, with torchvision's parameter names.
    ///
    /// # Errors
    /// Those of [`SsdConfig::validate`], of the weights' source, and of candle.
    pub fn load(foundation: &Foundation<'_>, config: &SsdConfig) -> Result<Self> {
        let Foundation { weights, levels, num_classes } = foundation;
        config.validate(levels, &Checks::new("the model").section("architecture"))?;
        let default_boxes = config.default_boxes.generator()?;
        let boxes = default_boxes.num_anchors_per_location();
        let load = |name: &str, columns| {
            let weights = weights.pp("head").pp(name);
            ScoringHead::load(&weights, levels, &boxes, columns, &config.head)
        };
        Ok(Self {
            classification: load("classification_head", *num_classes)?,
            regression: load("regression_head", 4)?,
            default_boxes,
            num_classes: *num_classes,
            candidates_per_class: config.candidates_per_class,
            coding: BoxCoding::Deltas { weights: config.box_weights },
            training: config.training.clone(),
        })
    }

    /// What the heads say.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    pub fn predict(&self, features: &FeatureMaps) -> Result<SsdPredictions> {
        Ok(SsdPredictions {
            cls_logits: self.classification.forward(features)?,
            bbox_regression: self.regression.forward(features)?,
        })
    }

    /// The default boxes of a batch, `[A, 4]`, xyxy in pixels of the resized images.
    ///
    /// # Errors
    /// Those of [`DefaultBoxGenerator::generate`].
    pub fn default_boxes(
        &self,
        features: &FeatureMaps,
        geometry: &BatchGeometry,
    ) -> Result<Tensor> {
        self.default_boxes.generate(geometry, &features.levels)
    }
}

impl Architecture for Ssd {
    fn detect(
        &self,
        features: &FeatureMaps,
        geometry: &BatchGeometry,
        config: &DetectionsConfig,
    ) -> Result<Detected> {
        let SsdPredictions { cls_logits, bbox_regression } = self.predict(features)?;
        let anchors = self.default_boxes(features, geometry)?;
        let logits = per_anchor(&cls_logits, &[self.num_classes])?;
        let params = TopPerClassParams {
            score_threshold: config.score_threshold,
            per_class: self.candidates_per_class,
        };
        let pairs = top_per_class(&by_ref(&logits), &params)?;
        let deltas = per_anchor(&bbox_regression, &[4])?;
        let regression = Regression { anchors: &anchors, levels: &deltas, coding: self.coding };
        let instances = instances(&pairs, &regression, geometry, config)?;
        Ok(Detected { instances, extras: BTreeMap::new() })
    }

    fn loss_names(&self) -> Vec<String> {
        ["bbox_regression", "classification"].map(str::to_owned).to_vec()
    }

    fn losses(
        &self,
        features: &FeatureMaps,
        geometry: &BatchGeometry,
        objects: &ObjectBatch,
        _: &mut dyn Sampler,
    ) -> Result<Vec<Tensor>> {
        let SsdPredictions { cls_logits, bbox_regression } = self.predict(features)?;
        let anchors = self.default_boxes(features, geometry)?;
        let SsdTrainingConfig { positive_iou, negatives_per_positive } = self.training;
        let params = AssignParams {
            positive_iou,
            negative_iou: positive_iou,
            unfound: Unfound::EachToItsBestBox,
        };
        let boxes = BoxSet::Shared(&anchors);
        let matches = assign(boxes, &objects.boxes, &objects.counts, &params)?;
        let truth = DenseTruth { matches: &matches, objects: objects.by_ref() };
        let params = DenseBoxLossParams {
            coding: self.coding,
            cost: BoxCost::SmoothL1 { beta: DENSE_SMOOTH_L1_BETA },
            normalization: Normalization::PerBatch,
        };
        let (logits, classes) = (by_ref(&cls_logits), self.num_classes);
        Ok(vec![
            dense_box_loss(&by_ref(&bbox_regression), &anchors, truth, &params)?,
            hard_negative_loss(&logits, classes, truth, negatives_per_positive)?,
        ])
    }
}
