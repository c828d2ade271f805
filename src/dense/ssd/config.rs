//! The section `architecture` of an SSD.

use serde::{Deserialize, Serialize};

use crate::anchor_utils::DefaultBoxGenerator;
use crate::error::Result;
use crate::layers::Norm;
use crate::section::Checks;
use crate::structures::FeatureLevel;

/// A single-shot detector.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SsdConfig {
    /// Best boxes of a class and image that are compared with each other.
    pub candidates_per_class: usize,
    /// What dx, dy, dw, dh are divided by.
    pub box_weights: [f32; 4],
    /// Reference boxes.
    pub default_boxes: DefaultBoxesConfig,
    /// What predicts classes and boxes.
    pub head: SsdHeadConfig,
    /// How the model learns.
    #[serde(default)]
    pub training: SsdTrainingConfig,
}

/// Reference boxes of every level; see [`DefaultBoxGenerator`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DefaultBoxesConfig {
    /// Width / height besides 1, one list per level.
    pub aspect_ratios: Vec<Vec<f64>>,
    /// Fractions of the image, one per level and one more.
    pub scales: Vec<f64>,
    /// Input pixels per cell of each level; without it, those that the features have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<Vec<f64>>,
}

/// What predicts classes and boxes of a level.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SsdHeadConfig {
    /// A 3×3 convolution.
    Conv,
    /// A 3×3 convolution of each channel by itself, a norm and ReLU6, then a 1×1 convolution.
    Separable(SeparableHeadConfig),
}

/// The norms of a separable head.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeparableHeadConfig {
    /// Normalisation between the two convolutions.
    pub norm: Norm,
    /// Added to the variance by every norm.
    pub norm_eps: f64,
    /// Share of a batch's statistics in the running ones, where norms are trained.
    pub norm_momentum: f64,
}

/// Numbers of the training flow; torchvision's unless a file says otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SsdTrainingConfig {
    /// A default box has found the object that it overlaps most when their IoU is at least this. Besides, every object has
    /// the default box that overlaps it most.
    pub positive_iou: f32,
    /// Hardest boxes without an object that are learned from, for each one with.
    pub negatives_per_positive: usize,
}

impl Default for SsdTrainingConfig {
    fn default() -> Self {
        Self { positive_iou: 0.5, negatives_per_positive: 3 }
    }
}

impl SsdConfig {
    /// Checks the numbers of the section for a backbone of these levels.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), naming the field at fault.
    pub fn validate(&self, levels: &[FeatureLevel], checks: &Checks) -> Result<()> {
        checks.at_least_one(&[("candidates_per_class", self.candidates_per_class)])?;
        checks.positive("box_weights", &self.box_weights)?;
        self.default_boxes.validate(levels.len(), &checks.section("default_boxes"))?;
        if let SsdHeadConfig::Separable(head) = &self.head {
            let checks = checks.section("head");
            let expected = "`frozen_batch_norm` or `batch_norm`: the convolution has no bias";
            checks.require((head.norm != Norm::None).into(), "norm", "`none`", expected)?;
            checks.eps("norm_eps", head.norm_eps)?;
            checks.fractions(&[("norm_momentum", head.norm_momentum)])?;
        }
        let SsdTrainingConfig { positive_iou, negatives_per_positive } = self.training;
        let checks = checks.section("training");
        checks.matching(positive_iou, positive_iou)?;
        checks.at_least_one(&[("negatives_per_positive", negatives_per_positive)])
    }

    /// Prefixes of the parameters of norms that are never trained.
    pub fn fixed_norms(&self) -> Vec<String> {
        match &self.head {
            SsdHeadConfig::Conv => Vec::new(),
            SsdHeadConfig::Separable(head) => head.norm.fixed_at("head."),
        }
    }
}

impl DefaultBoxesConfig {
    /// Checks the lists of the section for this number of levels.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), naming the list at fault.
    pub fn validate(&self, levels: usize, checks: &Checks) -> Result<()> {
        let Self { aspect_ratios, scales, steps } = self;
        let lists = |field: &str, found: usize, expected: usize, of: &str| {
            let text = format!("{expected}, {of}");
            checks.require((found == expected).into(), field, format!("{found} entries"), text)
        };
        lists("aspect_ratios", aspect_ratios.len(), levels, "one list per level")?;
        lists("scales", scales.len(), levels + 1, "one more than levels")?;
        if let Some(steps) = steps {
            lists("steps", steps.len(), levels, "one per level")?;
        }
        let positive = |field: &str, values: &[f64]| {
            let usable = values.iter().all(|value| *value > 0.0 && value.is_finite());
            checks.require(usable.into(), field, format!("{values:?}"), "positive numbers")
        };
        positive("aspect_ratios", &aspect_ratios.concat())?;
        positive("scales", scales)?;
        positive("steps", steps.as_deref().unwrap_or_default())
    }

    /// The generator of these boxes.
    ///
    /// # Errors
    /// Those of [`DefaultBoxGenerator::new`].
    pub fn generator(&self) -> Result<DefaultBoxGenerator> {
        DefaultBoxGenerator::new(&self.aspect_ratios, &self.scales, self.steps.as_deref())
    }
}
