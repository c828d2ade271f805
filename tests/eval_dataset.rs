//! The data set reader: what it accepts, what it reports, and which entry its errors name.
#![cfg(feature = "eval")]

use std::path::{Path, PathBuf};

use candle_detection::eval::{
    CocoDataset, Coverage, FindingKind, MaxDetections, ResultsFile, Segmentation, Tolerance,
    evaluate_results,
};
use candle_detection::structures::ImageSize;
use serde_json::{Value, json};
use tempfile::TempDir;

const CANVAS: ImageSize = ImageSize { height: 12, width: 12 };

fn open_text(text: &str, tolerance: Tolerance) -> candle_detection::Result<CocoDataset> {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("dataset.json");
    std::fs::write(&path, text).unwrap();
    CocoDataset::open_with(&path, Path::new("photos"), tolerance)
}

fn open(dataset: &Value) -> candle_detection::Result<CocoDataset> {
    open_text(&dataset.to_string(), Tolerance::Report)
}

fn strictly(dataset: &Value) -> candle_detection::Result<CocoDataset> {
    open_text(&dataset.to_string(), Tolerance::Reject)
}

fn message<T>(result: candle_detection::Result<T>) -> String {
    match result {
        Ok(_) => panic!("accepted"),
        Err(error) => error.to_string(),
    }
}

fn with(annotations: Value) -> Value {
    json!({
        "images": [
            {"id": 8, "file_name": "b.png", "height": 12, "width": 12},
            {"id": 3, "file_name": "a.png", "height": 12, "width": 12},
        ],
        "categories": [{"id": 90, "name": "brush"}, {"id": 0}],
        "annotations": annotations,
    })
}

/// An annotation of image 8 in which the fields of `change` replace those given; `null` takes a field away.
fn annotation(change: Value) -> Value {
    let mut entry = json!({
        "id": 42, "image_id": 8, "category_id": 90, "bbox": [1, 2, 3, 4], "area": 7.5, "iscrowd": 0,
        "segmentation": [[1, 1, 5, 1, 5, 5]],
    });
    for (key, value) in change.as_object().unwrap() {
        if value.is_null() {
            entry.as_object_mut().unwrap().remove(key);
        } else {
            entry[key] = value.clone();
        }
    }
    entry
}

fn one(change: Value) -> Value {
    with(json!([annotation(change)]))
}

fn kinds(dataset: &CocoDataset) -> Vec<FindingKind> {
    dataset.findings().iter().map(|finding| finding.kind).collect()
}

#[test]
fn a_data_set_is_indexed_by_id() {
    let mut file = with(json!([
        annotation(json!({"id": 5})),
        annotation(json!({"id": 908400553664u64, "image_id": 3, "category_id": 0})),
        annotation(json!({"id": 0, "iscrowd": 1})),
    ]));
    file["images"].as_array_mut().unwrap().push(json!({"id": 4, "file_name": "empty.png"}));
    file["info"] = json!({"year": 2017, "nested": [[{"x": []}]]});
    file["annotations"][0]["keypoints"] = json!([1, 2, 2]);
    let dataset = open(&file).unwrap();
    let ids: Vec<u64> = dataset.images().iter().map(|image| image.id).collect();
    assert_eq!(ids, [3, 4, 8]);
    let names: Vec<(u64, &str)> =
        dataset.categories().iter().map(|c| (c.id, c.name.as_str())).collect();
    assert_eq!(names, [(0, "category 0"), (90, "brush")]);
    // In the order of the file within an image: it decides ties.
    let of_eight: Vec<u64> = dataset.annotations(8).iter().map(|a| a.id).collect();
    assert_eq!(of_eight, [5, 0]);
    assert_eq!(dataset.annotations(8)[1].coverage, Coverage::Crowd);
    assert_eq!(dataset.annotations(3)[0].id, 908400553664);
    assert!(dataset.annotations(4).is_empty() && dataset.annotations(99).is_empty());
    assert_eq!(
        (dataset.image(4).unwrap().size, dataset.image(8).unwrap().size),
        (None, Some(CANVAS))
    );
    let sample = dataset.samples().last().unwrap();
    assert_eq!((sample.image_id, sample.path), (8, PathBuf::from("photos/b.png")));
    assert!(dataset.findings().is_empty());
}

