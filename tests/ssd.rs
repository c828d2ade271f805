//! SSD and SSDLite against torchvision, on two narrow models: every stage of inference, detections, losses, and every
//! gradient.
#![cfg(feature = "train")]

mod common;

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use candle_detection::backbone::{Body, Vgg16, Vgg16Config};
use candle_detection::config::{self, ModelConfig};
use candle_detection::dense::{Ssd, SsdConfig, SsdHeadConfig};
use candle_detection::structures::ImageSize;
use candle_detection::train::{Freezing, Network};
use candle_detection::{DetectorBuilder, ImageInput, NetworkBuilder, RandomSource, Weights};
use common::narrow::{Stages, Steps, assert_near};
use common::{fixtures, largest_value, values};

fn compare_all_stages(name: &str) {
    let stages = Stages::of(name);
    let sampled = stages.fixture.features("transformed.sampled");
    let every_8th = |axis: usize, tensor: &Tensor| {
        let indices: Vec<u32> = (0..tensor.dim(axis).unwrap() as u32).step_by(8).collect();
        let n = indices.len();
        let indices = Tensor::from_vec(indices, n, &Device::Cpu).unwrap();
        tensor.index_select(&indices, axis).unwrap()
    };
    let found = every_8th(2, &every_8th(1, &stages.batch.pixels));
    assert_near(&found, &sampled, "transform");
    let ssd = stages.detector.network().parts::<Ssd>().unwrap();
    let predicted = ssd.predict(&stages.features).unwrap();
    stages.compare_head("cls_logits", &predicted.cls_logits);
    stages.compare_head("bbox_regression", &predicted.bbox_regression);
    stages.compare_anchors(&ssd.default_boxes(&stages.features, &stages.batch.geometry).unwrap());
    stages.compare_detections();
}

#[test]
fn stages_of_ssd() {
    compare_all_stages("tiny_ssd");
}

#[test]
fn stages_of_ssdlite() {
    compare_all_stages("tiny_ssdlite");
}

#[test]
fn losses_and_gradients_of_ssd() {
    Steps::of("tiny_ssd").compare("objects", &Device::Cpu);
}

#[test]
fn losses_and_gradients_of_ssdlite() {
    Steps::of("tiny_ssdlite").compare("objects", &Device::Cpu);
}

#[test]
fn images_without_objects() {
    for name in ["tiny_ssd", "tiny_ssdlite"] {
        let steps = Steps::of(name);
        steps.compare("one_empty", &Device::Cpu);
        // Without positives there are no negatives to learn from, either.
        let (_, losses, gradients) = steps.compare("all_empty", &Device::Cpu);
        assert!(losses.named().all(|(_, loss)| loss == 0.0), "{losses}");
        for name in gradients.names() {
            let gradient = gradients.get(name).unwrap();
            assert!(gradient.is_none_or(|gradient| largest_value(&gradient) == 0.0), "{name}");
        }
    }
}

#[test]
fn faults_of_the_section_are_named() {
    type Edit = fn(&mut SsdConfig);
    let cases: [(&str, Edit); 9] = [
        ("architecture.candidates_per_class", |c| c.candidates_per_class = 0),
        ("architecture.box_weights", |c| c.box_weights[2] = 0.0),
        ("architecture.default_boxes.aspect_ratios", |c| {
            c.default_boxes.aspect_ratios.truncate(5);
        }),
        ("architecture.default_boxes.aspect_ratios", |c| {
            c.default_boxes.aspect_ratios[1][0] = -2.0;
        }),
        ("architecture.default_boxes.scales", |c| c.default_boxes.scales.truncate(6)),
        ("architecture.default_boxes.steps", |c| c.default_boxes.steps = Some(vec![8.0; 5])),
        ("architecture.head.norm_momentum", |c| {
            if let SsdHeadConfig::Separable(head) = &mut c.head {
                head.norm_momentum = 2.0;
            }
        }),
        ("architecture.training.positive_iou", |c| c.training.positive_iou = 0.0),
        ("architecture.training.negatives_per_positive", |c| {
            c.training.negatives_per_positive = 0;
        }),
    ];
    for (field, edit) in cases {
        let mut model = config::get("ssdlite320_mobilenet_v3_large").unwrap();
        edit(model.architecture.as_ssd_mut().unwrap());
        let message = model.validate("mine.toml").unwrap_err().to_string();
        assert!(message.starts_with(&format!("mine.toml: `{field}` is ")), "{field}: {message}");
    }
    let mut model = config::get("ssd300_vgg16").unwrap();
    model.body = config::get("maskrcnn_resnet50_fpn").unwrap().body;
    let message = model.validate("mine.toml").unwrap_err().to_string();
    assert!(message.contains("`neck.kind`") && message.contains("vgg16"), "{message}");
}

