//! Keypoints of COCO files: what is read, what is odd, what is an error, and figures against pycocotools.
#![cfg(feature = "eval")]

use std::path::{Path, PathBuf};

use candle_detection::dataset::{CocoDataset, CocoKeypoint, FindingKind, Tolerance};
use candle_detection::eval::report::ReportPage;
use candle_detection::eval::{
    Analysis, CocoEvaluation, CocoReport, CocoResult, EvalOptions, IouKind, Journal,
    KeypointSigmas, Merged, ResultsFile, RunSettings, Shard, Start, comparable_parts,
    evaluate_results, write_results,
};
use candle_detection::structures::{
    BoxXyxy, Detections, ImageSize, Instance, InstanceParts, Keypoint, Visibility,
};
use serde_json::{Value, json};
use tempfile::TempDir;

fn write(folder: &TempDir, name: &str, value: &Value) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, value.to_string()).unwrap();
    path
}

fn open_with(file: &Value, tolerance: Tolerance) -> candle_detection::Result<CocoDataset> {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, "dataset.json", file);
    CocoDataset::open_with(&path, Path::new("."), tolerance)
}

/// One person with three keypoints, one of them not labelled.
fn person(change: Value, category: Value) -> Value {
    let mut annotation = json!({
        "id": 42, "image_id": 8, "category_id": 1, "bbox": [1, 2, 5, 6], "area": 30, "iscrowd": 0,
        "keypoints": [2, 3, 2, 0, 0, 0, 4.5, 7, 1], "num_keypoints": 2,
    });
    let mut person = json!({
        "id": 1, "name": "person", "keypoints": ["nose", "left_ear", "right_ear"],
        "skeleton": [[1, 2], [1, 3]],
    });
    for (entry, change) in [(&mut annotation, change), (&mut person, category)] {
        for (field, value) in change.as_object().unwrap() {
            entry[field] = value.clone();
        }
    }
    json!({
        "images": [{"id": 8, "file_name": "a.png", "height": 12, "width": 12}],
        "categories": [person], "annotations": [annotation],
    })
}

#[test]
fn keypoints_and_their_names_are_read() {
    let dataset = open_with(&person(json!({}), json!({})), Tolerance::Reject).unwrap();
    let annotation = &dataset.annotations(8)[0];
    let point = |x, y, visibility| CocoKeypoint { x, y, visibility };
    let expected = [
        point(2.0, 3.0, Visibility::Visible),
        point(0.0, 0.0, Visibility::Unlabelled),
        point(4.5, 7.0, Visibility::Hidden),
    ];
    assert_eq!((&annotation.keypoints[..], annotation.num_keypoints), (&expected[..], 2));
    let category = dataset.category(1).unwrap();
    assert_eq!(category.keypoints, ["nose", "left_ear", "right_ear"]);
    assert_eq!(category.skeleton, [[0, 1], [0, 2]]);
    assert!(dataset.has_keypoints());

    let absent = json!({"keypoints": null, "num_keypoints": null});
    let bare =
        open_with(&person(absent, json!({"keypoints": null, "skeleton": null})), Tolerance::Reject);
    let bare = bare.unwrap();
    let annotation = &bare.annotations(8)[0];
    assert_eq!((annotation.keypoints.len(), annotation.num_keypoints), (0, 0));
    assert!(!bare.has_keypoints() && bare.categories()[0].skeleton.is_empty());
    // Counted where the file does not say.
    let counted = open_with(&person(json!({"num_keypoints": null}), json!({})), Tolerance::Reject);
    assert_eq!(counted.unwrap().annotations(8)[0].num_keypoints, 2);
}

#[test]
fn a_wrong_number_of_labelled_keypoints_is_odd() {
    let file = person(json!({"num_keypoints": 0}), json!({}));
    let dataset = open_with(&file, Tolerance::Report).unwrap();
    assert_eq!(dataset.annotations(8)[0].num_keypoints, 0);
    let findings: Vec<FindingKind> =
        dataset.findings().iter().map(|finding| finding.kind).collect();
    assert_eq!(findings, [FindingKind::KeypointCount]);
    let text = open_with(&file, Tolerance::Reject).unwrap_err().to_string();
    assert!(text.contains("annotations[0] (id 42)") && text.contains("`num_keypoints`"), "{text}");
}

