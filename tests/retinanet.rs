//! RetinaNet against torchvision, on two narrow models with the layouts of V1 and V2: every stage of inference, detections,
//! losses, and every gradient.
#![cfg(feature = "train")]

mod common;

use candle_core::{Device, Tensor};
use candle_detection::NetworkBuilder;
use candle_detection::config::{self, ModelConfig};
use candle_detection::dense::RetinaNet;
use common::narrow::{Stages, Steps};
use common::{fixtures, largest_value};

fn compare_all_stages(name: &str) {
    let stages = Stages::of(name);
    let retinanet = stages.detector.network().parts::<RetinaNet>().unwrap();
    let predicted = retinanet.predict(&stages.features).unwrap();
    stages.compare_head("cls_logits", &predicted.class_logits);
    stages.compare_head("bbox_regression", &predicted.box_regression);
    let anchors = retinanet.anchor_generator();
    let anchors = anchors.generate(&stages.batch.geometry, &predicted.class_logits).unwrap();
    stages.compare_anchors(&anchors);
    stages.compare_detections();
}

#[test]
fn stages_of_the_v1_layout() {
    compare_all_stages("tiny_retinanet");
}

#[test]
fn stages_of_the_v2_layout() {
    compare_all_stages("tiny_retinanet_v2");
}

#[test]
fn losses_and_gradients_of_the_v1_layout() {
    Steps::of("tiny_retinanet").compare("objects", &Device::Cpu);
}

#[test]
fn losses_and_gradients_of_the_v2_layout() {
    Steps::of("tiny_retinanet_v2").compare("objects", &Device::Cpu);
}

#[test]
fn images_without_objects() {
    for name in ["tiny_retinanet", "tiny_retinanet_v2"] {
        let steps = Steps::of(name);
        steps.compare("one_empty", &Device::Cpu);
        let (_, losses, gradients) = steps.compare("all_empty", &Device::Cpu);
        assert!(losses.get("classification").unwrap() > 0.0);
        assert_eq!(losses.get("bbox_regression").unwrap(), 0.0);
        let boxes = gradients.get("head.regression_head.bbox_reg.weight").unwrap();
        assert!(boxes.is_none_or(|gradient| largest_value(&gradient) == 0.0));
    }
}

#[test]
fn a_head_on_proposals_is_refused() {
    use candle_core::DType;
    use candle_detection::RandomSource;

    let config = ModelConfig::load(&fixtures().join("tiny_retinanet.toml")).unwrap();
    let weights = RandomSource { seed: 0 }.var_builder(&Device::Cpu);
    let builder = NetworkBuilder::default().head(|_, _| unreachable!("no head is built"));
    let message = builder.build(&weights, &config).err().unwrap().to_string();
    assert!(message.contains("architecture.kind") && message.contains("rcnn"), "{message}");
    assert_eq!(weights.dtype(), DType::F32);
}

#[test]
fn faults_of_the_section_are_named() {
    type Edit = fn(&mut candle_detection::dense::RetinaNetConfig);
    let cases: [(&str, Edit); 5] = [
        ("architecture.candidates_per_level", |c| c.candidates_per_level = 0),
        ("architecture.anchors.sizes", |c| c.anchors.sizes.truncate(3)),
        ("architecture.head.conv_depth", |c| c.head.conv_depth = 0),
        ("architecture.training.positive_iou", |c| c.training.positive_iou = 0.3),
        ("architecture.training.positive_iou", |c| c.training.negative_iou = -0.1),
    ];
    for (field, edit) in cases {
        let mut model = config::get("retinanet_resnet50_fpn").unwrap();
        edit(model.architecture.as_retinanet_mut().unwrap());
        let message = model.validate("mine.toml").unwrap_err().to_string();
        assert!(message.starts_with(&format!("mine.toml: `{field}` is ")), "{field}: {message}");
    }
    let mut model = config::get("retinanet_resnet50_fpn_v2").unwrap();
    model.neck.as_fpn_mut().unwrap().channels = 40;
    let message = model.validate("mine.toml").unwrap_err().to_string();
    assert!(message.contains("architecture.head.norm") && message.contains("40"), "{message}");
}

/// A classifier without weights says of every class that it is there once in a hundred places.
#[test]
fn first_biases_are_those_of_rare_objects() {
    use candle_detection::RandomSource;

    let config = ModelConfig::load(&fixtures().join("tiny_retinanet.toml")).unwrap();
    let weights = RandomSource { seed: 0 }.var_builder(&Device::Cpu);
    let network = NetworkBuilder::default().build(&weights, &config).unwrap();
    let level = |side| Tensor::zeros((1, side, side, 12), candle_core::DType::F32, &Device::Cpu);
    let levels = [8, 4, 2, 1, 1].map(|side| level(side).unwrap()).to_vec();
    let features = candle_detection::structures::FeatureMaps { levels };
    let predicted = network.parts::<RetinaNet>().unwrap().predict(&features).unwrap();
    for logit in common::values(&predicted.class_logits[0]) {
        assert!((logit + 99f32.ln()).abs() < 1e-5, "{logit}");
    }
}