/// The coarsest level has no cell left of images with a side of 267 pixels.
#[test]
fn images_that_are_too_small_are_refused() {
    let detect = |side: usize| {
        let config = ModelConfig::load(&fixtures().join("tiny_ssd.toml")).unwrap();
        let detector = DetectorBuilder::new(config)
            .weights(Weights::Random { seed: 3 })
            .configure(|config| config.image.fixed_size = Some([300, side]))
            .build()
            .unwrap();
        let image = ImageInput::from_rgb8(20, 10, vec![90; 600]).unwrap();
        detector.detect(&image).map(|_| ()).map_err(|error| error.to_string())
    };
    detect(268).unwrap();
    for side in [267, 100, 9] {
        let message = detect(side).unwrap_err();
        assert!(message.contains("`image.fixed_size`") && message.contains("268"), "{message}");
    }
}

/// Every image has the model's size, whatever its own, and detections are in pixels of its own.
#[test]
fn proportions_are_not_kept() {
    let stages = Stages::of("tiny_ssdlite");
    let padded = stages.batch.geometry.padded;
    assert_eq!(padded, ImageSize { height: 160, width: 160 });
    for image in &stages.batch.geometry.images {
        assert_eq!(image.resized, padded);
    }
    let found = stages.detector.detect_batch(&stages.fixture.images()).unwrap();
    for detections in found {
        let ImageSize { height, width } = detections.image_size;
        for instance in &detections.instances {
            assert!(instance.bbox.x2 <= width as f32 && instance.bbox.y2 <= height as f32);
        }
    }
}

/// What torchvision's `trainable_backbone_layers` freezes.
#[test]
fn parts_that_freeze_are_torchvisions() {
    let prefixes = |name: &str| config::get(name).unwrap().backbone_parts();
    let vgg = prefixes("ssd300_vgg16");
    assert_eq!(vgg.len(), 5);
    assert_eq!(vgg[0], [1, 3, 5].map(|place| format!("backbone.extra.0.{place}.")));
    assert_eq!(vgg[1], [17, 19, 21].map(|place| format!("backbone.features.{place}.")));
    assert_eq!(vgg[4], [0, 2].map(|place| format!("backbone.features.{place}.")));
    let mobile = prefixes("ssdlite320_mobilenet_v3_large");
    assert_eq!(mobile.len(), 6);
    assert_eq!(mobile[0], ["backbone.features.1.3."]);
    let c4 = ["0.13.", "1.0.", "1.1.", "1.2."].map(|place| format!("backbone.features.{place}"));
    assert_eq!(mobile[1], c4);
    let config = config::get("ssd300_vgg16").unwrap();
    let frozen = format!("{:?}", Freezing::backbone(&config, 4));
    assert!(frozen.contains("backbone.features.2.") && !frozen.contains("features.5."), "{frozen}");
}

/// Deviations of first weights: of Xavier's bounds for SSD's levels and heads, 0.03 everywhere in SSDLite.
#[test]
fn first_values_are_torchvisions() {
    let first = |name: &str, prefixes: &[&str]| -> BTreeMap<String, Vec<f32>> {
        let config = ModelConfig::load(&fixtures().join(format!("{name}.toml"))).unwrap();
        let freezing = Freezing::backbone(&config, 6);
        let all = Network::from_random(&config, 5, freezing, &Device::Cpu).unwrap();
        let all = all.parameters().all();
        let wanted = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
        let chosen = all.into_iter().filter(|parameter| wanted(&parameter.name));
        chosen.map(|p| (p.name.clone(), values(p.var.as_tensor()))).collect()
    };
    let ssd = first("tiny_ssd", &["backbone.extra.0.7.1", "backbone.scale_weight", "head."]);
    assert!(ssd["backbone.scale_weight"].iter().all(|value| *value == 20.0));
    assert!(ssd["backbone.extra.0.7.1.bias"].iter().all(|value| *value == 0.0));
    let weights = &ssd["backbone.extra.0.7.1.weight"];
    let bound = (6.0f32 / (9.0 * (16.0 + 32.0))).sqrt();
    let largest = weights.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    assert!(largest <= bound && largest > 0.99 * bound, "{largest} of {bound}");
    let lite = first("tiny_ssdlite", &["backbone.features.0.0.0.weight", "backbone.extra.0.0.0"]);
    for (name, weights) in lite {
        let square = weights.iter().map(|value| value * value).sum::<f32>();
        let deviation = (square / weights.len() as f32).sqrt();
        assert!((deviation - 0.03).abs() < 0.005, "{name}: {deviation}");
    }
}

#[test]
fn heads_and_bodies_load_alone() {
    let weights = RandomSource { seed: 0 }.var_builder(&Device::Cpu);
    let body = Vgg16::load(&weights, &Vgg16Config { width: 2 }).unwrap();
    let pixels = Tensor::zeros((1, 45, 70, 3), candle_core::DType::F32, &Device::Cpu).unwrap();
    let stages = body.forward(&pixels).unwrap();
    assert_eq!(stages[0].dims(), [1, 6, 9, 16]);
    let config = config::get("ssd300_vgg16").unwrap();
    let builder = NetworkBuilder::default().head(|_, _| unreachable!("no head is built"));
    let message = builder.build(&weights, &config).err().unwrap().to_string();
    assert!(message.contains("architecture.kind"), "{message}");
}
