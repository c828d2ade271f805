//! An architecture of your own, in both flows: a region proposal network alone, which finds things whatever they are.
//!
//! Run: `cargo run --release --example custom_architecture`

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use candle_core::{DType, Tensor};
use candle_detection::architecture::{Architecture, Detected};
use candle_detection::postprocess::DetectionsConfig;
use candle_detection::rcnn::RpnTrainingConfig;
use candle_detection::rpn::RegionProposalNetwork;
use candle_detection::structures::{BatchGeometry, BoxXyxy, FeatureMaps, Instances, Target};
use candle_detection::targets::{ObjectBatch, Sampler};
use candle_detection::train::{Batch, Freezing, Network, RandomSampler};
use candle_detection::{
    DetectorBuilder, Device, ImageInput, NetworkBuilder, RandomSource, Weights, config,
};

struct ProposalsOnly {
    rpn: RegionProposalNetwork,
}

impl Architecture for ProposalsOnly {
    fn detect(
        &self,
        features: &FeatureMaps,
        geometry: &BatchGeometry,
        _: &DetectionsConfig,
    ) -> candle_detection::Result<Detected> {
        let predicted = self.rpn.predict(features)?;
        let proposals = self.rpn.propose(&predicted, geometry, self.rpn.limits())?;
        // Class 1 for what is there, 0 in empty slots.
        let labels = proposals.scores.gt(0.0)?.to_dtype(DType::U32)?;
        let (boxes, scores, counts) = (proposals.boxes, proposals.scores, proposals.counts);
        let instances = Instances { boxes, scores, labels, counts };
        Ok(Detected { instances, extras: BTreeMap::new() })
    }

    fn loss_names(&self) -> Vec<String> {
        RegionProposalNetwork::LOSSES.map(str::to_owned).to_vec()
    }

    fn losses(
        &self,
        features: &FeatureMaps,
        geometry: &BatchGeometry,
        objects: &ObjectBatch,
        sampler: &mut dyn Sampler,
    ) -> candle_detection::Result<Vec<Tensor>> {
        let predicted = self.rpn.predict(features)?;
        let training = RpnTrainingConfig::default();
        Ok(self.rpn.losses(&predicted, objects, geometry, &training, sampler)?.to_vec())
    }
}

fn main() -> Result<()> {
    let model = config::get("maskrcnn_shapes")?;
    let rcnn = model.architecture.as_rcnn().context("a two-stage detector")?.clone();
    let network = NetworkBuilder::default().architecture(move |foundation, _| {
        let (weights, channels) = (foundation.weights.pp("rpn"), foundation.levels[0].channels);
        let rpn = RegionProposalNetwork::load(&weights, channels, &rcnn.anchors, &rcnn.rpn)?;
        Ok(Box::new(ProposalsOnly { rpn }))
    });
    let image = ImageInput::open("examples/scene.jpg".as_ref())?;

    let detector = DetectorBuilder::new(model.clone())
        .network(network.clone())
        .weights(Weights::Random { seed: 1 })
        .build()?;
    println!("{} proposals of random weights", detector.detect(&image)?.instances.len());

    let source = RandomSource { seed: 1 }.var_builder(&Device::Cpu);
    let network = Network::load_with(&network, &model, source, Freezing::backbone(&model, 5))?;
    let boxes = vec![BoxXyxy { x1: 40.0, y1: 30.0, x2: 160.0, y2: 140.0 }];
    let target =
        Target { image_id: 1, boxes, labels: vec![1], masks: Vec::new(), keypoints: Vec::new() };
    let batch = Batch { images: vec![image], targets: vec![target], min_size: None };
    let evaluated = network.evaluate(&batch, &mut RandomSampler::new(1, 0))?;
    println!("{}", evaluated.losses()?);
    let gradients = evaluated.gradients(&network.parameters().trainable())?;
    println!("gradients of {} parameters, norm {:.3}", gradients.names().len(), gradients.norm()?);
    Ok(())
}