#[test]
fn faults_are_named_by_entry_and_field() {
    for (change, category, expected) in [
        (
            json!({"keypoints": [2, 3, 2, 1]}),
            json!({}),
            "`keypoints` has 4 numbers, expected three",
        ),
        (
            json!({"keypoints": [2, 3, 2]}),
            json!({}),
            "`keypoints` has 1 keypoints, but category 1 (`person`) has 3",
        ),
        (
            json!({"keypoints": [2, 3, 2, 0, 0, 3, 4, 7, 1]}),
            json!({}),
            "`keypoints[5]` is 3, expected a visibility: 0",
        ),
        (
            json!({"keypoints": [2, 3, 2, 0, 0, 0.5, 4, 7, 1]}),
            json!({}),
            "`keypoints[5]` is 0.5, expected",
        ),
        (
            json!({"keypoints": [2, 3, -1, 0, 0, 0, 4, 7, 1]}),
            json!({}),
            "`keypoints[2]` is -1, expected",
        ),
        (
            json!({"keypoints": "none"}),
            json!({}),
            "`keypoints` is \"none\", expected a list of finite numbers",
        ),
        (json!({"keypoints": [2, null, 2]}), json!({}), "`keypoints` is [2,null,2]"),
        (json!({"num_keypoints": -2}), json!({}), "`num_keypoints` is -2, expected a whole number"),
        (
            json!({}),
            json!({"keypoints": "nose"}),
            "`keypoints` is \"nose\", expected a list of names",
        ),
        (
            json!({}),
            json!({"skeleton": [[1, 4]]}),
            "`skeleton` has the limb [1, 4], expected numbers from 1 to 3",
        ),
        (json!({}), json!({"skeleton": [[0, 1]]}), "`skeleton` has the limb [0, 1]"),
        (
            json!({}),
            json!({"skeleton": [[1, 2, 3]]}),
            "`skeleton` is [[1,2,3]], expected a list of pairs",
        ),
    ] {
        let text = open_with(&person(change, category), Tolerance::Report).unwrap_err().to_string();
        assert!(
            text.contains("annotations[0] (id 42)") || text.contains("categories[0] (id 1)"),
            "{text}"
        );
        assert!(text.contains(expected), "{expected}: {text}");
    }
    // JSON has no spelling for infinity; numbers beyond it come near.
    let text = person(json!({}), json!({})).to_string().replace("4.5", "1e999");
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("dataset.json");
    std::fs::write(&path, text).unwrap();
    let text = CocoDataset::open(&path, Path::new(".")).unwrap_err().to_string();
    assert!(text.contains("annotations[0]"), "{text}");
}

const TOLERANCE: f64 = 1e-9;

