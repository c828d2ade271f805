//! Figures against pycocotools, on `fixtures/eval/golden.json` (made by `make_golden.py` beside it).
#![cfg(feature = "eval")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_detection::eval::{
    CocoDataset, CocoEvaluation, CocoMetrics, CocoReport, CocoResult, IOU_THRESHOLDS, IouKind,
    MaxDetections, ResultsFile, Segmentation, evaluate_results,
};
use candle_detection::structures::{BoxXyxy, Detections, ImageSize, Instance, InstanceParts};
use serde_json::{Value, json};
use tempfile::TempDir;

const TOLERANCE: f64 = 1e-9;

fn write(folder: &TempDir, name: &str, value: &Value) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, value.to_string()).unwrap();
    path
}

fn evaluate(dataset: &Value, results: &Value) -> candle_detection::Result<CocoReport> {
    evaluate_part(dataset, results, None, MaxDetections::default())
}

fn evaluate_part(
    dataset: &Value,
    results: &Value,
    ids: Option<Vec<u64>>,
    limits: MaxDetections,
) -> candle_detection::Result<CocoReport> {
    let folder = TempDir::new().unwrap();
    let dataset = CocoDataset::open(&write(&folder, "dataset.json", dataset), Path::new("."))?;
    let dataset = match ids {
        Some(ids) => dataset.restrict_to(&ids)?,
        None => dataset,
    };
    let file = ResultsFile::read(&write(&folder, "results.json", results))?;
    evaluate_results(&dataset, &file, limits)
}

fn assert_close(what: &str, found: f64, expected: f64) {
    assert!((found - expected).abs() <= TOLERANCE, "{what}: {found}, pycocotools has {expected}");
}

fn assert_metrics(case: &str, metrics: &CocoMetrics, expected: &Value) {
    for (name, found) in CocoMetrics::NAMES.into_iter().zip(metrics.stats()) {
        assert_close(&format!("{case}, {name}"), found, expected[name].as_f64().unwrap());
    }
    let per_category = expected["per_category"].as_object().unwrap();
    assert_eq!(per_category.len(), metrics.per_category.len(), "{case}");
    for (id, ap) in per_category {
        let found = metrics.per_category[&id.parse().unwrap()].ap.unwrap_or(-1.0);
        assert_close(&format!("{case}, category {id}"), found, ap.as_f64().unwrap());
    }
    for (at, ap) in expected["per_threshold"].as_array().unwrap().iter().enumerate() {
        let found = metrics
            .mean_curve(at)
            .map_or(-1.0, |curve| curve.precision.iter().sum::<f64>() / 101.0);
        assert_close(&format!("{case}, IoU {}", IOU_THRESHOLDS[at]), found, ap.as_f64().unwrap());
    }
}

#[test]
fn figures_equal_pycocotools() {
    let cases: Vec<Value> =
        serde_json::from_str(include_str!("fixtures/eval/golden.json")).unwrap();
    assert!(cases.len() > 20);
    for case in &cases {
        let name = case["name"].as_str().unwrap();
        let ids =
            case["ids"].as_array().map(|ids| ids.iter().map(|id| id.as_u64().unwrap()).collect());
        let limits = match case["max_dets"].as_array() {
            Some(limits) => {
                let at = |n: usize| limits[n].as_u64().unwrap() as usize;
                MaxDetections::new([at(0), at(1), at(2)]).unwrap()
            }
            None => MaxDetections::default(),
        };
        let report = evaluate_part(&case["dataset"], &case["results"], ids, limits)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let expected = case["expected"].as_object().unwrap();
        assert_eq!(
            expected.len(),
            report.per_kind.len(),
            "{name}: {:?}",
            report.per_kind.keys().collect::<Vec<_>>()
        );
        for (kind, metrics) in &report.per_kind {
            assert_metrics(&format!("{name}, {}", kind.name()), metrics, &expected[kind.name()]);
        }
    }
}

#[test]
fn thresholds_are_numpys() {
    // repr(np.linspace(.5, .95, 10)): three of them are a rounding away from the decimal.
    let numpy = [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.8999999999999999, 0.95];
    assert_eq!(IOU_THRESHOLDS, numpy);
}

