//! The network as training uses it.

use candle_core::{DType, Device};
use candle_nn::VarBuilder;

use super::parameters::{Freezing, Parameters};
use crate::backbone::{self, Backbone};
use crate::checkpoint::{Checkpoint, CheckpointSource, LoadReport, Loading, RandomSource};
use crate::config::{ModelConfig, TrainingConfig};
use crate::error::Result;
use crate::roi_heads::{MaskHead, RoiHeads};
use crate::rpn::RegionProposalNetwork;
use crate::structures::TargetNeeds;

/// The rooms of a model with variables for parameters.
pub struct Network {
    pub(super) config: ModelConfig,
    pub(super) backbone: Box<dyn Backbone>,
    pub(super) rpn: RegionProposalNetwork,
    pub(super) roi_heads: RoiHeads,
    pub(super) mask_head: Option<MaskHead>,
    pub(super) device: Device,
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
        config.validate(&config.name)?;
        let device = source.device().clone();
        let parameters = Parameters::new(freezing);
        let weights = parameters.var_builder(source);
        let heads = weights.pp("roi_heads");
        let in_training = with_training_limits(config);
        let channels = config.backbone.fpn_channels;
        let mask_head = config.mask_head.as_ref();
        let mask_head =
            mask_head.map(|mask| MaskHead::load(&heads, channels, config.num_classes, mask));
        Ok(Self {
            backbone: backbone::build(&weights.pp("backbone"), &config.backbone)?,
            rpn: RegionProposalNetwork::load(&weights.pp("rpn"), &in_training)?,
            roi_heads: RoiHeads::load(&heads, config)?,
            mask_head: mask_head.transpose()?,
            config: in_training,
            device,
            parameters,
        })
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

    /// The training numbers of the model.
    pub(super) fn training(&self) -> &TrainingConfig {
        &self.config.training
    }

    /// What the images of a batch are turned into.
    pub(super) fn dtype(&self) -> DType {
        DType::F32
    }

    /// Losses of a batch.
    pub(super) fn losses(&self) -> usize {
        if self.mask_head.is_some() { 5 } else { 4 }
    }

    /// What targets must have.
    pub fn target_needs(&self) -> TargetNeeds {
        if self.mask_head.is_some() { TargetNeeds::MASKS } else { TargetNeeds::BOXES }
    }
}

/// The model whose region proposal network keeps as many proposals as training wants.
fn with_training_limits(config: &ModelConfig) -> ModelConfig {
    let mut config = config.clone();
    config.rpn.pre_nms_top_n = config.training.rpn.pre_nms_top_n;
    config.rpn.post_nms_top_n = config.training.rpn.post_nms_top_n;
    config
}