fn cases() -> Vec<Value> {
    serde_json::from_str(include_str!("fixtures/keypoint_eval.json")).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn options(case: &Value) -> EvalOptions {
    let sigmas = match case["sigmas"].is_null() {
        true => KeypointSigmas::default(),
        false => KeypointSigmas::new(numbers(&case["sigmas"])).unwrap(),
    };
    EvalOptions { sigmas, ..EvalOptions::default() }
}

fn evaluate(
    dataset: &Value,
    results: &Value,
    options: EvalOptions,
) -> candle_detection::Result<CocoReport> {
    let folder = TempDir::new().unwrap();
    let dataset = CocoDataset::open(&write(&folder, "dataset.json", dataset), Path::new("."))?;
    let results = ResultsFile::read(&write(&folder, "results.json", results))?;
    evaluate_results(&dataset, &results, options)
}

fn assert_close(what: &str, found: f64, expected: f64) {
    assert!((found - expected).abs() <= TOLERANCE, "{what}: {found}, pycocotools has {expected}");
}

#[test]
fn figures_equal_pycocotools() {
    let cases = cases();
    assert!(cases.len() >= 8);
    for case in &cases {
        let name = case["name"].as_str().unwrap();
        let report = evaluate(&case["dataset"], &case["results"], options(case)).unwrap();
        let expected = case["expected"].as_object().unwrap();
        let kinds: Vec<&str> = report.per_kind.keys().map(|kind| kind.name()).collect();
        assert_eq!(kinds, expected.keys().collect::<Vec<_>>(), "{name}");
        for (kind, metrics) in &report.per_kind {
            let what = format!("{name}, {}", kind.name());
            let expected = &expected[kind.name()];
            let stats = numbers(&expected["stats"]);
            assert_eq!((metrics.stats().len(), metrics.kind), (stats.len(), *kind));
            assert_eq!(metrics.names().len(), stats.len());
            for ((figure, found), expected) in
                metrics.names().iter().zip(metrics.stats()).zip(stats)
            {
                assert_close(&format!("{what}, {figure}"), found, expected);
            }
            for (id, ap) in expected["per_category"].as_object().unwrap() {
                let found = metrics.per_category[&id.parse().unwrap()].ap.unwrap_or(-1.0);
                assert_close(&format!("{what}, category {id}"), found, ap.as_f64().unwrap());
            }
            for (at, ap) in numbers(&expected["per_threshold"]).into_iter().enumerate() {
                let curve = metrics.mean_curve(at);
                let found = curve.map_or(-1.0, |curve| curve.precision.iter().sum::<f64>() / 101.0);
                assert_close(&format!("{what}, threshold {at}"), found, ap);
            }
        }
    }
}

#[test]
fn the_table_and_the_json_are_cocos() {
    let case = &cases()[0];
    let report = evaluate(&case["dataset"], &case["results"], options(case)).unwrap();
    let text = report.to_string();
    assert_eq!(text.lines().count(), 11);
    assert!(text.starts_with("Evaluate annotation type *keypoints*\n"), "{text}");
    let ap = numbers(&case["expected"]["keypoints"]["stats"])[3];
    let row = format!(
        " Average Precision  (AP) @[ IoU=0.50:0.95 | area=medium | maxDets= 20 ] = {ap:.3}"
    );
    assert!(text.contains(&row), "{text}");
    let recall = " Average Recall     (AR) @[ IoU=0.75      | area=   all | maxDets= 20 ] = ";
    assert!(text.contains(recall), "{text}");
    let value = serde_json::to_value(&report).unwrap();
    assert_eq!(value["keypoints"]["ap_medium"].as_f64(), Some(ap));
    assert!(value["keypoints"].get("ar1").is_none() && value["keypoints"].get("ar").is_some());
    let metrics = &report.per_kind[&IouKind::Keypoints];
    assert_eq!((metrics.ap_small, metrics.ar1, metrics.ar10), (None, None, None));
    assert_eq!(metrics.max_detections, [20]);
}

#[test]
fn sigmas_are_numbers_above_zero() {
    for (sigmas, found) in
        [(vec![], "empty"), (vec![0.1, 0.0], "0"), (vec![f64::NAN], "NaN"), (vec![-1.0], "-1")]
    {
        let text = KeypointSigmas::new(sigmas).unwrap_err().to_string();
        assert!(text.contains("`sigmas`") && text.contains(found), "{text}");
    }
    assert_eq!(KeypointSigmas::default().values().len(), 17);
}

#[test]
fn what_cannot_be_compared_is_named() {
    let case = &cases()[0];
    let (dataset, results) = (&case["dataset"], &case["results"]);
    let text = |dataset: &Value, results: &Value, options: EvalOptions| {
        evaluate(dataset, results, options).unwrap_err().to_string()
    };
    let three = KeypointSigmas::new(vec![0.1; 3]).unwrap();
    let found = text(dataset, results, EvalOptions { sigmas: three, ..EvalOptions::default() });
    assert!(found.contains("annotation 1: it has 17 keypoints, but 3 sigmas"), "{found}");

    let mut bare = dataset.clone();
    bare["annotations"][1].as_object_mut().unwrap().remove("keypoints");
    let found = text(&bare, results, EvalOptions::default());
    assert!(found.contains("annotation 2: it has no `keypoints`"), "{found}");
    for annotation in bare["annotations"].as_array_mut().unwrap() {
        annotation.as_object_mut().unwrap().remove("keypoints");
    }
    let found = text(&bare, results, EvalOptions::default());
    assert!(found.contains("results: they have nothing but `keypoints`"), "{found}");

    let edit = |change: &dyn Fn(&mut Value)| {
        let mut results = results.clone();
        change(&mut results[1]);
        text(dataset, &results, EvalOptions::default())
    };
    let short = edit(&|entry| entry["keypoints"].as_array_mut().unwrap().truncate(48));
    assert!(short.contains("it has 16 keypoints, but 17 are compared"), "{short}");
    let torn = edit(&|entry| entry["keypoints"].as_array_mut().unwrap().truncate(50));
    assert!(torn.contains("results[1]: `keypoints` has 50 numbers"), "{torn}");
    let none = edit(&|entry| {
        entry["bbox"] = json!([1, 2, 3, 4]);
        entry["keypoints"] = Value::Null;
    });
    assert!(none.contains("results[1]: it has a `bbox`, but results[0] has none"), "{none}");
    let neither = edit(&|entry| entry["keypoints"] = json!([]));
    assert!(neither.contains("neither `bbox` nor `segmentation` nor `keypoints`"), "{neither}");
}

fn open_case(folder: &TempDir, case: &Value) -> CocoDataset {
    CocoDataset::open(&write(folder, "dataset.json", &case["dataset"]), Path::new(".")).unwrap()
}

/// What a model would find: keypoints in place, one of them hardly.
fn detections(image: &CocoDataset, id: u64) -> Detections {
    let instance = |annotation: &candle_detection::dataset::CocoAnnotation| {
        let [x, y, width, height] = annotation.bbox.map(|side| side as f32);
        let keypoint = |(at, point): (usize, &CocoKeypoint)| Keypoint {
            x: point.x as f32,
            y: point.y as f32,
            score: if at == 3 { -2.0 } else { 4.5 },
        };
        Instance {
            bbox: BoxXyxy { x1: x, y1: y, x2: x + width, y2: y + height },
            label: 1,
            score: 0.9,
            mask: None,
            keypoints: Some(annotation.keypoints.iter().enumerate().map(keypoint).collect()),
        }
    };
    Detections {
        image_size: ImageSize { height: 240, width: 320 },
        instances: image.annotations(id).iter().map(instance).collect(),
        parts: InstanceParts { masks: false, keypoints: Some(17) },
    }
}

#[test]
fn detections_are_recorded_and_survive_files_journals_and_shards() {
    let folder = TempDir::new().unwrap();
    let dataset = open_case(&folder, &cases()[0]);
    let parts = InstanceParts { masks: true, keypoints: Some(17) };
    let kinds = comparable_parts(parts, &dataset);
    assert_eq!(kinds, [IouKind::Box, IouKind::Keypoints]);
    let mut evaluation = CocoEvaluation::new(&dataset, &kinds).unwrap();
    let ids: Vec<u64> = dataset.images().iter().map(|image| image.id).collect();
    let mut results = Vec::new();
    for shard in 0..2 {
        let shard = Shard::new(shard, 2).unwrap();
        let path = folder.path().join(format!("{}.json", shard.index()));
        let settings = RunSettings::new().set("model", "persons");
        let mut journal = Journal::open(&path, &settings, shard, Start::New).unwrap();
        let mine: Vec<u64> =
            ids.iter().copied().filter(|id| *id as usize % 2 == shard.index()).collect();
        for &id in &mine {
            let found = detections(&dataset, id);
            evaluation.record(id, &found).unwrap();
            let found = CocoResult::from_detections(id, &found);
            journal.append(id, &found).unwrap();
            results.extend(found);
        }
        journal.finish(&mine).unwrap();
    }
    let points = results[0].keypoints.as_ref().unwrap();
    // Above 0 says what is to be drawn.
    assert_eq!((points[2][2], points[3][2]), (1.0, 0.0));
    let report = evaluation.finish().unwrap();
    assert!(report.per_kind[&IouKind::Keypoints].ap.unwrap() > 0.5);

    let path = folder.path().join("together.json");
    Merged::read(folder.path()).unwrap().write(&path).unwrap();
    let file = ResultsFile::read(&path).unwrap();
    assert_eq!(file.kinds(), [IouKind::Box, IouKind::Keypoints]);
    let again = evaluate_results(&dataset, &file, EvalOptions::default()).unwrap();
    assert_eq!(again, report);
    let mut bytes = Vec::new();
    write_results(&mut bytes, file.results()).unwrap();
    assert_eq!(bytes, std::fs::read(&path).unwrap());
    let first: Value = serde_json::from_slice::<Vec<Value>>(&bytes).unwrap().remove(0);
    assert_eq!(first["keypoints"].as_array().unwrap().len(), 51);

    // Nothing that JSON has no number for.
    let shard = Shard::WHOLE;
    let other = folder.path().join("nan.json");
    let mut journal = Journal::open(&other, &RunSettings::new(), shard, Start::New).unwrap();
    let mut broken = results[0].clone();
    broken.keypoints.as_mut().unwrap()[4][0] = f64::NAN;
    let text = journal.append(1, &[broken.clone()]).unwrap_err().to_string();
    assert!(text.contains("detections[0]") && text.contains("NaN"), "{text}");
    let mut evaluation = CocoEvaluation::new(&dataset, &[IouKind::Keypoints]).unwrap();
    let text = evaluation.record_results(broken.image_id, &[broken]).unwrap_err().to_string();
    assert!(text.contains("`keypoints` has [NaN"), "{text}");
    let mut boxes = detections(&dataset, 1);
    boxes.parts = InstanceParts::BOXES;
    let text = evaluation.record(1, &boxes).unwrap_err().to_string();
    assert!(text.contains("they have no keypoints"), "{text}");
}

#[test]
fn the_report_has_a_table_and_skeletons() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, "dataset.json", &cases()[0]["dataset"]);
    for id in 1..=6 {
        let image = image::RgbImage::from_pixel(320, 240, image::Rgb([90, 120, 150]));
        image.save(folder.path().join(format!("{id}.jpg"))).unwrap();
    }
    let dataset = CocoDataset::open(&path, folder.path()).unwrap();
    let mut evaluation =
        CocoEvaluation::new(&dataset, &[IouKind::Box, IouKind::Keypoints]).unwrap();
    let results: Vec<Vec<CocoResult>> =
        (1..=6).map(|id| CocoResult::from_detections(id, &detections(&dataset, id))).collect();
    for (id, results) in (1..).zip(&results) {
        evaluation.record_results(id, results).unwrap();
    }
    let report = evaluation.finish().unwrap();
    let results_of = |id: u64| &results[id as usize - 1][..];
    let analysis = Analysis::new(&dataset, &results_of, 0.5);
    let page = ReportPage {
        title: "persons",
        settings: &RunSettings::new(),
        dataset: &dataset,
        report: &report,
        analysis: &analysis,
        results_of: &results_of,
    };
    let html = std::fs::read_to_string(page.write(folder.path()).unwrap()).unwrap();
    assert!(html.contains("<h3>Keypoints</h3>"));
    assert!(html.contains("AP75 <small>OKS 0.75</small>"));
    assert!(html.contains("<th>Keypoint</th>") && html.contains("<th>Box</th>"));
    assert!(html.contains("Keypoint AP"));
    assert!(html.contains("<line x1=") && html.contains("<circle cx="));
    // 17 joints of everybody who is drawn, less the one below the threshold, and those that nobody labelled.
    let joints = html.matches("<circle cx=").count();
    assert!(joints > 16 * results.len(), "{joints}");
}
