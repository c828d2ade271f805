//! Model files and weights that don't fit each other: each error names what is wrong, what was found, and what would be
//! right.

mod common;

use std::error::Error as _;

use candle_core::Device;
use candle_detection::checkpoint::{Checkpoint, CheckpointSource, Loading};
use candle_detection::config::ModelConfig;
use candle_detection::{DetectionNetwork, Error};
use common::fixtures;

fn model_file(name: &str) -> String {
    std::fs::read_to_string(fixtures().join(format!("{name}.toml"))).unwrap()
}

/// The text of an error and of all that it stems from.
fn refused(text: &str) -> String {
    let error = ModelConfig::parse(text, "mine.toml").unwrap_err();
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        message = format!("{message}: {error}");
        cause = error.source();
    }
    assert!(message.starts_with("mine.toml"), "{message}");
    message
}

#[track_caller]
fn names(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

/// A model's text with one thing changed.
fn changed(name: &str, from: &str, to: &str) -> String {
    let text = model_file(name);
    let changed = text.replacen(from, to, 1);
    assert_ne!(changed, text, "{name} has no {from}");
    changed
}

#[test]
fn sections_of_other_architectures_are_refused() {
    let masks = "\n[architecture.mask_head]\nroi_output = 14\n";
    names(
        &refused(&(model_file("tiny_retinanet") + masks)),
        &["architecture", "mask_head", "anchors", "head"],
    );
    let anchors = "\n[architecture.anchors]\nsizes = [[8.0]]\naspect_ratios = [1.0]\n";
    names(
        &refused(&(model_file("tiny_ssd") + anchors)),
        &["architecture", "anchors", "default_boxes"],
    );
    let fcos = "\n[architecture.default_boxes]\nscales = [0.5]\n";
    names(&refused(&(model_file("tiny_r18") + fcos)), &["architecture", "default_boxes", "rpn"]);
    let unknown = "\n[heads]\ncount = 2\n";
    names(&refused(&(model_file("tiny_r18") + unknown)), &["heads", "architecture"]);
}

#[test]
fn missing_sections_are_named() {
    let text = model_file("tiny_ssd").replace("[architecture.head]\nkind = \"conv\"", "");
    names(&refused(&text), &["architecture", "missing", "head"]);
    let text = model_file("tiny_r18").replace("[neck]\nkind ", "[nek]\nkind ");
    names(&refused(&text), &["nek", "neck"]);
}

#[test]
fn unknown_kinds_are_refused_with_the_known_ones() {
    let cases = [
        ("tiny_r18", "kind = \"rcnn\"", "kind = \"yolo\"", ["kind", "yolo", "retinanet"]),
        ("tiny_r18", "\"resnet\"", "\"restnet\"", ["kind", "restnet", "`resnet`"]),
        ("tiny_r18", "\"fpn\"", "\"pan\"", ["kind", "pan", "`fpn`"]),
        ("tiny_ssd", "kind = \"conv\"", "kind = \"linear\"", ["architecture", "linear", "`conv`"]),
        ("tiny_r18", "\"max_pool\"", "\"min_pool\"", ["neck", "min_pool", "`max_pool`"]),
    ];
    for (name, from, to, parts) in cases {
        names(&refused(&changed(name, from, to)), &parts);
    }
}

#[test]
fn anchors_for_other_levels_are_refused() {
    let sizes = "[[20.0], [40.0], [80.0], [160.0], [320.0]]";
    let text = changed("tiny_retinanet_v2", sizes, "[[20.0], [40.0], [80.0]]");
    names(&refused(&text), &["`architecture.anchors.sizes` is 3 lists", "5, one per"]);
    let text = changed("tiny_retinanet_v2", "first_stage = 1", "first_stage = 0");
    names(&refused(&text), &["`architecture.anchors.sizes` is 5 lists", "6, one per"]);
    let text = changed("tiny_ssd", "[2.0], [2.0]]", "[2.0]]");
    names(
        &refused(&text),
        &["`architecture.default_boxes.aspect_ratios` is 5 entries", "6, one list per level"],
    );
    let text = changed("tiny_ssd", "90.0, 268.0]", "90.0]");
    names(&refused(&text), &["`architecture.default_boxes.steps`", "5", "6, one per"]);
}

fn diagnosis(model: &str, weights: &str) -> String {
    let config = ModelConfig::parse(&model_file(model), model).unwrap();
    let file = fixtures().join(format!("{weights}.safetensors"));
    let source = CheckpointSource::new(Checkpoint::open(&file).unwrap(), Loading::Strict);
    DetectionNetwork::load(&source.var_builder(&Device::Cpu), &config).unwrap();
    match source.finish(model).unwrap_err() {
        Error::CheckpointMismatch { mismatches, .. } => mismatches.diagnosis.unwrap_or_default(),
        other => panic!("{other}"),
    }
}

#[test]
fn weights_of_another_architecture_are_named() {
    let kinds = [
        ("tiny_r18", "two-stage detector"),
        ("tiny_retinanet", "a RetinaNet"),
        ("tiny_fcos", "an FCOS"),
        ("tiny_ssd", "an SSD"),
        ("tiny_ssdlite", "an SSDLite"),
    ];
    for (weights, kind) in kinds {
        for (model, other) in kinds {
            if model == weights {
                continue;
            }
            let message = diagnosis(model, weights);
            let (found, expected) = message.split_once(", the model ").unwrap();
            assert!(found.starts_with("this file is") && found.contains(kind), "{message}");
            assert!(expected.contains(other), "{message}");
        }
    }
}

#[test]
fn weights_of_another_variant_are_named() {
    let version = diagnosis("tiny_retinanet", "tiny_retinanet_v2");
    names(&version, &["v2 model (group norm in the heads)", "made for 3 anchors", "model has 9"]);
    names(&diagnosis("tiny_retinanet_v2", "tiny_retinanet"), &["v1 model"]);
    names(&diagnosis("tiny_r18", "tiny_keypointrcnn"), &["no mask head", "a Keypoint R-CNN"]);
    names(&diagnosis("tiny_r18", "tiny_keypointrcnn"), &["for 2 classes", "model has 5"]);
    let body = diagnosis("tiny_mobilenet", "tiny_r18");
    names(&body, &["has a mask head", "body of the file is a ResNet of [2, 2, 2, 2]", "MobileNet"]);
}

#[test]
fn weights_of_another_number_of_classes_are_counted() {
    for name in ["tiny_retinanet", "tiny_fcos", "tiny_ssd", "tiny_ssdlite"] {
        let mut config = ModelConfig::parse(&model_file(name), name).unwrap();
        let trained = config.num_classes;
        config.num_classes = 3;
        let file = fixtures().join(format!("{name}.safetensors"));
        let source = CheckpointSource::new(Checkpoint::open(&file).unwrap(), Loading::Strict);
        DetectionNetwork::load(&source.var_builder(&Device::Cpu), &config).unwrap();
        let message = source.finish(name).unwrap_err().to_string();
        names(&message, &[&format!("made for {trained} classes"), "the model has 3"]);
    }
}
