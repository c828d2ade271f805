//! What defines a model: one TOML file per variant, one Rust struct per file.
//!
//! In: a file of `models/`, or one of the user's. Out: a validated [`ModelConfig`]. Each section is defined, checked and
//! built by the room that it configures; this room puts them together, and knows nothing of their numbers.

mod architecture;
mod catalogue;
mod categories;
mod validate;

use std::path::Path;

use serde::{Deserialize, Serialize};

pub use architecture::{ArchitectureConfig, CustomConfig};
pub use catalogue::{get, names};
pub use categories::{Categories, CategorySource};

use crate::backbone::{BodyConfig, NeckConfig};
use crate::checkpoint::PublishedWeights;
use crate::error::{Error, Result};
use crate::postprocess::DetectionsConfig;
use crate::structures::FeatureLevel;
use crate::transform::ImageConfig;

/// Everything that defines a model variant. See `models/README.md` for the meaning and unit of every key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// The variant's name; torchvision's where it has one.
    pub name: String,
    /// Number of classes, background (label 0) included.
    pub num_classes: usize,
    /// The label map: name of a built-in one, or the names themselves.
    pub categories: CategorySource,
    /// From an image to the batch.
    pub image: ImageConfig,
    /// The network that reads pixels.
    pub body: BodyConfig,
    /// What makes the levels that the detector looks at.
    pub neck: NeckConfig,
    /// The detector without its backbone.
    pub architecture: ArchitectureConfig,
    /// Which candidates become detections.
    pub detections: DetectionsConfig,
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

    /// What the backbone hands out, known without weights.
    pub fn levels(&self) -> Vec<FeatureLevel> {
        self.neck.levels(&self.body.stages())
    }

    /// Prefixes of the parameters of each part of the backbone that may be frozen on its own, from the last to the first.
    pub fn backbone_parts(&self) -> Vec<Vec<String>> {
        let of_neck = |prefix: String| format!("backbone.{prefix}");
        let of_body = |prefix: String| self.of_body(&prefix);
        let in_neck = self.neck.parts().into_iter();
        let in_neck = in_neck.map(|prefixes| prefixes.into_iter().map(of_neck).collect());
        let in_body = self.body.parts().into_iter();
        in_neck.chain(in_body.map(|part| part.into_iter().map(of_body).collect())).collect()
    }

    /// Prefixes of the parameters of norms that are never trained.
    pub fn fixed_norms(&self) -> Vec<String> {
        let body = self.body.fixed_norms().into_iter().map(|prefix| self.of_body(&prefix));
        let neck = self.neck.fixed_norms().into_iter().map(|prefix| format!("backbone.{prefix}"));
        body.chain(neck).chain(self.architecture.fixed_norms()).collect()
    }

    /// The full name of a parameter of the body.
    fn of_body(&self, name: &str) -> String {
        match self.neck.body_prefix() {
            "" => format!("backbone.{name}"),
            prefix => format!("backbone.{prefix}.{name}"),
        }
    }
}