fn toy(annotations: Value) -> Value {
    json!({
        "images": [{"id": 1, "file_name": "1.png", "height": 100, "width": 100}],
        "categories": [{"id": 1, "name": "thing"}],
        "annotations": annotations,
    })
}

fn object(id: u64, bbox: [f64; 4]) -> Value {
    json!({"id": id, "image_id": 1, "category_id": 1, "bbox": bbox, "area": bbox[2] * bbox[3], "iscrowd": 0})
}

fn found(image: u64, category: u64, bbox: [f64; 4], score: f64) -> Value {
    json!({"image_id": image, "category_id": category, "bbox": bbox, "score": score})
}

const BOX: [f64; 4] = [10.0, 10.0, 20.0, 20.0];

fn message<T>(result: candle_detection::Result<T>) -> String {
    match result {
        Ok(_) => panic!("accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn unknown_images_are_an_error_with_ids_and_count() {
    let results: Vec<Value> = (77..99).chain([77]).map(|image| found(image, 1, BOX, 0.5)).collect();
    let message = message(evaluate(&toy(json!([object(1, BOX)])), &json!(results)));
    assert!(
        message.contains("results.json: image_id: 23 of 23 entries are for 22 images"),
        "{message}"
    );
    assert!(message.contains("77, 78, 79"), "{message}");
    assert!(!message.contains("98"), "only the first ids: {message}");
}

#[test]
fn unlisted_categories_are_counted_and_change_nothing() {
    let dataset = toy(json!([object(1, BOX)]));
    let with = json!([found(1, 5, BOX, 0.99), found(1, 1, BOX, 0.9), found(1, 7, BOX, 0.95)]);
    let with = evaluate(&dataset, &with).unwrap();
    let without = evaluate(&dataset, &json!([found(1, 1, BOX, 0.9)])).unwrap();
    assert_eq!(with.per_kind, without.per_kind);
    assert_eq!((with.unlisted.detections, with.detections), (2, 1));
    assert_eq!(with.unlisted.categories, [5, 7]);
}

#[test]
fn results_that_are_no_numbers_name_their_entry() {
    let folder = TempDir::new().unwrap();
    let good = r#"{"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5}"#;
    for (bad, expected) in [
        (good.replace("0.5", "NaN"), "results[1]"),
        (good.replace("0.5", "Infinity"), "results[1]"),
        (good.replace("0.5", "1e999"), "results[1]"),
        (good.replace("[1,", "[NaN,"), "results[1]"),
        (good.replace("[1,", "[-Infinity,"), "results[1]"),
        (
            good.replace("[1, 2, 3, 4]", "[1, 2, 3]"),
            "results[1]: `bbox` is [1, 2, 3], expected four",
        ),
        (good.replace("0.5", "\"high\""), "results[1]: `score` is \"high\", expected a finite"),
        (good.replace(", \"score\": 0.5", ""), "results[1]: `score` is missing"),
        (good.replace("\"image_id\": 1", "\"image_id\": \"1\""), "results[1]: `image_id` is \"1\""),
        (
            good.replace("\"category_id\": 1", "\"category_id\": 1.5"),
            "results[1]: `category_id` is 1.5",
        ),
        (good.replace(", \"bbox\": [1, 2, 3, 4]", ""), "results[1]: it has neither"),
        ("17".to_owned(), "results[1]"),
    ] {
        let path = folder.path().join("results.json");
        std::fs::write(&path, format!("[{good}, {bad}]")).unwrap();
        let message = message(ResultsFile::read(&path));
        assert!(message.contains(expected), "{bad}: {message}");
    }
}

#[test]
fn results_of_mixed_form_are_refused() {
    let mask = json!({"size": [100, 100], "counts": [10000]});
    let mut second = found(1, 1, BOX, 0.5);
    second["segmentation"] = mask;
    let results = json!([found(1, 1, BOX, 0.5), second]);
    let message = message(evaluate(&toy(json!([object(1, BOX)])), &results));
    assert!(
        message.contains("results[1]: it has a `segmentation`, but results[0] has none"),
        "{message}"
    );
}

#[test]
fn masks_must_fit_their_image() {
    let mut result = found(1, 1, BOX, 0.5);
    result["segmentation"] = json!({"size": [100, 90], "counts": [9000]});
    let mut truth = object(1, BOX);
    truth["segmentation"] = json!([[10, 10, 30, 10, 30, 30]]);
    let message = message(evaluate(&toy(json!([truth])), &json!([result])));
    assert!(message.contains("results[0]: the mask's `size` is 100×90"), "{message}");
}

#[test]
fn negative_results_are_refused() {
    let results = json!([found(1, 1, [30.0, 30.0, -20.0, 10.0], 0.5)]);
    let message = message(evaluate(&toy(json!([object(1, BOX)])), &results));
    assert!(message.contains("results[0]: `bbox` is [30.0, 30.0, -20.0, 10.0]"), "{message}");
}

#[test]
fn masks_to_compare_need_masks_to_compare_with() {
    let mut result = found(1, 1, BOX, 0.5);
    result["segmentation"] = json!({"size": [100, 100], "counts": [10000]});
    let results = json!([result]);
    let report = evaluate(&toy(json!([object(42, BOX)])), &results).unwrap();
    assert_eq!(report.per_kind.keys().collect::<Vec<_>>(), [&IouKind::Box], "a set of boxes only");
    let mut outlined = object(7, BOX);
    outlined["segmentation"] = json!([[10, 10, 30, 10, 30, 30]]);
    let message = message(evaluate(&toy(json!([object(42, BOX), outlined])), &results));
    assert!(message.contains("annotation 42: it has no `segmentation`"), "{message}");
}

/// A mask of rows `top..bottom` in all columns, uncompressed.
fn band(height: usize, width: usize, top: usize, bottom: usize) -> Value {
    let mut counts = vec![top];
    for _ in 1..width {
        counts.extend([bottom - top, height - bottom + top]);
    }
    counts.extend([bottom - top, height - bottom]);
    json!({"size": [height, width], "counts": counts})
}

#[test]
fn an_object_without_polygons_is_never_found() {
    let mut truth = object(42, BOX);
    truth["segmentation"] = json!([]);
    let mut result = found(1, 1, BOX, 0.9);
    result["segmentation"] = band(100, 100, 10, 30);
    let report = evaluate(&toy(json!([truth])), &json!([result])).unwrap();
    assert_eq!(report.per_kind[&IouKind::Mask].ap, Some(0.0));
    // COCO adds 2⁻⁵² to the denominator of a precision.
    assert_close("box AP", report.per_kind[&IouKind::Box].ap.unwrap(), 1.0);
}

#[test]
fn many_masks_on_a_large_image_stay_run_lengths() {
    // As bytes these masks would take 6 GB, as floats 24.
    let (height, width) = (3000, 4000);
    let mut truth = object(1, [0.0, 1000.0, 4000.0, 200.0]);
    truth["segmentation"] = band(height, width, 1000, 1200);
    let mut dataset = toy(json!([truth]));
    dataset["images"][0] = json!({"id": 1, "height": height, "width": width});
    let results: Vec<Value> = (0..500)
        .map(|n| {
            let mut result = found(1, 1, [0.0, (500 + n) as f64, 4000.0, 200.0], 0.5);
            result["segmentation"] = band(height, width, 500 + n, 700 + n);
            result
        })
        .collect();
    let limits = MaxDetections::new([1, 10, 500]).unwrap();
    let report = evaluate_part(&dataset, &json!(results), None, limits).unwrap();
    // The last of 500 equal scores overlaps by 199 rows of 201.
    let ap = report.per_kind[&IouKind::Mask].ap.unwrap();
    assert!(ap > 0.0 && ap < 0.01, "{ap}");
}

#[test]
fn limits_must_ascend() {
    for limits in [[0, 1, 2], [1, 1, 2], [10, 1, 100]] {
        let message = message(MaxDetections::new(limits));
        assert!(message.contains("max_dets") && message.contains("ascending"), "{message}");
    }
}

fn dataset_of_two(folder: &TempDir) -> CocoDataset {
    let mut dataset = toy(json!([object(1, BOX)]));
    let second = json!({"id": 2, "file_name": "2.png", "height": 100, "width": 100});
    dataset["images"].as_array_mut().unwrap().push(second);
    CocoDataset::open(&write(folder, "dataset.json", &dataset), Path::new(".")).unwrap()
}

fn detections(score: f32, x1: f32) -> Detections {
    Detections {
        image_size: ImageSize { height: 100, width: 100 },
        instances: vec![Instance {
            bbox: BoxXyxy { x1, y1: 10.0, x2: 30.0, y2: 30.0 },
            label: 1,
            score,
            mask: None,
            keypoints: None,
        }],
        parts: InstanceParts::BOXES,
    }
}

#[test]
fn detections_are_recorded_image_by_image() {
    let folder = TempDir::new().unwrap();
    let dataset = dataset_of_two(&folder);
    let mut evaluation = CocoEvaluation::new(&dataset, &[IouKind::Box]).unwrap();
    // Whatever the order, a false positive above the hit halves AP.
    evaluation.record(2, &detections(0.95, 10.0)).unwrap();
    evaluation.record(1, &detections(0.9, 10.0)).unwrap();
    let report = evaluation.finish().unwrap();
    assert_eq!((report.images, report.detections), (2, 2));
    let metrics = &report.per_kind[&IouKind::Box];
    assert_close("ap", metrics.ap.unwrap(), 0.5);
    let category = &metrics.per_category[&1];
    assert_eq!((category.objects, category.detections), (1, 2));
    let curve = &category.curves[0];
    assert_eq!((curve.iou, curve.max_recall), (0.5, 1.0));
    assert!(curve.precision.iter().all(|&precision| precision == 0.5));
    // Recall 0 is reached by the best detection, wrong as it is.
    assert_eq!(curve.scores[0], f64::from(0.95f32));
    assert!(curve.scores[1..].iter().all(|&score| score == f64::from(0.9f32)));
}

#[test]
fn what_cannot_be_recorded_names_its_detection() {
    let folder = TempDir::new().unwrap();
    let dataset = dataset_of_two(&folder);
    let mut evaluation = CocoEvaluation::new(&dataset, &[IouKind::Box]).unwrap();
    for (detections, expected) in [
        (detections(f32::NAN, 10.0), "detections[0] of image 1: `score` is NaN"),
        (detections(f32::INFINITY, 10.0), "detections[0] of image 1: `score` is inf"),
        (detections(0.5, f32::NAN), "detections[0] of image 1: `bbox`"),
        (detections(0.5, f32::NEG_INFINITY), "detections[0] of image 1: `bbox`"),
    ] {
        let message = message(evaluation.record(1, &detections));
        assert!(message.contains(expected), "{message}");
    }
    let unknown = message(evaluation.record(3, &detections(0.5, 10.0)));
    assert!(unknown.contains("image 3: the data set has no such image"), "{unknown}");
    evaluation.record(1, &detections(0.5, 10.0)).unwrap();
    let twice = message(evaluation.record(1, &detections(0.5, 10.0)));
    assert!(twice.contains("image 1: the image was recorded before"), "{twice}");
    let missing = message(evaluation.finish());
    assert!(missing.contains("1 of 2 were never recorded, the first ids: 2"), "{missing}");
    let mut truth = object(1, BOX);
    truth["segmentation"] = json!([[10, 10, 30, 10, 30, 30]]);
    let dataset = write(&folder, "masks.json", &toy(json!([truth])));
    let dataset = CocoDataset::open(&dataset, Path::new(".")).unwrap();
    let mut evaluation = CocoEvaluation::new(&dataset, &[IouKind::Mask]).unwrap();
    let maskless = message(evaluation.record(1, &detections(0.5, 10.0)));
    assert!(maskless.contains("they have no masks"), "{maskless}");
}

#[test]
fn the_table_is_pycocotools_own() {
    let dataset = toy(json!([object(1, BOX)]));
    let report = evaluate(&dataset, &json!([found(1, 1, BOX, 0.9)])).unwrap();
    let table = "\
Evaluate annotation type *bbox*
 Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = 1.000
 Average Precision  (AP) @[ IoU=0.50      | area=   all | maxDets=100 ] = 1.000
 Average Precision  (AP) @[ IoU=0.75      | area=   all | maxDets=100 ] = 1.000
 Average Precision  (AP) @[ IoU=0.50:0.95 | area= small | maxDets=100 ] = 1.000
 Average Precision  (AP) @[ IoU=0.50:0.95 | area=medium | maxDets=100 ] = -1.000
 Average Precision  (AP) @[ IoU=0.50:0.95 | area= large | maxDets=100 ] = -1.000
 Average Recall     (AR) @[ IoU=0.50:0.95 | area=   all | maxDets=  1 ] = 1.000
 Average Recall     (AR) @[ IoU=0.50:0.95 | area=   all | maxDets= 10 ] = 1.000
 Average Recall     (AR) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = 1.000
 Average Recall     (AR) @[ IoU=0.50:0.95 | area= small | maxDets=100 ] = 1.000
 Average Recall     (AR) @[ IoU=0.50:0.95 | area=medium | maxDets=100 ] = -1.000
 Average Recall     (AR) @[ IoU=0.50:0.95 | area= large | maxDets=100 ] = -1.000
";
    assert_eq!(report.to_string(), table);
}

#[test]
fn json_has_every_figure_and_no_masks_that_were_not_compared() {
    let dataset = toy(json!([object(1, BOX)]));
    let report = evaluate(&dataset, &json!([found(1, 1, [10.0, 10.0, 20.0, 10.0], 0.9)])).unwrap();
    let value = serde_json::to_value(&report).unwrap();
    assert_close("ap", value["bbox"]["ap"].as_f64().unwrap(), 0.1);
    let names: Vec<&String> = value["bbox"].as_object().unwrap().keys().collect();
    assert_eq!(names.len(), 13);
    assert_eq!(value["bbox"]["ap_large"], json!(-1.0));
    assert_eq!(value["bbox"]["per_category"]["1"].as_f64(), value["bbox"]["ap"].as_f64());
    assert!(value.get("segm").is_none());
}

#[test]
fn results_survive_writing_and_reading() {
    let result = CocoResult {
        image_id: 3,
        category_id: 90,
        bbox: Some([0.1, 1.0 / 3.0, 5e-9, 123456.789]),
        score: f64::from(0.1f32),
        segmentation: Segmentation::Rle {
            size: ImageSize { height: 10, width: 10 },
            counts: "1234".to_owned(),
        },
        keypoints: Some(vec![[0.1, 1e-9, 1.0], [-3.25, 1.0 / 3.0, 0.0]]),
    };
    let mut bytes = Vec::new();
    candle_detection::eval::write_results(&mut bytes, [&result, &result]).unwrap();
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("results.json");
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(ResultsFile::read(&path).unwrap().results(), [result.clone(), result]);
    let mut empty = Vec::new();
    candle_detection::eval::write_results(&mut empty, []).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&empty).unwrap(), json!([]));
}

