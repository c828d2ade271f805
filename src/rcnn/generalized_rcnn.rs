//! The network: the paper in one function, and its training in another.

use std::sync::Arc;

use candle_core::Tensor;
use candle_nn::VarBuilder;

use super::config::RcnnConfig;
use super::roi_heads::{Candidates, InstanceHead, KeypointHead, MaskHead, RoiHeads};
use super::rpn::RegionProposalNetwork;
use super::training::RcnnTrainingConfig;
use crate::architecture::{Architecture, Detected, Foundation};
use crate::error::Result;
use crate::postprocess::DetectionsConfig;
use crate::section::Checks;
use crate::structures::{BatchGeometry, FeatureLevel, FeatureMaps, TargetNeeds};
use crate::targets::{ObjectBatch, Sampler};

/// Builds a head on the detections, from the weights under `roi_heads.` and the levels of the backbone.
pub type HeadConstructor =
    Arc<dyn Fn(VarBuilder<'_>, &[FeatureLevel]) -> Result<Box<dyn InstanceHead>> + Send + Sync>;

/// Region proposal network, ROI heads, and heads on the detections.
pub struct GeneralizedRcnn {
    /// Feature maps → proposals.
    pub rpn: RegionProposalNetwork,
    /// Proposals → instances.
    pub roi_heads: RoiHeads,
    /// Instances → masks, keypoints, and what users add.
    pub instance_heads: Vec<Box<dyn InstanceHead>>,
    training: RcnnTrainingConfig,
}

impl GeneralizedRcnn {
    /// Loads the network from `rpn.` and `roi_heads.`, with torchvision's parameter names, and `heads` beside its own.
    ///
    /// # Errors
    /// Those of [`RcnnConfig::validate`], of the weights' source, and of candle.
    pub fn load(
        foundation: &Foundation<'_>,
        config: &RcnnConfig,
        heads: &[HeadConstructor],
    ) -> Result<Self> {
        let Foundation { weights, levels, num_classes } = foundation;
        config.validate(levels, &Checks::new("the model").section("architecture"))?;
        let channels = levels.first().map_or(0, |level| level.channels);
        let of_heads = weights.pp("roi_heads");
        let mut instance_heads: Vec<Box<dyn InstanceHead>> = Vec::new();
        if let Some(mask) = &config.mask_head {
            instance_heads.push(Box::new(MaskHead::load(&of_heads, levels, *num_classes, mask)?));
        }
        if let Some(keypoints) = &config.keypoint_head {
            instance_heads.push(Box::new(KeypointHead::load(&of_heads, levels, keypoints)?));
        }
        for build in heads {
            instance_heads.push(build(of_heads.clone(), levels)?);
        }
        let rpn = weights.pp("rpn");
        Ok(Self {
            rpn: RegionProposalNetwork::load(&rpn, channels, &config.anchors, &config.rpn)?,
            roi_heads: RoiHeads::load(&of_heads, levels, *num_classes, &config.box_head)?,
            instance_heads,
            training: config.training.clone(),
        })
    }
}

impl Architecture for GeneralizedRcnn {
    fn detect(
        &self,
        features: &FeatureMaps,
        geometry: &BatchGeometry,
        config: &DetectionsConfig,
    ) -> Result<Detected> {
        let predicted = self.rpn.predict(features)?;
        let proposals = self.rpn.propose(&predicted, geometry, self.rpn.limits())?;
        let proposals = proposals.trim_to_counts()?;
        let detected = self.roi_heads.detect(features, &proposals, geometry, config)?;
        let instances = detected.trim_to_counts()?;
        let extras = self
            .instance_heads
            .iter()
            .map(|head| Ok((head.name().to_owned(), head.forward(features, &instances, geometry)?)))
            .collect::<Result<_>>()?;
        Ok(Detected { instances, extras })
    }

    fn loss_names(&self) -> Vec<String> {
        let heads = self.instance_heads.iter().filter_map(|head| head.loss_name());
        let all = RegionProposalNetwork::LOSSES.into_iter().chain(RoiHeads::LOSSES).chain(heads);
        all.map(str::to_owned).collect()
    }

    fn losses(
        &self,
        features: &FeatureMaps,
        geometry: &BatchGeometry,
        objects: &ObjectBatch,
        sampler: &mut dyn Sampler,
    ) -> Result<Vec<Tensor>> {
        let RcnnTrainingConfig { rpn, roi } = &self.training;
        let predicted = self.rpn.predict(features)?;
        let proposals = self.rpn.propose(&predicted.detached(), geometry, rpn.limits())?;
        let mut losses = self.rpn.losses(&predicted, objects, geometry, rpn, sampler)?.to_vec();
        let candidates = Candidates::new(&proposals, objects)?;
        let sampled = self.roi_heads.sample(&candidates, objects, roi, sampler)?;
        losses.extend(self.roi_heads.losses(features, &sampled, geometry)?);
        for head in self.instance_heads.iter().filter(|head| head.loss_name().is_some()) {
            losses.push(head.loss(features, &sampled, objects, geometry)?);
        }
        Ok(losses)
    }

    fn target_needs(&self) -> TargetNeeds {
        let needs = self.instance_heads.iter().map(|head| head.target_needs());
        needs.fold(TargetNeeds::BOXES, TargetNeeds::and)
    }
}
