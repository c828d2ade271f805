//! What defines a model: one flat TOML file per variant, one Rust struct per file.
//!
//! In: a file of `models/`, or one of the user's. Out: a validated [`ModelConfig`].
//! This room knows nothing of candle, devices or weights.

mod catalogue;
mod categories;
mod sections;
mod training;
mod validate;

use std::path::Path;

use serde::{Deserialize, Serialize};

pub use catalogue::{get, names};
pub use categories::{Categories, CategorySource};
pub use sections::*;
pub use training::{RoiTrainingConfig, RpnTrainingConfig, TrainingConfig};

use crate::error::{Error, Result};

/// Everything that defines a model variant. See `models/README.md` for the meaning and unit of every key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// The variant's name; torchvision's where it has one.
    pub name: String,
    /// Which parts the model has.
    pub architecture: Architecture,
    /// Number of classes, background (label 0) included.
    pub num_classes: usize,
    /// The label map: name of a built-in one, or the names themselves.
    pub categories: CategorySource,
    /// From an image to the batch.
    pub image: ImageConfig,
    /// The feature extractor.
    pub backbone: BackboneConfig,
    /// Reference boxes of the region proposal network.
    pub anchors: AnchorsConfig,
    /// The region proposal network.
    pub rpn: RpnConfig,
    /// Classification and box regression of proposals.
    pub box_head: BoxHeadConfig,
    /// Which candidates become detections.
    pub detections: DetectionsConfig,
    /// Masks of the detections; required by `mask_rcnn`.
    pub mask_head: Option<MaskHeadConfig>,
    /// How the model learns.
    #[serde(default)]
    pub training: TrainingConfig,
    /// Published weights, best first.
    #[serde(default)]
    pub weights: Vec<PublishedWeights>,
}

/// The model that a command line names: a model file where the name ends in `.toml`, else one of the catalogue.
///
/// # Errors
/// Those of [`ModelConfig::load`] or [`get`].
pub fn find(name: &str) -> Result<ModelConfig> {
    if name.ends_with(".toml") { ModelConfig::load(Path::new(name)) } else { get(name) }
}

impl ModelConfig {
    /// Reads and validates a model file.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::ConfigSyntax`] or [`Error::Config`], each naming the file.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| Error::Io { path: path.to_owned(), source })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Parses and validates the text of a model file. `origin` is what errors call it.
    ///
    /// # Errors
    /// [`Error::ConfigSyntax`] or [`Error::Config`].
    pub fn parse(text: &str, origin: &str) -> Result<Self> {
        let config: Self = toml::from_str(text).map_err(|source| Error::ConfigSyntax {
            origin: origin.to_owned(),
            source: Box::new(source),
        })?;
        config.validate(origin)?;
        Ok(config)
    }

    /// The label map that [`Self::categories`] stands for.
    ///
    /// # Errors
    /// [`Error::Config`] when no built-in label map has the name.
    pub fn label_map(&self) -> Result<Categories> {
        self.categories.resolve(&self.name, self.num_classes)
    }
}
