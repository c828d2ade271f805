//! From a checkpoint into the constructor of a network: the report, the stand-ins, random weights.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use candle_detection::checkpoint::{
    Checkpoint, CheckpointSource, LoadReport, Loading, RandomSource,
};
use candle_detection::{Error, Mismatches};
use candle_nn::{Init, VarBuilder};
use safetensors::tensor::TensorView;

type Shapes = Vec<(String, Vec<usize>)>;

/// Names and shapes of a detector, narrow but with all that tells models apart.
fn detector(version: u8, classes: usize, masks: bool) -> Shapes {
    let mut shapes = vec![
        ("backbone.body.conv1.weight", vec![4, 3, 7, 7]),
        ("backbone.body.layer1.0.conv1.weight", vec![4, 4, 1, 1]),
        ("backbone.body.layer1.0.conv3.weight", vec![16, 4, 1, 1]),
        ("roi_heads.box_predictor.cls_score.weight", vec![classes, 8]),
        ("roi_heads.box_predictor.cls_score.bias", vec![classes]),
        ("roi_heads.box_predictor.bbox_pred.weight", vec![4 * classes, 8]),
        ("roi_heads.box_predictor.bbox_pred.bias", vec![4 * classes]),
    ];
    if version == 1 {
        shapes.extend([
            ("backbone.fpn.inner_blocks.0.0.bias", vec![4]),
            ("roi_heads.box_head.fc6.weight", vec![8, 16]),
        ]);
    } else {
        shapes.extend([
            ("backbone.fpn.inner_blocks.0.1.weight", vec![4]),
            ("roi_heads.box_head.0.0.weight", vec![4, 4, 3, 3]),
        ]);
    }
    if masks {
        shapes.extend([
            ("roi_heads.mask_head.0.0.weight", vec![4, 4, 3, 3]),
            ("roi_heads.mask_predictor.mask_fcn_logits.weight", vec![classes, 4, 1, 1]),
        ]);
    }
    shapes.into_iter().map(|(name, shape)| (name.to_owned(), shape)).collect()
}