#[test]
fn reference_results_give_the_stored_figures() {
    let Some(data) = std::env::var_os("CANDLE_DETECTION_DATA").map(PathBuf::from) else {
        println!("skipped: CANDLE_DETECTION_DATA is not set");
        return;
    };
    let weights = data.join("weights");
    let read = |name: &str| -> Value {
        serde_json::from_slice(&std::fs::read(weights.join(name)).unwrap()).unwrap()
    };
    let stored = read("maskrcnn_coco12.reference-ap.json");
    let ids: Vec<u64> = serde_json::from_value(read("maskrcnn_coco12.ids.json")).unwrap();
    let file = ResultsFile::read(&weights.join("maskrcnn_coco12.reference.json")).unwrap();
    let open = || {
        let annotations = data.join("coco-samples/annotations/instances_val2017.json");
        CocoDataset::open(&annotations, &data.join("coco-samples/val2017")).unwrap()
    };
    let twelve = open().restrict_to(&ids).unwrap();
    let reports = BTreeMap::from([
        ("photos_12", evaluate_results(&twelve, &file, MaxDetections::default()).unwrap()),
        ("photos_79", evaluate_results(&open(), &file, MaxDetections::default()).unwrap()),
    ]);
    for (photos, report) in reports {
        for (kind, metrics) in report.per_kind {
            let stored = stored[photos][kind.name()].as_array().unwrap();
            for ((name, found), expected) in
                CocoMetrics::NAMES.iter().zip(metrics.stats()).zip(stored)
            {
                let expected = expected.as_f64().unwrap();
                // The stored figures are rounded to six digits.
                assert!((found - expected).abs() <= 1e-6, "{photos} {name}: {found}, {expected}");
            }
        }
    }
}
