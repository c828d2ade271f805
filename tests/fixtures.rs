//! The fixtures agree with each other and with the model files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use candle_detection::config::{self, ModelConfig};
use candle_detection::roi_heads::BoxHeadKind;

fn fixture(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(file)
}

fn tensors(file: &str) -> std::collections::HashMap<String, Tensor> {
    candle_core::safetensors::load(fixture(file), &Device::Cpu).unwrap()
}

#[test]
fn tiny_models_match_their_weights() {
    for name in ["tiny_r18", "tiny_r50_v2"] {
        let mut config = ModelConfig::load(&fixture(&format!("{name}.toml"))).unwrap();
        assert_eq!(config.name, name);
        let width = config.body.as_resnet_mut().unwrap().width;
        let rcnn = config.architecture.as_rcnn().unwrap();
        let weights = tensors(&format!("{name}.safetensors"));
        let dims = |key: &str| weights[key].dims().to_vec();
        let has = |key: &str| weights.contains_key(key);
        let channels = config.levels()[0].channels;
        assert_eq!(dims("backbone.body.conv1.weight"), [width, 3, 7, 7]);
        assert_eq!(dims("backbone.fpn.layer_blocks.0.0.weight"), [channels, channels, 3, 3]);
        let depth = rcnn.rpn.conv_depth;
        assert!(has(&format!("rpn.head.conv.{}.0.weight", depth - 1)));
        assert!(!has(&format!("rpn.head.conv.{depth}.0.weight")));
        let four_convs = has("roi_heads.box_head.3.0.weight");
        assert_eq!(rcnn.box_head.kind == BoxHeadKind::FourConvOneFc, four_convs);
        let hidden = rcnn.box_head.hidden;
        let classes = config.num_classes;
        assert_eq!(dims("roi_heads.box_predictor.cls_score.weight"), [classes, hidden]);
        let mask = rcnn.mask_head.as_ref().unwrap();
        for (i, width) in mask.conv_channels.iter().enumerate() {
            assert_eq!(dims(&format!("roi_heads.mask_head.{i}.0.weight"))[0], *width);
        }
        assert!(!has(&format!("roi_heads.mask_head.{}.0.weight", mask.conv_channels.len())));
        let predictor = mask.predictor_channels;
        let logits = dims("roi_heads.mask_predictor.mask_fcn_logits.weight");
        assert_eq!(logits, [classes, predictor, 1, 1]);
    }
}

/// What the tests of stages rely on: several detections, none at the limit, and two sizes of image.
#[test]
fn tiny_stages_are_worth_comparing() {
    for name in ["tiny_r18", "tiny_r50_v2"] {
        let config = ModelConfig::load(&fixture(&format!("{name}.toml"))).unwrap();
        let stages = tensors(&format!("{name}_stages.safetensors"));
        assert_ne!(stages["image.0"].dims(), stages["image.1"].dims());
        let proposals = stages["rpn.proposals.0"].dim(0).unwrap();
        assert_eq!(proposals, config.architecture.as_rcnn().unwrap().rpn.post_nms_top_n);
        for i in 0..2 {
            let scores = stages[&format!("resized_image.scores.{i}")].to_vec1::<f32>().unwrap();
            assert!(scores.len() >= 5 && scores.len() < config.detections.per_image);
            assert!(scores.iter().all(|score| *score > config.detections.score_threshold));
            assert!(scores.is_sorted_by(|a, b| a > b));
        }
    }
}

#[derive(serde::Deserialize)]
struct Parameters {
    parameters: u64,
    tensors: BTreeMap<String, Vec<usize>>,
}

#[test]
fn model_files_have_the_parameters_of_the_reference() {
    let text = std::fs::read_to_string(fixture("parameters.json")).unwrap();
    let models: BTreeMap<String, Parameters> = serde_json::from_str(&text).unwrap();
    assert!(config::names().eq([
        "maskrcnn_resnet50_fpn",
        "maskrcnn_resnet50_fpn_v2",
        "fasterrcnn_resnet50_fpn",
        "fasterrcnn_resnet50_fpn_v2",
        "fasterrcnn_mobilenet_v3_large_fpn",
        "fasterrcnn_mobilenet_v3_large_320_fpn",
        "retinanet_resnet50_fpn",
        "retinanet_resnet50_fpn_v2",
        "fcos_resnet50_fpn",
        "ssd300_vgg16",
        "ssdlite320_mobilenet_v3_large",
        "maskrcnn_shapes",
    ]));
    for name in config::names() {
        let model = config::get(name).unwrap();
        // Without published weights it is this project's own.
        let Some(reference) = models.get(name) else {
            assert_eq!(name, "maskrcnn_shapes");
            continue;
        };
        assert_eq!(model.weights[0].parameters, reference.parameters, "{name}");
        let Some(rcnn) = model.architecture.as_rcnn() else { continue };
        let classes = &reference.tensors["roi_heads.box_predictor.cls_score.weight"];
        assert_eq!(classes[..], [model.num_classes, rcnn.box_head.hidden]);
    }
}