/// Writes a file of these tensors; every element of the n-th is n.
fn write(folder: &Path, shapes: &Shapes) -> PathBuf {
    let path = folder.join("weights.safetensors");
    let contents: BTreeMap<&str, (Vec<usize>, Vec<u8>)> = shapes
        .iter()
        .enumerate()
        .map(|(index, (name, shape))| {
            let bytes = (index as f32).to_le_bytes().repeat(shape.iter().product());
            (name.as_str(), (shape.clone(), bytes))
        })
        .collect();
    let views = contents.iter().map(|(name, (shape, bytes))| {
        (*name, TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, &path).unwrap();
    path
}

fn build(vb: &VarBuilder<'_>, shapes: &Shapes) -> Vec<Tensor> {
    let hint = Init::Randn { mean: 0.0, stdev: 0.1 };
    shapes
        .iter()
        .map(|(name, shape)| vb.get_with_hints(shape.as_slice(), name, hint).unwrap())
        .collect()
}

fn load(
    file: &Shapes,
    model: &Shapes,
    loading: Loading,
) -> (Vec<Tensor>, Result<LoadReport, Error>) {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(&write(folder.path(), file)).unwrap();
    let source = CheckpointSource::new(checkpoint, loading);
    let tensors = build(&source.var_builder(&Device::Cpu), model);
    (tensors, source.finish("tiny"))
}

fn misfits(file: &Shapes, model: &Shapes) -> Mismatches {
    match load(file, model, Loading::Strict).1 {
        Err(Error::CheckpointMismatch { mismatches, model, .. }) => {
            assert_eq!(model, "tiny");
            *mismatches
        }
        other => panic!("{other:?}"),
    }
}

fn diagnosis(file: &Shapes, model: &Shapes) -> String {
    misfits(file, model).diagnosis.unwrap_or_default()
}

#[test]
fn a_fitting_file_loads_every_tensor() {
    let shapes = detector(1, 3, true);
    let mut file = shapes.clone();
    file.push(("backbone.body.bn1.num_batches_tracked".to_owned(), vec![1]));
    let (tensors, report) = load(&file, &shapes, Loading::Strict);
    let report = report.unwrap();
    assert_eq!(report.loaded, shapes.len());
    assert!(report.mismatches.is_empty());
    for (index, tensor) in tensors.iter().enumerate() {
        assert_eq!(tensor.dims(), shapes[index].1);
        assert_eq!(tensor.max_all().unwrap().to_scalar::<f32>().unwrap(), index as f32);
        assert_eq!(tensor.min_all().unwrap().to_scalar::<f32>().unwrap(), index as f32);
    }
}

/// Counters are neither missing, nor unexpected, whatever their shape.
#[test]
fn counters_never_count() {
    let shapes = detector(1, 3, false);
    let mut with_counter = shapes.clone();
    with_counter.push(("backbone.body.bn1.num_batches_tracked".to_owned(), vec![]));
    let (tensors, report) = load(&shapes, &with_counter, Loading::Strict);
    assert_eq!(report.unwrap().loaded, shapes.len());
    assert_eq!(tensors.last().unwrap().to_scalar::<f32>().unwrap(), 0.0);
    assert!(load(&with_counter, &shapes, Loading::Strict).1.is_ok());
}

#[test]
fn all_misfits_are_reported_at_once() {
    let model = detector(1, 91, true);
    let mut file = detector(1, 91, true);
    file.retain(|(name, _)| name != "backbone.body.conv1.weight");
    file[0].1 = vec![4, 4, 3, 3];
    file.push(("extra.weight".to_owned(), vec![2]));
    let found = misfits(&file, &model);
    assert_eq!(found.missing, [("backbone.body.conv1.weight".to_owned(), vec![4, 3, 7, 7])]);
    assert_eq!(found.unexpected, [("extra.weight".to_owned(), vec![2])]);
    assert_eq!(found.wrong_shape.len(), 1);
    assert_eq!(found.wrong_shape[0].name, "backbone.body.layer1.0.conv1.weight");
    assert_eq!(found.wrong_shape[0].expected, [4, 4, 1, 1]);
    assert_eq!(found.wrong_shape[0].found, [4, 4, 3, 3]);
}

#[test]
fn another_number_of_classes_is_named() {
    let found = misfits(&detector(1, 91, true), &detector(1, 3, true));
    assert_eq!(
        found.diagnosis.as_deref(),
        Some("the file was made for 91 classes (background included), the model has 3")
    );
    let wrong: Vec<(&str, &[usize], &[usize])> = found
        .wrong_shape
        .iter()
        .map(|w| (w.name.as_str(), w.expected.as_slice(), w.found.as_slice()))
        .collect();
    assert_eq!(
        wrong,
        [
            ("roi_heads.box_predictor.bbox_pred.bias", [12].as_slice(), [364].as_slice()),
            ("roi_heads.box_predictor.bbox_pred.weight", &[12, 8], &[364, 8]),
            ("roi_heads.box_predictor.cls_score.bias", &[3], &[91]),
            ("roi_heads.box_predictor.cls_score.weight", &[3, 8], &[91, 8]),
            ("roi_heads.mask_predictor.mask_fcn_logits.weight", &[3, 4, 1, 1], &[91, 4, 1, 1]),
        ]
    );
    let message = Error::CheckpointMismatch {
        path: "w.pth".into(),
        model: "tiny".into(),
        mismatches: Box::new(found),
    }
    .to_string();
    assert!(message.contains("cls_score.weight: expected [3, 8], found [91, 8]"), "{message}");
}

#[test]
fn the_wrong_kind_of_file_is_named() {
    let model = detector(1, 91, true);
    assert!(diagnosis(&detector(2, 91, true), &model).contains("this file is a v2 model"));
    assert!(diagnosis(&model, &detector(2, 91, true)).contains("this file is a v1 model"));
    let no_masks = detector(1, 91, false);
    assert_eq!(diagnosis(&no_masks, &model), "the file has no mask head (a Faster R-CNN?)");
    assert!(diagnosis(&model, &no_masks).contains("the file has a mask head"));

    let list =
        |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), vec![2])).collect::<Shapes>();
    assert!(
        diagnosis(&list(&["fc.weight", "layer1.0.conv1.weight"]), &model).contains("classifier")
    );
    assert!(diagnosis(&list(&["backbone.bottom_up.res2.weight"]), &model).contains("detectron2"));
    assert!(diagnosis(&list(&["x", "y"]), &model).contains("begins with `x`, `y`"));

    let mut basic = model.clone();
    basic.retain(|(name, _)| !name.contains("layer1.0.conv3"));
    basic.push(("backbone.body.layer1.1.conv1.weight".to_owned(), vec![4, 4, 3, 3]));
    let reason = diagnosis(&basic, &model);
    assert!(reason.contains("[2, 0, 0, 0] basic blocks"), "{reason}");
    assert!(reason.contains("[1, 0, 0, 0] bottlenecks"), "{reason}");
    let mut more = model.clone();
    more.push(("extra".to_owned(), vec![1]));
    assert!(diagnosis(&more, &model).contains("more besides"));
}

/// A Faster R-CNN file in a Mask R-CNN: no silent random head. The list is cut, the count is not.
#[test]
fn missing_masks_are_an_error_that_counts_them() {
    let mut model = detector(1, 91, true);
    model.extend((0..20).map(|i| (format!("roi_heads.mask_head.{i}.1.bias"), vec![2])));
    let (_, result) = load(&detector(1, 91, false), &model, Loading::Strict);
    let message = result.unwrap_err().to_string();
    assert!(message.contains("22 missing in the file"), "{message}");
    assert!(message.contains("and 12 more"), "{message}");
}

