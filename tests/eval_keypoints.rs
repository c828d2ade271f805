//! Keypoints of COCO files: what is read, what is odd, what is an error, and figures against pycocotools.
#![cfg(feature = "eval")]

use std::path::{Path, PathBuf};

use candle_detection::dataset::{CocoDataset, CocoKeypoint, FindingKind, Tolerance};
use candle_detection::structures::Visibility;
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
