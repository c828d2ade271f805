//! The example `evaluate`, as people run it.
#![cfg(feature = "eval")]

mod common;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use candle_detection::eval::{self, CocoDataset, Journal};
use candle_detection::{Detector, Silent};
use image::{Rgb, RgbImage};
use serde_json::{Value, json};
use tempfile::TempDir;

fn evaluate(arguments: &[&str]) -> Command {
    let mut command = Command::new(common::example("evaluate"));
    command.args(arguments);
    for name in ["SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "JOB_COMPLETION_INDEX"] {
        command.env_remove(name);
    }
    command
}

fn succeed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{command:?}\n{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

fn fail(command: &mut Command) -> String {
    let Output { status, stderr, .. } = command.output().unwrap();
    let text = String::from_utf8(stderr).unwrap();
    assert!(!status.success(), "{command:?}");
    assert!(!text.contains("panicked"), "{text}");
    text
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// A folder with files, addressed by name.
struct Bench(TempDir);

impl Bench {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn write(&self, name: &str, value: &Value) -> String {
        let path = self.path(name);
        std::fs::write(&path, value.to_string()).unwrap();
        path
    }

    /// A golden case: annotations and results.
    fn golden(&self, name: &str) -> (String, String, Value) {
        let cases = read(&common::fixtures().join("eval/golden.json"));
        let case = cases.as_array().unwrap().iter().find(|case| case["name"] == name).unwrap();
        let dataset = self.write("dataset.json", &case["dataset"]);
        (dataset, self.write("results.json", &case["results"]), case["expected"].clone())
    }

    /// Pictures for the narrow model of the fixtures.
    fn pictures(&self, count: u64) -> String {
        let mut images = Vec::new();
        let mut annotations = Vec::new();
        for n in 0..count {
            let (id, width, height) = (5 * n + 2, 48 + (n % 3) as u32 * 9, 40 + (n % 4) as u32 * 7);
            let name = format!("{id}.png");
            let paint = |x: u32, y: u32| Rgb([(x * 5) as u8, (y * n as u32) as u8, (n * 11) as u8]);
            RgbImage::from_fn(width, height, paint).save(self.0.path().join(&name)).unwrap();
            images.push(json!({"id": id, "file_name": name, "height": height, "width": width}));
            annotations.push(json!({
                "id": n, "image_id": id, "category_id": 1 + n % 2, "bbox": [4, 4, 30, 24], "area": 720, "iscrowd": 0,
                "segmentation": [[4, 4, 34, 4, 34, 28, 4, 28]],
            }));
        }
        let categories = json!([{"id": 1, "name": "one"}, {"id": 2, "name": "two"}]);
        let dataset =
            json!({"images": images, "annotations": annotations, "categories": categories});
        self.write("dataset.json", &dataset)
    }

    /// Runs the fixtures' narrow model.
    fn model(&self, extra: &[&str]) -> Command {
        let fixture = |name: &str| common::fixtures().join(name).display().to_string();
        let mut command = evaluate(&[]);
        command.args(["--model", &fixture("tiny_r18.toml")]);
        command.args(["--weights", &fixture("tiny_r18.safetensors")]);
        command.args(["--annotations", &self.path("dataset.json"), "--images", &self.path("")]);
        command.args(extra);
        command
    }
}

#[test]
fn figures_of_a_results_file_are_printed_and_written() {
    let bench = Bench::new();
    let (dataset, results, expected) = bench.golden("generated_1");
    let out = bench.path("figures.json");
    let arguments = ["--annotations", &dataset, "--from-results", &results, "--json", &out];
    let table = succeed(&mut evaluate(&arguments));
    let ap = expected["bbox"]["ap"].as_f64().unwrap();
    let line =
        format!("Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = {ap:.3}");
    assert!(table.contains(&line), "{table}");
    let figures = read(Path::new(&out));
    for kind in ["bbox", "segm"] {
        for (name, figure) in figures[kind].as_object().unwrap() {
            let expected = &expected[kind][name];
            let pairs: Vec<(&Value, &Value)> = match figure.as_object() {
                Some(map) => map.iter().map(|(id, ap)| (ap, &expected[id])).collect(),
                None => vec![(figure, expected)],
            };
            assert!(!pairs.is_empty());
            for (found, expected) in pairs {
                let difference = found.as_f64().unwrap() - expected.as_f64().unwrap();
                assert!(difference.abs() <= 1e-9, "{kind} {name}: {found}, {expected}");
            }
        }
    }
}

#[test]
fn limits_can_be_chosen() {
    let bench = Bench::new();
    let (dataset, results, expected) = bench.golden("custom_limits");
    let out = bench.path("figures.json");
    let arguments = ["--annotations", &dataset, "--from-results", &results, "--json", &out];
    let table = succeed(evaluate(&arguments).args(["--max-dets", "1,10,300"]));
    assert!(table.contains("maxDets=300 ] = 1.000"), "{table}");
    assert_eq!(read(Path::new(&out))["bbox"]["ar10"], expected["bbox"]["ar10"]);
    let wrong = fail(evaluate(&arguments).args(["--max-dets", "1,10"]));
    assert!(wrong.contains("three limits"), "{wrong}");
}

#[test]
fn a_part_of_the_images_can_be_chosen() {
    let bench = Bench::new();
    let (dataset, results, _) = bench.golden("part_of_the_images");
    let ap = |extra: &[&str]| {
        let out = bench.path("figures.json");
        let arguments = ["--annotations", &dataset, "--from-results", &results, "--json", &out];
        succeed(evaluate(&arguments).args(extra));
        read(Path::new(&out))["bbox"]["ap"].as_f64().unwrap()
    };
    let ids = bench.write("ids.json", &json!([1, 2]));
    assert_eq!((ap(&["--ids", &ids]), ap(&["--limit", "2"])), (1.0, 1.0));
    // The false alarm with the best score lies in the third image.
    assert!(ap(&[]) < 1.0);
}

#[test]
fn what_is_wrong_is_said_and_the_exit_code_tells() {
    let bench = Bench::new();
    let (dataset, results, _) = bench.golden("false_positive_on_empty_image");
    let from = |annotations: &str, results: &str| {
        fail(&mut evaluate(&["--annotations", annotations, "--from-results", results]))
    };
    let missing = bench.path("missing.json");
    assert!(from(&missing, &results).contains("missing.json"));
    assert!(from(&dataset, &missing).contains("missing.json"));
    let whole = std::fs::read(&dataset).unwrap();
    let cut = bench.path("cut.json");
    std::fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let text = from(&cut, &results);
    assert!(text.contains("cut.json") && text.contains("the file ends early"), "{text}");
    let foreign = json!([{"image_id": 77, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5}]);
    let text = from(&dataset, &bench.write("foreign.json", &foreign));
    assert!(text.contains("foreign.json") && text.contains("the first ids: 77"), "{text}");
    let ids = bench.write("ids.json", &json!([1, 500]));
    let arguments = ["--annotations", &dataset, "--from-results", &results, "--ids", &ids];
    assert!(fail(&mut evaluate(&arguments)).contains("500"));
    let nothing = fail(&mut evaluate(&["--annotations", &dataset, "--merge", &bench.path("")]));
    assert!(nothing.contains("has no `*.journal`"), "{nothing}");
    let no_folder = fail(&mut evaluate(&["--annotations", &dataset]));
    assert!(no_folder.contains("--images DIR is needed"), "{no_folder}");
    let arguments = ["--annotations", &dataset, "--images", &bench.path("")];
    let no_files = fail(&mut evaluate(&arguments));
    assert!(no_files.contains("2 of 2 files are not in"), "{no_files}");
    let no_results = fail(evaluate(&arguments).args(["--shard", "0/3"]));
    assert!(no_results.contains("--results"), "{no_results}");
    bench.pictures(1);
    let in_array = fail(
        bench.model(&[]).envs([("SLURM_ARRAY_TASK_ID", "1"), ("SLURM_ARRAY_TASK_COUNT", "2")]),
    );
    assert!(in_array.contains("shard 1/2 needs --results"), "{in_array}");
    let device = fail(&mut bench.model(&["--device", "abacus"]));
    assert!(device.contains("`abacus`: expected cpu"), "{device}");
}

#[test]
fn a_killed_run_goes_on_to_the_same_file() {
    let bench = Bench::new();
    bench.pictures(150);
    let (unbroken, killed) = (bench.path("unbroken.json"), bench.path("killed.json"));
    succeed(&mut bench.model(&["--results", &unbroken, "--json", &bench.path("a.json")]));
    let journal = Journal::path_of(Path::new(&killed));
    let lines = || {
        let bytes = std::fs::read(&journal).unwrap_or_default();
        bytes.iter().filter(|&&byte| byte == b'\n').count()
    };
    let mut command = bench.model(&["--results", &killed]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    while lines() < 20 && child.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(120), "the run doesn't get on");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success(), "killed before its end");
    assert!(!Path::new(&killed).exists());
    let anew = fail(&mut bench.model(&["--results", &killed]));
    assert!(anew.contains("an unfinished run"), "{anew}");
    let other = fail(&mut bench.model(&["--results", &killed, "--resume", "--min-size", "64"]));
    assert!(other.contains("it cannot go on with"), "{other}");
    let limited = fail(&mut bench.model(&["--results", &killed, "--resume", "--limit", "20"]));
    assert!(limited.contains("setting `images`"), "{limited}");
    succeed(&mut bench.model(&["--results", &killed, "--resume", "--json", &bench.path("b.json")]));
    assert_eq!(std::fs::read(&killed).unwrap(), std::fs::read(&unbroken).unwrap());
    assert_eq!(read(Path::new(&bench.path("a.json"))), read(Path::new(&bench.path("b.json"))));
    assert!(read(Path::new(&killed)).as_array().unwrap().len() > 20, "the model finds something");
}

#[test]
fn shards_put_together_give_the_same_figures() {
    let bench = Bench::new();
    let dataset = bench.pictures(20);
    let (whole, figures) = (bench.path("whole.json"), bench.path("whole-figures.json"));
    succeed(&mut bench.model(&["--results", &whole, "--json", &figures, "--batch", "2"]));
    let parts = bench.path("parts");
    std::fs::create_dir(&parts).unwrap();
    for index in 0..3 {
        let out = format!("{parts}/{index}.json");
        let mut command = bench.model(&["--results", &out, "--batch", "2"]);
        match index {
            // By hand, by Slurm from 1 on, by Kubernetes.
            0 => command.args(["--shard", "0/3"]),
            1 => command.envs([
                ("SLURM_ARRAY_TASK_ID", "2"),
                ("SLURM_ARRAY_TASK_COUNT", "3"),
                ("SLURM_ARRAY_TASK_MIN", "1"),
            ]),
            _ => command.envs([("JOB_COMPLETION_INDEX", "2"), ("JOB_COMPLETIONS", "3")]),
        };
        let merge = ["--annotations", &dataset, "--merge", &parts];
        let early = fail(&mut evaluate(&merge));
        assert!(early.contains(if index == 0 { "*.journal" } else { "2/3" }), "{early}");
        succeed(&mut command);
    }
    let (together, merged) = (bench.path("together.json"), bench.path("merged-figures.json"));
    let merge = ["--annotations", &dataset, "--merge", &parts, "--results", &together];
    succeed(evaluate(&merge).args(["--json", &merged]));
    assert_eq!(std::fs::read(&together).unwrap(), std::fs::read(&whole).unwrap());
    assert_eq!(std::fs::read(&merged).unwrap(), std::fs::read(&figures).unwrap());
    let other = std::fs::read_to_string(&dataset).unwrap().replacen("720", "721", 1);
    std::fs::write(&dataset, other).unwrap();
    let other = fail(&mut evaluate(&merge));
    assert!(other.contains("the shards were made with other annotations"), "{other}");
}

#[test]
fn the_library_and_the_example_agree() {
    let bench = Bench::new();
    let dataset = bench.pictures(9);
    let figures = bench.path("figures.json");
    succeed(&mut bench.model(&["--json", &figures]));
    let fixture = |name: &str| common::fixtures().join(name);
    let detector =
        Detector::from_files(&fixture("tiny_r18.toml"), &fixture("tiny_r18.safetensors")).unwrap();
    let dataset = CocoDataset::open(Path::new(&dataset), bench.0.path()).unwrap();
    let report = eval::evaluate(&detector, &dataset, &Silent).unwrap();
    assert_eq!(serde_json::to_value(&report).unwrap(), read(Path::new(&figures)));
}

#[test]
fn the_report_is_one_page_that_needs_no_network() {
    let bench = Bench::new();
    let dataset = bench.pictures(9);
    let mut named = read(Path::new(&dataset));
    named["categories"][0]["name"] = json!("<script>alert(1)</script>");
    std::fs::write(&dataset, named.to_string()).unwrap();
    succeed(&mut bench.model(&["--report", &bench.path("report")]));
    let page = std::fs::read_to_string(bench.path("report/index.html")).unwrap();
    for part in ["Figures", "Precision over recall", "Scores and sizes", "Categories", "Confusion"]
    {
        assert!(page.contains(&format!("<h2>{part}</h2>")), "{part}");
    }
    assert!(page.contains("data:image/jpeg;base64,"));
    assert!(!page.contains("alert(1)</script>") && page.contains("&lt;script&gt;alert(1)"));
    for outside in ["http:", "https:", "src=", "@import", "url(", "{{"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert_eq!(std::fs::read_dir(bench.path("report")).unwrap().count(), 1);
    // Without the pictures the page is made all the same, and says what is missing.
    let empty = json!([]);
    let results = bench.write("results.json", &empty);
    let arguments = ["--annotations", &dataset, "--from-results", &results];
    succeed(evaluate(&arguments).args(["--report", &bench.path("bare"), "--images", "/nowhere"]));
    let page = std::fs::read_to_string(bench.path("bare/index.html")).unwrap();
    assert!(page.contains("Not shown: cannot access /nowhere"));
}

#[test]
fn the_sample_weights_reach_the_references_figures() {
    let Some(data) = common::sample_data("the_sample_weights_reach_the_references_figures") else {
        return;
    };
    let path = |name: &str| data.join(name).display().to_string();
    let bench = Bench::new();
    let out = bench.path("figures.json");
    succeed(&mut evaluate(&[
        "--weights",
        &path("weights/maskrcnn_coco12.safetensors"),
        "--annotations",
        &path("coco-samples/annotations/instances_val2017-png.json"),
        "--images",
        &path("coco-samples/val2017-png"),
        "--min-size",
        "256",
        "--max-size",
        "448",
        "--json",
        &out,
    ]));
    let figures = read(Path::new(&out));
    let reference = read(&data.join("weights/maskrcnn_coco12.reference-ap.json"));
    for kind in ["bbox", "segm"] {
        let reference = reference["photos_12"][kind].as_array().unwrap();
        for (name, expected) in eval::CocoMetrics::NAMES.iter().zip(reference) {
            let (found, expected) =
                (figures[kind][name].as_f64().unwrap(), expected.as_f64().unwrap());
            assert!((found - expected).abs() <= 1e-3, "{kind} {name}: {found}, {expected}");
        }
    }
}
