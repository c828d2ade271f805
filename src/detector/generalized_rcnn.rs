//! The network: the paper in one function.

use candle_nn::VarBuilder;

use crate::backbone::{self, Backbone};
use crate::config::{DetectionsConfig, ModelConfig};
use crate::error::Result;
use crate::roi_heads::{InstanceHead, MaskHead, RoiHeads};
use crate::rpn::RegionProposalNetwork;
use crate::structures::{DetectionBatch, ImageBatch};
use crate::transform;

/// Backbone, region proposal network, ROI heads, and heads on the detections.
pub struct GeneralizedRcnn {
    /// Batch → feature pyramid.
    pub backbone: Box<dyn Backbone>,
    /// Feature pyramid → proposals.
    pub rpn: RegionProposalNetwork,
    /// Proposals → instances.
    pub roi_heads: RoiHeads,
    /// Instances → masks, and what users add.
    pub instance_heads: Vec<Box<dyn InstanceHead>>,
}

impl GeneralizedRcnn {
    /// Loads the network that a model file describes, with torchvision's parameter names.
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn load(weights: &VarBuilder, config: &ModelConfig) -> Result<Self> {
        let backbone = backbone::build(&weights.pp("backbone"), &config.backbone)?;
        Self::load_on(weights, config, backbone)
    }

    /// Like [`Self::load`], on a backbone of your own, whose levels have `config.backbone.fpn_channels` channels.
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn load_on(
        weights: &VarBuilder,
        config: &ModelConfig,
        backbone: Box<dyn Backbone>,
    ) -> Result<Self> {
        let heads = weights.pp("roi_heads");
        let channels = config.backbone.fpn_channels;
        let mut instance_heads: Vec<Box<dyn InstanceHead>> = Vec::new();
        if let Some(mask) = &config.mask_head {
            let head = MaskHead::load(&heads, channels, config.num_classes, mask)?;
            instance_heads.push(Box::new(head));
        }
        Ok(Self {
            backbone,
            rpn: RegionProposalNetwork::load(&weights.pp("rpn"), config)?,
            roi_heads: RoiHeads::load(&heads, config)?,
            instance_heads,
        })
    }

    /// Detects the objects of a batch; everything stays on its device.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    pub fn forward(&self, batch: &ImageBatch, config: &DetectionsConfig) -> Result<DetectionBatch> {
        let geometry = &batch.geometry;
        let features = self.backbone.forward(&batch.pixels)?;
        let predicted = self.rpn.predict(&features)?;
        let proposals = self.rpn.propose(&predicted, geometry)?.trim_to_counts()?;
        let detected = self.roi_heads.detect(&features, &proposals, geometry, config)?;
        let instances = detected.trim_to_counts()?;
        let extras = self
            .instance_heads
            .iter()
            .map(|head| {
                Ok((head.name().to_owned(), head.forward(&features, &instances, geometry)?))
            })
            .collect::<Result<_>>()?;
        transform::restore(instances, extras, geometry)
    }
}
