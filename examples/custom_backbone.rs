//! A body of your own under a feature pyramid, in both flows: it detects, and learns from a step.
//!
//! Run: `cargo run --release --example custom_backbone`

use anyhow::Result;
use candle_core::Tensor;
use candle_detection::backbone::{Body, Stage};
use candle_detection::layers::{Conv2d, ConvShape, Initial};
use candle_detection::ops::Activation;
use candle_detection::structures::{BoxXyxy, Target};
use candle_detection::train::{Batch, Freezing, Network, RandomSampler};
use candle_detection::{
    DetectorBuilder, Device, ImageInput, NetworkBuilder, RandomSource, Weights, config,
};
use candle_nn::VarBuilder;

/// Convolutions of stride 2, one after another; all but the first hand out what they see.
struct Strided {
    convs: Vec<Conv2d>,
    stages: Vec<Stage>,
}

impl Strided {
    fn load(weights: &VarBuilder) -> candle_detection::Result<Self> {
        let (mut convs, mut stages) = (Vec::new(), Vec::new());
        let mut in_channels = 3;
        for (index, out_channels) in [16, 24, 32, 48, 64].into_iter().enumerate() {
            let channels = (in_channels, out_channels);
            let shape = ConvShape::new(channels, 3, Initial::BeforeRelu).with_stride(2);
            convs.push(Conv2d::load(&weights.pp("convs").pp(index), shape, Activation::Relu)?);
            stages.push(Stage { channels: out_channels, stride: 2 << index });
            in_channels = out_channels;
        }
        stages.remove(0);
        Ok(Self { convs, stages })
    }
}

impl Body for Strided {
    fn stages(&self) -> &[Stage] {
        &self.stages
    }

    fn forward(&self, pixels: &Tensor) -> candle_detection::Result<Vec<Tensor>> {
        let mut outputs = vec![pixels.clone()];
        for conv in &self.convs {
            outputs.push(conv.forward(&outputs[outputs.len() - 1])?);
        }
        Ok(outputs.split_off(2))
    }
}

fn main() -> Result<()> {
    let model = config::get("maskrcnn_shapes")?;
    let network =
        NetworkBuilder::default().body(|weights, _| Ok(Box::new(Strided::load(&weights)?)));
    let image = ImageInput::open("examples/scene.jpg".as_ref())?;

    let detector = DetectorBuilder::new(model.clone())
        .network(network.clone())
        .weights(Weights::Random { seed: 1 })
        .score_threshold(0.0)
        .build()?;
    println!("{} detections of random weights", detector.detect(&image)?.instances.len());

    let mut boxes_only = model;
    if let Some(rcnn) = boxes_only.architecture.as_rcnn_mut() {
        rcnn.mask_head = None;
    }
    let source = RandomSource { seed: 1 }.var_builder(&Device::Cpu);
    let freezing = Freezing::backbone(&boxes_only, 5);
    let network = Network::load_with(&network, &boxes_only, source, freezing)?;
    let target = Target {
        image_id: 1,
        boxes: vec![BoxXyxy { x1: 40.0, y1: 30.0, x2: 160.0, y2: 140.0 }],
        labels: vec![3],
        masks: Vec::new(),
        keypoints: Vec::new(),
    };
    let batch = Batch { images: vec![image], targets: vec![target], min_size: None };
    let evaluated = network.evaluate(&batch, &mut RandomSampler::new(1, 0))?;
    println!("{}", evaluated.losses()?);
    let gradients = evaluated.gradients(&network.parameters().trainable())?;
    println!("gradients of {} parameters, norm {:.3}", gradients.names().len(), gradients.norm()?);
    Ok(())
}
