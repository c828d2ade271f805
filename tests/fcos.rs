//! FCOS against torchvision, on a narrow model: every stage of inference, detections, losses, and every gradient.
#![cfg(feature = "train")]

mod common;

use candle_core::{DType, Device, Tensor};
use candle_detection::config::{self, ModelConfig};
use candle_detection::dense::{Fcos, FcosConfig};
use candle_detection::structures::FeatureMaps;
use candle_detection::{NetworkBuilder, RandomSource};
use common::narrow::{Stages, Steps};
use common::{fixtures, largest_value, values};

#[test]
fn stages_are_the_references() {
    let stages = Stages::of("tiny_fcos");
    let fcos = stages.detector.network().parts::<Fcos>().unwrap();
    let predicted = fcos.predict(&stages.features).unwrap();
    stages.compare_head("cls_logits", &predicted.class_logits);
    stages.compare_head("bbox_regression", &predicted.box_regression);
    stages.compare_head("bbox_ctrness", &predicted.centerness);
    let squares = fcos.anchor_generator();
    let squares = squares.generate(&stages.batch.geometry, &predicted.class_logits).unwrap();
    stages.compare_anchors(&squares);
    stages.compare_detections();
}

#[test]
fn losses_and_gradients_are_the_references() {
    Steps::of("tiny_fcos").compare("objects", &Device::Cpu);
}

#[test]
fn images_without_objects() {
    let steps = Steps::of("tiny_fcos");
    steps.compare("one_empty", &Device::Cpu);
    let (_, losses, gradients) = steps.compare("all_empty", &Device::Cpu);
    assert!(losses.get("classification").unwrap() > 0.0);
    for (loss, predictor) in [("bbox_regression", "bbox_reg"), ("bbox_ctrness", "bbox_ctrness")] {
        assert_eq!(losses.get(loss).unwrap(), 0.0);
        let name = format!("head.regression_head.{predictor}.weight");
        let gradient = gradients.get(&name).unwrap();
        assert!(gradient.is_none_or(|gradient| largest_value(&gradient) == 0.0), "{name}");
    }
}

#[test]
fn faults_of_the_section_are_named() {
    type Edit = fn(&mut FcosConfig);
    let cases: [(&str, Edit); 8] = [
        ("architecture.candidates_per_level", |c| c.candidates_per_level = 0),
        ("architecture.anchors.sizes", |c| c.anchors.sizes.truncate(3)),
        ("architecture.anchors.sizes", |c| c.anchors.sizes.iter_mut().for_each(|s| s.push(9.0))),
        ("architecture.anchors.aspect_ratios", |c| c.anchors.aspect_ratios.push(2.0)),
        ("architecture.head.conv_depth", |c| c.head.conv_depth = 0),
        ("architecture.training.center_radius", |c| c.training.center_radius = 0.0),
        ("architecture.training.side_range", |c| c.training.side_range = [8.0, 4.0]),
        ("architecture.training.side_range", |c| c.training.side_range = [f32::NAN, 4.0]),
    ];
    for (field, edit) in cases {
        let mut model = config::get("fcos_resnet50_fpn").unwrap();
        edit(model.architecture.as_fcos_mut().unwrap());
        let message = model.validate("mine.toml").unwrap_err().to_string();
        assert!(message.starts_with(&format!("mine.toml: `{field}` is ")), "{field}: {message}");
    }
    let mut model = config::get("fcos_resnet50_fpn").unwrap();
    model.neck.as_fpn_mut().unwrap().channels = 40;
    let message = model.validate("mine.toml").unwrap_err().to_string();
    assert!(message.contains("architecture.head") && message.contains("40"), "{message}");
}

/// Without weights: a class is there once in a hundred places, boxes are empty, and centerness is even.
#[test]
fn first_predictions_are_those_of_the_reference() {
    let config = ModelConfig::load(&fixtures().join("tiny_fcos.toml")).unwrap();
    let weights = RandomSource { seed: 0 }.var_builder(&Device::Cpu);
    let network = NetworkBuilder::default().build(&weights, &config).unwrap();
    let level = |side| Tensor::zeros((1, side, side, 32), DType::F32, &Device::Cpu).unwrap();
    let features = FeatureMaps { levels: [8, 4, 2, 1, 1].map(level).to_vec() };
    let predicted = network.parts::<Fcos>().unwrap().predict(&features).unwrap();
    for logit in values(&predicted.class_logits[0]) {
        assert!((logit + 99f32.ln()).abs() < 1e-5, "{logit}");
    }
    assert_eq!(largest_value(&predicted.box_regression[0]), 0.0);
    assert_eq!(largest_value(&predicted.centerness[0]), 0.0);
}
