//! The network as training uses it.

use candle_core::{DType, Device};
use candle_nn::VarBuilder;

use super::losses::LossNames;
use super::parameters::{Freezing, Parameters};
use crate::checkpoint::{Checkpoint, CheckpointSource, LoadReport, Loading, RandomSource};
use crate::config::ModelConfig;
use crate::error::Result;
use crate::network::{DetectionNetwork, NetworkBuilder};
use crate::structures::TargetNeeds;

/// A network with variables for parameters.
pub struct Network {
    pub(super) config: ModelConfig,
    pub(super) parts: DetectionNetwork,
    pub(super) device: Device,
    loss_names: LossNames,
    parameters: Parameters,
}

impl Network {
    /// Builds the network that a model file describes, with the first values of `source`.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), those of the source, and of candle.
    pub fn load(
        config: &ModelConfig,
        source: VarBuilder<'static>,
        freezing: Freezing,
    ) -> Result<Self> {
        Self::load_with(&NetworkBuilder::default(), config, source, freezing)
    }

    /// Like [`Self::load`], of parts of your own.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), those of the parts' constructors, of the source, and of candle.
    pub fn load_with(
        builder: &NetworkBuilder,
        config: &ModelConfig,
        source: VarBuilder<'static>,
        freezing: Freezing,
    ) -> Result<Self> {
        config.validate(&config.name)?;
        let device = source.device().clone();
        let parameters = Parameters::new(freezing);
        let parts = builder.build(&parameters.var_builder(source), config)?;
        let loss_names = parts.architecture.loss_names().into();
        Ok(Self { config: config.clone(), parts, device, loss_names, parameters })
    }

    /// Starts from a weight file; with [`Loading::Partial`], what the file lacks or has for another number of classes
    /// gets random values.
    ///
    /// # Errors
    /// Those of [`Self::load`] and of the file.
    pub fn from_checkpoint(
        config: &ModelConfig,
        checkpoint: Checkpoint,
        loading: Loading,
        freezing: Freezing,
        device: &Device,
    ) -> Result<(Self, LoadReport)> {
        let source = CheckpointSource::new(checkpoint, loading);
        let network = Self::load(config, source.var_builder(device), freezing)?;
        Ok((network, source.finish(&config.name)?))
    }

    /// Starts from random values, which depend on the seed alone.
    ///
    /// # Errors
    /// Those of [`Self::load`].
    pub fn from_random(
        config: &ModelConfig,
        seed: u64,
        freezing: Freezing,
        device: &Device,
    ) -> Result<Self> {
        Self::load(config, RandomSource { seed }.var_builder(device), freezing)
    }

    /// The tensors of the network. To change them is to change the network.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Where the network computes.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Names of the losses, in the order of their values.
    pub fn loss_names(&self) -> &LossNames {
        &self.loss_names
    }

    /// What targets must have.
    pub fn target_needs(&self) -> TargetNeeds {
        self.parts.architecture.target_needs()
    }

    /// What the images of a batch are turned into.
    pub(super) fn dtype(&self) -> DType {
        DType::F32
    }
}