#[test]
fn numbers_may_be_spelled_as_floats() {
    let entry = annotation(json!({"id": 908400416500.0, "image_id": 8.0, "iscrowd": true}));
    let dataset = open(&with(json!([entry]))).unwrap();
    let annotation = &dataset.annotations(8)[0];
    assert_eq!((annotation.id, annotation.coverage), (908400416500, Coverage::Crowd));
}

#[test]
fn duplicate_ids_name_both_entries() {
    let twice = with(json!([
        annotation(json!({})),
        annotation(json!({"id": 1})),
        annotation(json!({"id": 42.0})),
    ]));
    let message1 = message(open(&twice));
    assert!(message1.contains("annotations[2] (id 42)"), "{message1}");
    assert!(message1.contains("annotations[0]"), "{message1}");
    let mut images = with(json!([]));
    images["images"][1]["id"] = json!(8);
    let message2 = message(open(&images));
    assert!(message2.contains("images[1] (id 8)") && message2.contains("images[0]"), "{message2}");
    let mut categories = with(json!([]));
    categories["categories"][1]["id"] = json!(90);
    let message3 = message(open(&categories));
    assert!(message3.contains("categories[1] (id 90)"), "{message3}");
}

#[test]
fn what_is_wrong_is_named_by_entry_and_field() {
    let masks =
        |size: Value, counts: Value| json!({"segmentation": {"size": size, "counts": counts}});
    for (change, expected) in [
        (json!({"image_id": 7}), "`image_id` is 7, but `images` has no such id"),
        (json!({"category_id": 1}), "`category_id` is 1, but `categories` has no such id"),
        (json!({"image_id": "8"}), "`image_id` is \"8\", expected a whole number"),
        (json!({"image_id": -8}), "`image_id` is -8, expected a whole number"),
        (json!({"category_id": null}), "`category_id` is missing"),
        (json!({"category_id": 1.5}), "`category_id` is 1.5"),
        (json!({"area": [1, 2]}), "`area` is [1,2], expected a number"),
        (json!({"area": -1}), "`area` is -1, expected a number of square pixels from 0 on"),
        (json!({"iscrowd": "no"}), "`iscrowd` is \"no\", expected 0 or 1"),
        (json!({"iscrowd": 2}), "`iscrowd` is 2, expected 0 or 1"),
        (json!({"bbox": [1, 2, 3]}), "`bbox` is [1,2,3], expected four numbers"),
        (json!({"bbox": "1 2 3 4"}), "`bbox` is \"1 2 3 4\""),
        (json!({"bbox": [30, 30, -20, -20]}), "`bbox` is [30.0, 30.0, -20.0, -20.0], expected"),
        (json!({"bbox": [30, 30, 20, -0.5]}), "negative size"),
        (json!({"bbox": null, "segmentation": null}), "`bbox` is missing"),
        (json!({"segmentation": "circle"}), "`segmentation` is \"circle\""),
        (json!({"segmentation": [1, 2, 3, 4, 5, 6]}), "expected a list of polygons"),
        (json!({"segmentation": [["1", "2"]]}), "expected a list of polygons"),
        (json!({"segmentation": {"counts": [144]}}), "`segmentation.size` is missing"),
        (json!({"segmentation": {"size": [12, 12]}}), "`segmentation.counts` is missing"),
        (masks(json!([12]), json!([144])), "`segmentation.size` is [12]"),
        (masks(json!([12, 12]), json!([5, 3, 200])), "`segmentation.counts` covers 208 pixels"),
        (masks(json!([12, 12]), json!([5, -3, 10])), "`segmentation.counts` is [5,-3,10]"),
        (masks(json!([12, 12]), json!(7)), "`segmentation.counts` is 7"),
        (masks(json!([12, 12]), json!("!!")), "no run-length text: byte 0"),
        (masks(json!([12, 12]), json!("5é")), "no run-length text: byte 1"),
        (masks(json!([12, 12]), json!("5o")), "ends in the middle"),
        (masks(json!([12, 12]), json!("PPPPPPPPPPPPPPP1")), "no run-length text"),
        (
            masks(json!([9, 16]), json!([144])),
            "the mask's `size` is 9×16 (height × width), but image 8 is 12×12",
        ),
    ] {
        let text =
            message(open(&with(json!([annotation(json!({"id": 1})), annotation(change.clone())]))));
        assert!(text.contains("dataset.json: annotations[1] (id 42): "), "{change}: {text}");
        assert!(text.contains(expected), "{change}: {text}");
    }
}

