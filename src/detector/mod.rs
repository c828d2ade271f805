//! The front door: images in, detections out.

mod builder;
#[cfg(feature = "cuda")]
mod replay;

use std::path::Path;

use candle_core::{DType, Device};

pub use builder::{DetectorBuilder, Execution, Weights};

use crate::checkpoint::LoadReport;
use crate::config::{self, Categories, ModelConfig};
use crate::error::Result;
use crate::image_input::ImageInput;
use crate::network::DetectionNetwork;
use crate::postprocess::DetectionsConfig;
use crate::structures::{DetectionBatch, Detections};
use crate::transform::{self, ImageConfig};

/// What may differ from call to call, without loading anything anew.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// From an image to the batch.
    pub image: ImageConfig,
    /// Which candidates become detections.
    pub detections: DetectionsConfig,
}

/// A model with its weights on a device. `Send + Sync`: one detector serves several threads.
///
/// # Example
/// ```no_run
/// use candle_detection::{Detector, ImageInput};
///
/// let detector = Detector::from_name("maskrcnn_resnet50_fpn")?;
/// let detections = detector.detect(&ImageInput::open("street.jpg".as_ref())?)?;
/// for instance in detections.above(0.7) {
///     let name = detector.categories().name(instance.label).unwrap_or("?");
///     println!("{name} {:.2} {:?}", instance.score, instance.bbox);
/// }
/// # Ok::<(), candle_detection::Error>(())
/// ```
pub struct Detector {
    config: ModelConfig,
    categories: Categories,
    network: DetectionNetwork,
    device: Device,
    dtype: DType,
    execution: Execution,
    #[cfg(feature = "cuda")]
    replays: replay::Replays,
    load_report: Option<LoadReport>,
}

impl Detector {
    /// A model of the catalogue with its published weights, on the CPU. The weights are downloaded on first use.
    ///
    /// # Errors
    /// [`Error::UnknownModel`](crate::Error::UnknownModel), or those of the download and of the weight file.
    pub fn from_name(name: &str) -> Result<Self> {
        Self::builder(name)?.build()
    }

    /// A model file and a weight file of any known format, on the CPU.
    ///
    /// # Errors
    /// Those of the model file and of the weight file.
    pub fn from_files(config: &Path, weights: &Path) -> Result<Self> {
        DetectorBuilder::new(ModelConfig::load(config)?)
            .weights(Weights::File(weights.to_owned()))
            .build()
    }

    /// A builder for a model of the catalogue.
    ///
    /// # Errors
    /// [`Error::UnknownModel`](crate::Error::UnknownModel).
    pub fn builder(name: &str) -> Result<DetectorBuilder> {
        Ok(DetectorBuilder::new(config::get(name)?))
    }

    /// Detects the objects of one image.
    ///
    /// # Errors
    /// Those of the ops, such as a device out of memory.
    pub fn detect(&self, image: &ImageInput) -> Result<Detections> {
        let detections = self.detect_batch(std::slice::from_ref(image))?;
        Ok(detections.into_iter().next().unwrap_or_else(|| Detections {
            image_size: image.size(),
            instances: Vec::new(),
            parts: self.config.architecture.parts(),
        }))
    }

    /// Detects the objects of several images of any sizes at once; results are in their order.
    ///
    /// # Errors
    /// Those of the ops, such as a device out of memory.
    pub fn detect_batch(&self, images: &[ImageInput]) -> Result<Vec<Detections>> {
        self.detect_with(images, &self.settings())
    }

    /// Like [`Self::detect_batch`], with other sizes and thresholds than the model's.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for settings that make no sense, and those of the ops.
    pub fn detect_with(
        &self,
        images: &[ImageInput],
        settings: &Settings,
    ) -> Result<Vec<Detections>> {
        if images.is_empty() {
            return Ok(Vec::new());
        }
        if self.execution == Execution::Graphs
            && let Some(detections) = self.replay(images, settings)?
        {
            return Ok(detections);
        }
        self.detect_on_device(images, settings)?.to_host()
    }

    #[cfg(feature = "cuda")]
    fn replay(
        &self,
        images: &[ImageInput],
        settings: &Settings,
    ) -> Result<Option<Vec<Detections>>> {
        self.config_with(settings).validate("settings")?;
        let place = (&self.device, self.dtype);
        match self.replays.detect(&self.network, images, settings, place) {
            Err(error @ crate::Error::Graph { .. }) => {
                log::warn!("{error}; its kernels are started one by one");
                Ok(None)
            }
            other => other,
        }
    }

    #[cfg(not(feature = "cuda"))]
    fn replay(&self, _: &[ImageInput], _: &Settings) -> Result<Option<Vec<Detections>>> {
        Ok(None)
    }

    /// Like [`Self::detect_with`], with results left on the device. `images` has at least one.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for settings that make no sense, and those of the ops.
    pub fn detect_on_device(
        &self,
        images: &[ImageInput],
        settings: &Settings,
    ) -> Result<DetectionBatch> {
        self.config_with(settings).validate("settings")?;
        let batch = transform::to_batch(images, &settings.image, &self.device, self.dtype)?;
        self.network.detect(&batch, &settings.detections)
    }

    fn config_with(&self, settings: &Settings) -> ModelConfig {
        ModelConfig {
            image: settings.image.clone(),
            detections: settings.detections.clone(),
            ..self.config.clone()
        }
    }

    /// The model's own sizes and thresholds, to be changed for [`Self::detect_with`].
    pub fn settings(&self) -> Settings {
        Settings { image: self.config.image.clone(), detections: self.config.detections.clone() }
    }

    /// The configuration that the model was built with.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Names of the labels.
    pub fn categories(&self) -> &Categories {
        &self.categories
    }

    /// The network, for those who compose its parts themselves.
    pub fn network(&self) -> &DetectionNetwork {
        &self.network
    }

    /// Where the weights are.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What the layers compute in.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// How the weight file was understood; `None` for random weights.
    pub fn load_report(&self) -> Option<&LoadReport> {
        self.load_report.as_ref()
    }
}