#[test]
fn partial_loading_keeps_what_fits_and_initialises_the_rest() {
    let (file, model) = (detector(1, 91, true), detector(1, 3, true));
    let (tensors, report) = load(&file, &model, Loading::Partial { seed: 5 });
    let report = report.unwrap();
    assert_eq!((report.loaded, report.mismatches.wrong_shape.len()), (6, 5));
    assert!(report.mismatches.diagnosis.unwrap().contains("91 classes"));
    assert_eq!(tensors[1].max_all().unwrap().to_scalar::<f32>().unwrap(), 1.0);
    let random = RandomSource { seed: 5 }.var_builder(&Device::Cpu);
    let expected = build(&random, &model);
    for index in [3, 4, 5, 6, 10] {
        assert_eq!(
            super::bits(&tensors[index]),
            super::bits(&expected[index]),
            "{}",
            model[index].0
        );
        assert!(
            tensors[index].abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap() > 0.01
        );
    }
    // When nothing fits at all, the file is simply the wrong one.
    let other = vec![("x".to_owned(), vec![1])];
    let (_, result) = load(&other, &model, Loading::Partial { seed: 5 });
    assert!(matches!(result, Err(Error::CheckpointMismatch { .. })));
}

/// A tensor that fits and can't be read is the error of `finish`, with the file's name.
#[test]
fn damage_found_while_building_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.pth");
    let mut bytes = std::fs::read(super::fixture("deflated.zip.pth")).unwrap();
    let at = bytes.windows(6).position(|w| w == b"data/0").unwrap() + 20;
    bytes[at] ^= 0x55;
    std::fs::write(&path, bytes).unwrap();
    let source = CheckpointSource::new(Checkpoint::open(&path).unwrap(), Loading::Strict);
    source.var_builder(&Device::Cpu).get(60, "whole").unwrap();
    let error = source.finish("tiny").unwrap_err();
    assert!(error.to_string().contains("damaged.pth: tensor `whole`"), "{error}");
}

#[test]
fn random_weights_depend_on_seed_and_name_only() {
    let shapes = detector(1, 3, true);
    let reversed: Shapes = shapes.iter().cloned().rev().collect();
    let of = |seed, shapes: &Shapes| -> BTreeMap<String, Vec<u32>> {
        let tensors = build(&RandomSource { seed }.var_builder(&Device::Cpu), shapes);
        shapes
            .iter()
            .zip(tensors)
            .map(|((name, _), tensor)| (name.clone(), super::bits(&tensor)))
            .collect()
    };
    assert_eq!(of(1, &shapes), of(1, &reversed));
    let (one, two) = (of(1, &shapes), of(2, &shapes));
    assert!(one.iter().all(|(name, values)| *values != two[name]));
    let predictor = "roi_heads.box_predictor.cls_score.weight";
    assert_ne!(one[predictor][..3], one["roi_heads.box_predictor.bbox_pred.weight"][..3]);
}

#[test]
fn random_weights_follow_the_hints() {
    let vb = RandomSource { seed: 9 }.var_builder(&Device::Cpu);
    let moments = |init: Init, name: &str| {
        // Larger than one task of the generator, and no multiple of it.
        let tensor = vb.get_with_hints((50, 40, 7, 7), name, init).unwrap();
        let values =
            tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64;
        let most = values.iter().fold(0f64, |most, v| most.max((v - mean).abs()));
        (mean, variance.sqrt(), most)
    };
    let close = |a: f64, b: f64, within: f64| assert!((a - b).abs() < within, "{a} is not {b}");
    let (mean, deviation, most) = moments(Init::Randn { mean: 2.0, stdev: 0.5 }, "normal");
    close(mean, 2.0, 0.01);
    close(deviation, 0.5, 0.01);
    assert!((1.9..3.5).contains(&most), "{most}");
    let (mean, deviation, most) = moments(Init::Uniform { lo: -1.0, up: 3.0 }, "uniform");
    close(mean, 1.0, 0.02);
    close(deviation, 4.0 / 12f64.sqrt(), 0.02);
    assert!((1.95..2.05).contains(&most), "{most}");
    assert_eq!(moments(Init::Const(0.25), "constant"), (0.25, 0.0, 0.0));
    let expected = (2.0 / (40.0 * 49.0f64)).sqrt();
    for hint in [candle_nn::init::DEFAULT_KAIMING_NORMAL, candle_nn::init::DEFAULT_KAIMING_UNIFORM]
    {
        let (mean, deviation, _) = moments(hint, "kaiming");
        close(mean, 0.0, 0.02 * expected);
        close(deviation, expected, 0.02 * expected);
    }
}