#[test]
fn compressed_runs_beyond_the_mask_are_an_error() {
    // The reader must not write past the mask, whatever the text says: 5, 3, 200 in COCO's spelling.
    let spelled = "53X6";
    let change = json!({"segmentation": {"size": [10, 10], "counts": spelled}});
    let mut file = one(change);
    file["images"][0] = json!({"id": 8, "height": 10, "width": 10});
    let text = message(open(&file));
    assert!(text.contains("annotations[0] (id 42)") && text.contains("208"), "{text}");
}

#[test]
fn ids_of_the_wrong_type_are_named_by_position() {
    for (id, expected) in [
        (json!("42"), "annotations[0]: `id` is \"42\", expected a whole number"),
        (json!(null), "annotations[0]: `id` is missing"),
        (json!(1e300), "annotations[0]: `id` is 1e+300"),
    ] {
        let text = message(open(&one(json!({"id": id}))));
        assert!(text.contains(expected), "{text}");
    }
    for (entry, expected) in [
        (json!(17), "annotations[0]: is not an object"),
        (json!([[]]), "annotations[0]: is not an object"),
    ] {
        let text = message(open(&with(json!([entry]))));
        assert!(text.contains(expected), "{text}");
    }
    let text = one(json!({})).to_string().replacen("\"area\":7.5", "\"area\":7.5,\"area\":8", 1);
    let text = message(open_text(&text, Tolerance::Report));
    assert!(text.contains("annotations[0]: has a field twice"), "{text}");
}

