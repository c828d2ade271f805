//! Choices that are made once, before a model is loaded.

use std::path::PathBuf;

use candle_core::{DType, Device};

use super::Detector;
use crate::checkpoint::{self, Checkpoint, CheckpointSource, Loading, RandomSource};
use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::network::NetworkBuilder;
use crate::progress::{Progress, Silent};

/// Where the weights come from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Weights {
    /// The first published file of the model, from the cache folder or downloaded into it.
    Published,
    /// The published file of this version, such as `coco_v1`.
    PublishedVersion(String),
    /// A safetensors file, or a PyTorch checkpoint.
    File(PathBuf),
    /// Random numbers, for tests.
    Random {
        /// The same seed gives the same weights.
        seed: u64,
    },
}

/// How the kernels of a forward pass are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Execution {
    /// One by one, as the network is walked through.
    #[default]
    Direct,
    /// On a GPU, from a CUDA graph: the first forward pass of a size is recorded, and replayed by one call for later
    /// images of that size. Each of at most 8 recordings keeps the memory of a pass. While one is made, nothing else
    /// may use the device. Where recording is not possible the reason is logged, and the pass runs as with `Direct`.
    Graphs,
}

/// Collects choices, then loads a [`Detector`].
pub struct DetectorBuilder {
    config: ModelConfig,
    weights: Weights,
    loading: Loading,
    device: Device,
    dtype: DType,
    execution: Execution,
    network: NetworkBuilder,
    progress: Box<dyn Progress>,
}

impl DetectorBuilder {
    /// Starts from a model file; published weights, strict loading, on the CPU.
    pub fn new(config: ModelConfig) -> Self {
        Self {
            config,
            weights: Weights::Published,
            loading: Loading::Strict,
            device: Device::Cpu,
            dtype: DType::F32,
            execution: Execution::Direct,
            network: NetworkBuilder::default(),
            progress: Box::new(Silent),
        }
    }

    /// Where the weights come from.
    pub fn weights(mut self, weights: Weights) -> Self {
        self.weights = weights;
        self
    }

    /// What to do about tensors that are missing, unknown or of another shape.
    pub fn loading(mut self, loading: Loading) -> Self {
        self.loading = loading;
        self
    }

    /// Where the model runs.
    pub fn device(mut self, device: Device) -> Self {
        self.device = device;
        self
    }

    /// What convolutions and linear layers compute in: f32, or half precision where the device has kernels for it.
    /// Sums, boxes and scores are f32 whatever it is.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// How the kernels of a forward pass are started.
    pub fn execution(mut self, execution: Execution) -> Self {
        self.execution = execution;
        self
    }

    /// Changes any number of the model's configuration.
    pub fn configure(mut self, edit: impl FnOnce(&mut ModelConfig)) -> Self {
        edit(&mut self.config);
        self
    }

    /// Detections have a score strictly above this.
    pub fn score_threshold(self, threshold: f32) -> Self {
        self.configure(|config| config.detections.score_threshold = threshold)
    }

    /// The most detections of one image.
    pub fn detections_per_image(self, detections: usize) -> Self {
        self.configure(|config| config.detections.per_image = detections)
    }

    /// Parts of your own: body, neck, heads, or the whole architecture.
    pub fn network(mut self, network: NetworkBuilder) -> Self {
        self.network = network;
        self
    }

    /// Who hears of a download.
    pub fn progress(mut self, progress: impl Progress + 'static) -> Self {
        self.progress = Box::new(progress);
        self
    }

    /// Validates the configuration, finds and checks the weights, and loads them.
    ///
    /// # Errors
    /// [`Error::Config`], those of the download, or those of the weight file; a file that does not fit is reported with
    /// every tensor at fault.
    pub fn build(self) -> Result<Detector> {
        let config = self.config.clone();
        config.validate(&config.name)?;
        let categories = config.label_map()?;
        let (network, load_report) = match self.weight_file()? {
            None => {
                let Weights::Random { seed } = self.weights else {
                    return Err(no_published_weights(&config.name, String::new()));
                };
                let weights = RandomSource { seed }.var_builder(&self.device);
                (self.network.build(&weights.to_dtype(self.dtype), &config)?, None)
            }
            Some(path) => {
                let source = CheckpointSource::new(Checkpoint::open(&path)?, self.loading);
                let weights = source.var_builder(&self.device).to_dtype(self.dtype);
                let network = self.network.build(&weights, &config)?;
                (network, Some(source.finish(&config.name)?))
            }
        };
        if self.execution == Execution::Graphs && !self.device.is_cuda() {
            log::warn!("no CUDA graphs: the model is on the CPU");
        }
        Ok(Detector {
            execution: if self.device.is_cuda() { self.execution } else { Execution::Direct },
            #[cfg(feature = "cuda")]
            replays: super::replay::Replays::default(),
            device: self.device,
            dtype: self.dtype,
            config,
            categories,
            network,
            load_report,
        })
    }

    /// The weight file, downloaded if need be; `None` for random weights.
    fn weight_file(&self) -> Result<Option<PathBuf>> {
        let published = &self.config.weights;
        let chosen = match &self.weights {
            Weights::Random { .. } => return Ok(None),
            Weights::File(path) => return Ok(Some(path.clone())),
            Weights::Published => published.first(),
            Weights::PublishedVersion(version) => published.iter().find(|w| w.version == *version),
        };
        let chosen = chosen.ok_or_else(|| {
            let version = match &self.weights {
                Weights::PublishedVersion(version) => format!(" of version `{version}`"),
                _ => String::new(),
            };
            no_published_weights(&self.config.name, version)
        })?;
        checkpoint::fetch(chosen, self.progress.as_ref()).map(Some)
    }
}

fn no_published_weights(model: &str, version: String) -> Error {
    Error::NoPublishedWeights { model: model.to_owned(), version }
}
