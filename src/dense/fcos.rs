//! FCOS (Tian et al., arXiv:2006.09214).

use std::collections::BTreeMap;

use candle_core::Tensor;
use serde::{Deserialize, Serialize};

use super::fcos_head::{FcosHead, FcosHeadConfig, FcosOutput};
use super::selection::{Regression, by_ref, instances};
use super::tower::GROUPS;
use crate::anchor_utils::{AnchorGenerator, AnchorsConfig, per_anchor};
use crate::architecture::{Architecture, Detected, Foundation};
use crate::error::Result;
use crate::ops::{
    AssignPointsParams, BoxCoding, BoxCost, DenseBoxLossParams, DenseTruth, Normalization,
    TopPairsParams, assign_points, centerness_loss, dense_box_loss, focal_loss, top_pairs,
};
use crate::postprocess::DetectionsConfig;
use crate::section::Checks;
use crate::structures::{BatchGeometry, FeatureLevel, FeatureMaps};
use crate::targets::{ObjectBatch, Sampler};

/// The section `architecture` of an FCOS.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FcosConfig {
    /// Best (point, class) pairs kept per level and image, of those above the detections' threshold.
    pub candidates_per_level: usize,
    /// A square around each point, as wide as the level's stride: one size per level, one aspect ratio.
    pub anchors: AnchorsConfig,
    /// Towers and predictors.
    pub head: FcosHeadConfig,
    /// How the model learns.
    #[serde(default)]
    pub training: FcosTrainingConfig,
}

/// Numbers of the training flow that belong to the model, not to a run; torchvision's unless a file says otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FcosTrainingConfig {
    /// A point is nearer to the center of its object than this, in x and in y, in strides.
    pub center_radius: f32,
    /// Between which numbers a point's largest distance to a side of its object lies, in strides; the first level has no
    /// lower and the last no upper limit.
    pub side_range: [f32; 2],
}

impl Default for FcosTrainingConfig {
    fn default() -> Self {
        Self { center_radius: 1.5, side_range: [4.0, 8.0] }
    }
}

impl FcosTrainingConfig {
    fn validate(&self, checks: &Checks) -> Result<()> {
        let Self { center_radius, side_range: [lower, upper] } = *self;
        let positive = center_radius > 0.0 && center_radius.is_finite();
        let found = center_radius.to_string();
        checks.require(positive.into(), "center_radius", found, "a number of strides above 0")?;
        let ordered = lower >= 0.0 && lower < upper && upper.is_finite();
        let found = format!("[{lower}, {upper}]");
        checks.require(
            ordered.into(),
            "side_range",
            found,
            "numbers of strides from 0 in ascending order",
        )
    }
}

impl FcosConfig {
    /// Checks the numbers of the section for a backbone of these levels.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), naming the field at fault.
    pub fn validate(&self, levels: &[FeatureLevel], checks: &Checks) -> Result<()> {
        checks.at_least_one(&[("candidates_per_level", self.candidates_per_level)])?;
        let of_anchors = checks.section("anchors");
        self.anchors.validate(levels.len(), &of_anchors)?;
        let AnchorsConfig { sizes, aspect_ratios } = &self.anchors;
        let single = sizes.iter().all(|sizes| sizes.len() == 1);
        let found = format!("{sizes:?}");
        of_anchors.require(single.into(), "sizes", found, "one size per level")?;
        let single = aspect_ratios.len() == 1;
        let found = format!("{aspect_ratios:?}");
        of_anchors.require(single.into(), "aspect_ratios", found, "one: a cell is one point")?;
        let channels = levels.first().map_or(0, |level| level.channels);
        let fits = channels > 0 && channels.is_multiple_of(GROUPS);
        let expected = format!("channels in {GROUPS} groups, for the norms of its towers");
        let found = format!("on levels of {channels} channels");
        checks.require(fits.into(), "head", found, expected)?;
        self.head.validate(&checks.section("head"))?;
        self.training.validate(&checks.section("training"))
    }
}

/// Class, distances to the sides of the box, and centerness of every point.
pub struct Fcos {
    head: FcosHead,
    anchors: AnchorGenerator,
    num_classes: usize,
    candidates_per_level: usize,
    training: FcosTrainingConfig,
}

impl Fcos {
    /// Names of the losses.
    pub const LOSSES: [&str; 3] = ["classification", "bbox_regression", "bbox_ctrness"];

    /// Loads the network from `head.`, with torchvision's parameter names.
    ///
    /// # Errors
    /// Those of [`FcosConfig::validate`], of the weights' source, and of candle.
    pub fn load(foundation: &Foundation<'_>, config: &FcosConfig) -> Result<Self> {
        let Foundation { weights, levels, num_classes } = foundation;
        config.validate(levels, &Checks::new("the model").section("architecture"))?;
        let channels = levels.first().map_or(0, |level| level.channels);
        Ok(Self {
            head: FcosHead::load(&weights.pp("head"), channels, *num_classes, &config.head)?,
            anchors: AnchorGenerator::new(&config.anchors),
            num_classes: *num_classes,
            candidates_per_level: config.candidates_per_level,
            training: config.training.clone(),
        })
    }

    /// The squares around points, for those who want to look at them.
    pub fn anchor_generator(&self) -> &AnchorGenerator {
        &self.anchors
    }

    /// Predicts class, box and centerness of every point.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    pub fn predict(&self, features: &FeatureMaps) -> Result<FcosOutput> {
        self.head.forward(features)
    }
}

impl Architecture for Fcos {
    fn detect(
        &self,
        features: &FeatureMaps,
        geometry: &BatchGeometry,
        config: &DetectionsConfig,
    ) -> Result<Detected> {
        let predicted = self.predict(features)?;
        let anchors = self.anchors.generate(geometry, &predicted.class_logits)?;
        let logits = per_anchor(&predicted.class_logits, &[self.num_classes])?;
        let centerness = per_anchor(&predicted.centerness, &[])?;
        let levels = per_anchor(&predicted.box_regression, &[4])?;
        let params = TopPairsParams {
            score_threshold: config.score_threshold,
            per_level: self.candidates_per_level,
        };
        let pairs = top_pairs(&by_ref(&logits), Some(&by_ref(&centerness)), &params)?;
        let coding = BoxCoding::Distances;
        let regression = Regression { anchors: &anchors, levels: &levels, coding };
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
        let [lower, upper] = self.training.side_range;
        let params = AssignPointsParams {
            center_radius: self.training.center_radius,
            side_range: (lower, upper),
        };
        let lengths = predicted.centerness.iter().map(points).collect::<Result<Vec<_>>>()?;
        let matches = assign_points(&anchors, &lengths, &objects.boxes, &objects.counts, &params)?;
        let truth = DenseTruth { matches: &matches, objects: objects.by_ref() };
        let normalization = Normalization::PerBatch;
        let params =
            DenseBoxLossParams { coding: BoxCoding::Distances, cost: BoxCost::Giou, normalization };
        let logits = by_ref(&predicted.class_logits);
        Ok(vec![
            focal_loss(&logits, self.num_classes, truth, normalization)?,
            dense_box_loss(&by_ref(&predicted.box_regression), &anchors, truth, &params)?,
            centerness_loss(&by_ref(&predicted.centerness), &anchors, truth)?,
        ])
    }
}

/// Points of a level.
fn points(level: &Tensor) -> Result<usize> {
    Ok(level.dim(1)? * level.dim(2)?)
}