#[test]
fn images_are_checked_too() {
    for (change, expected) in [
        (
            json!({"id": 8, "height": 12, "width": 0}),
            "images[0] (id 8): `width` is 0, expected pixels",
        ),
        (json!({"id": 8, "height": 12}), "images[0] (id 8): `width` is missing"),
        (json!({"id": 8, "height": "12", "width": 12}), "images[0] (id 8): `height` is \"12\""),
        (json!({"id": 8, "file_name": 7}), "images[0] (id 8): `file_name` is 7"),
        (json!({"file_name": "x.png"}), "images[0]: `id` is missing"),
    ] {
        let mut file = with(json!([]));
        file["images"][0] = change;
        let text = message(open(&file));
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn sizes_beyond_32_bits_are_refused() {
    let huge = json!({"segmentation": {"size": [70000, 70000], "counts": [144]}});
    let text = message(open(&one(huge)));
    assert!(text.contains("`segmentation.size` is [70000,70000], expected a size whose"), "{text}");
    let mut file = with(json!([]));
    file["images"][0] = json!({"id": 8, "height": 70000, "width": 70000});
    let text = message(open(&file));
    assert!(text.contains("images[0] (id 8): it has 70000×70000"), "{text}");
}

/// Whatever is in a file, the answer is a data set or an error, and what can be read can be evaluated or says why not.
#[test]
fn damaged_files_never_panic() {
    let runs = json!({"size": [12, 12], "counts": [5, 3, 136]});
    let text = json!({"size": [12, 12], "counts": "53P4"});
    let whole = with(json!([
        annotation(json!({"id": 1})),
        annotation(json!({"id": 2, "segmentation": runs})),
        annotation(json!({"id": 3, "segmentation": text, "iscrowd": 1})),
    ]))
    .to_string();
    let results = json!([
        {"image_id": 8, "category_id": 90, "bbox": [1, 2, 3, 4], "score": 0.5, "segmentation": text},
        {"image_id": 3, "category_id": 0, "bbox": [1, 2, 3, 4], "score": 0.25, "segmentation": text},
    ])
    .to_string();
    let folder = TempDir::new().unwrap();
    let (dataset_path, results_path) = (folder.path().join("d.json"), folder.path().join("r.json"));
    let mut state = 1u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    let mut read = 0;
    for round in 0..4000 {
        let (mut dataset, mut found) = (whole.clone().into_bytes(), results.clone().into_bytes());
        let target = if round % 2 == 0 { &mut dataset } else { &mut found };
        // Numbers changed keep the file JSON and change what it means; anything else tries the parser.
        let numbers = round % 4 < 2;
        for _ in 0..1 + random(3) {
            let mut at = random(target.len());
            while numbers && !target[at].is_ascii_digit() {
                at = random(target.len());
            }
            let with: &[u8] = if numbers { b"0123456789-." } else { b"0-.eE\\\"[]{}:,o~" };
            target[at] = with[random(with.len())];
        }
        std::fs::write(&dataset_path, dataset).unwrap();
        std::fs::write(&results_path, found).unwrap();
        let opened = CocoDataset::open(&dataset_path, Path::new("."));
        if let (Ok(dataset), Ok(results)) = (opened, ResultsFile::read(&results_path)) {
            read +=
                usize::from(evaluate_results(&dataset, &results, MaxDetections::default()).is_ok());
        }
    }
    assert!(read > 400, "most damage is caught before anything is tested: {read}");
}

#[test]
fn files_that_are_no_data_set_say_what_is_missing() {
    let text = message(open(&json!({"images": [], "annotations": []})));
    assert!(text.contains("it has no list `categories`"), "{text}");
    let text = message(open(&json!([1, 2, 3])));
    assert!(text.contains("images, annotations, categories"), "{text}");
    let text = message(open(&json!({"images": 7})));
    assert!(text.contains("`images`") && text.contains("a list of images"), "{text}");
    let text = message(CocoDataset::open(Path::new("/nowhere/x.json"), Path::new(".")));
    assert!(text.contains("/nowhere/x.json"), "{text}");
}

#[test]
fn a_file_cut_off_anywhere_is_an_error_that_says_so() {
    let whole = with(json!([annotation(json!({})), annotation(json!({"id": 1}))])).to_string();
    for end in 0..whole.len() - 1 {
        let text = message(open_text(&whole[..end], Tolerance::Report));
        assert!(text.contains("ends early") || text.contains("no list"), "cut at {end}: {text}");
    }
    let inside = whole.find("\"id\":1").unwrap();
    let text = message(open_text(&whole[..inside], Tolerance::Report));
    assert!(text.contains("annotations[1]: the file ends early, at line 1 column"), "{text}");
    let text = message(open_text(&format!("{whole} x"), Tolerance::Report));
    assert!(text.contains("after the end of the data"), "{text}");
    let results = TempDir::new().unwrap();
    let path = results.path().join("results.json");
    std::fs::write(&path, r#"[{"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "sco"#)
        .unwrap();
    let text = message(ResultsFile::read(&path));
    assert!(text.contains("results[0]: the file ends early"), "{text}");
}

#[test]
fn what_coco_is_loose_about_is_accepted_and_reported() {
    use FindingKind::*;
    let mask = |counts: Value| json!({"segmentation": {"size": [12, 12], "counts": counts}});
    for (change, expected) in [
        (json!({}), vec![]),
        (json!({"iscrowd": null}), vec![]),
        (json!({"bbox": [1, 2, 0, 4]}), vec![EmptyBox]),
        (json!({"segmentation": [[1, 1, 5, 1]]}), vec![ShortPolygon]),
        (json!({"segmentation": [[1, 1, 5, 1, 5], [1, 1, 5, 1, 5, 5]]}), vec![ShortPolygon]),
        (json!({"segmentation": [[1, 1]]}), vec![ShortPolygon]),
        (json!({"segmentation": [[3, 3, 3, 3, 3, 3]]}), vec![FlatPolygon]),
        (json!({"segmentation": [[1, 1, 2, 2, 7, 7]]}), vec![FlatPolygon]),
        (json!({"segmentation": []}), vec![NoPolygon]),
        (mask(json!([5, 3, 10])), vec![ShortRle]),
        (mask(json!([5, 3, 136])), vec![]),
        (json!({"area": null}), vec![MissingArea]),
        (json!({"bbox": null}), vec![MissingBox]),
        (json!({"bbox": [1, 2, 30, 4]}), vec![OutsideImage]),
        (json!({"bbox": [-0.5, 2, 13, 4]}), vec![]),
    ] {
        let file = one(change.clone());
        let dataset = open(&file).unwrap();
        assert_eq!(kinds(&dataset), expected, "{change}");
        for finding in dataset.findings() {
            assert_eq!((finding.count, &finding.first[..]), (1, &[(0, 42)][..]), "{change}");
            assert!(finding.to_string().contains("ids 42"), "{finding}");
        }
        let faults = [EmptyBox, ShortPolygon, FlatPolygon, NoPolygon, ShortRle];
        if expected.iter().any(|kind| faults.contains(kind)) {
            let text = message(strictly(&file));
            assert!(text.contains("annotations[0] (id 42)"), "{change}: {text}");
        } else {
            strictly(&file).unwrap();
        }
    }
}

#[test]
fn findings_list_the_first_and_count_all() {
    let empty: Vec<Value> =
        (0..25).map(|id| annotation(json!({"id": id, "bbox": [1, 2, 0, 4]}))).collect();
    let dataset = open(&with(json!(empty))).unwrap();
    let finding = &dataset.findings()[0];
    assert_eq!((finding.count, finding.first.len()), (25, 10));
    assert!(finding.to_string().contains("ids 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …"), "{finding}");
    let text = message(strictly(&with(json!(empty))));
    assert!(text.contains("25 annotations are like it"), "{text}");
}

#[test]
fn missing_areas_and_boxes_come_from_the_outline() {
    let area = |change: Value| open(&one(change)).unwrap().annotations(8)[0].area;
    // The square (0,0)–(9,9) has 81 pixels by COCO's rule, its box another number.
    let square = json!([[0, 0, 9, 0, 9, 9, 0, 9]]);
    assert_eq!(area(json!({"area": null, "segmentation": square, "bbox": [0, 0, 10, 10]})), 81.0);
    assert_eq!(area(json!({"area": null, "segmentation": null, "bbox": [0, 0, 10, 5]})), 50.0);
    assert_eq!(area(json!({"area": null, "segmentation": [], "bbox": [0, 0, 10, 5]})), 50.0);
    let runs = json!({"size": [12, 12], "counts": [5, 3, 136]});
    assert_eq!(area(json!({"area": null, "segmentation": runs})), 3.0);
    assert_eq!(area(json!({"area": 0, "segmentation": square})), 0.0);
    let bbox = |change: Value| open(&one(change)).unwrap().annotations(8)[0].bbox;
    let two = json!([[1, 2, 4, 2, 4, 6], [3, 1, 9, 1, 9, 3]]);
    assert_eq!(bbox(json!({"bbox": null, "segmentation": two})), [1.0, 1.0, 8.0, 5.0]);
    assert_eq!(bbox(json!({"bbox": null, "segmentation": runs})), [0.0, 5.0, 1.0, 3.0]);
}

#[test]
fn the_form_of_a_mask_says_nothing_about_crowds() {
    let runs = json!({"size": [12, 12], "counts": [5, 3, 136]});
    let single = open(&one(json!({"segmentation": runs, "iscrowd": 0}))).unwrap();
    assert_eq!(single.annotations(8)[0].coverage, Coverage::Single);
    let crowd = open(&one(json!({"iscrowd": 1}))).unwrap();
    assert_eq!(crowd.annotations(8)[0].coverage, Coverage::Crowd);
    assert!(matches!(crowd.annotations(8)[0].segmentation, Segmentation::Polygons(_)));
}

#[test]
fn a_part_can_be_taken() {
    let file =
        with(json!([annotation(json!({"id": 1})), annotation(json!({"id": 2, "image_id": 3})),]));
    let part = open(&file).unwrap().restrict_to(&[8, 8]).unwrap();
    assert_eq!((part.images().len(), part.all_annotations().len()), (1, 1));
    assert_eq!(part.annotations(8)[0].id, 1);
    assert!(part.annotations(3).is_empty());
    let first = open(&file).unwrap().first(1);
    assert_eq!((first.images()[0].id, first.annotations(3)[0].id), (3, 2));
    assert_eq!(open(&file).unwrap().first(9).images().len(), 2);
    let text = message(open(&file).unwrap().restrict_to(&[8, 1, 2]));
    assert!(text.contains("2 of the 3 ids") && text.contains("1, 2"), "{text}");
    // Results for the rest are passed over, results for neither are an error.
    let folder = TempDir::new().unwrap();
    let results = |image: u64| {
        let path = folder.path().join("results.json");
        let entry =
            json!([{"image_id": image, "category_id": 90, "bbox": [1, 2, 3, 4], "score": 1}]);
        std::fs::write(&path, entry.to_string()).unwrap();
        ResultsFile::read(&path).unwrap()
    };
    let limits = MaxDetections::default();
    assert_eq!(evaluate_results(&part, &results(3), limits).unwrap().detections, 0);
    assert_eq!(evaluate_results(&part, &results(8), limits).unwrap().detections, 1);
    assert!(message(evaluate_results(&part, &results(77), limits)).contains("first ids: 77"));
}

#[test]
fn the_sample_annotations_are_read_whole() {
    let Some(data) = std::env::var_os("CANDLE_DETECTION_DATA").map(PathBuf::from) else {
        println!("skipped: CANDLE_DETECTION_DATA is not set");
        return;
    };
    let samples = data.join("coco-samples");
    for (name, images) in [
        ("instances_val2017.json", 79),
        ("person_keypoints_val2017.json", 79),
        ("instances_val2017-png.json", 12),
    ] {
        let path = samples.join("annotations").join(name);
        let raw: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let dataset = CocoDataset::open(&path, &samples.join("val2017")).unwrap();
        assert_eq!(dataset.images().len(), images, "{name}");
        let annotations = raw["annotations"].as_array().unwrap();
        assert_eq!(dataset.all_annotations().len(), annotations.len(), "{name}");
        for entry in annotations {
            let of_image = dataset.annotations(entry["image_id"].as_u64().unwrap());
            let read = of_image.iter().find(|a| Some(a.id) == entry["id"].as_u64()).unwrap();
            assert_eq!(
                json!(read.bbox).to_string(),
                json!(
                    entry["bbox"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .map(|v| v.as_f64().unwrap())
                        .collect::<Vec<_>>()
                )
                .to_string()
            );
            assert_eq!(Some(read.area), entry["area"].as_f64());
        }
    }
}
