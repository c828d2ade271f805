//! The example `detect`, as people run it.
#![cfg(feature = "visualize")]

mod common;

use std::path::Path;
use std::process::{Command, Output};

use candle_detection::structures::{ImageSize, Rle};
use common::{Fixture, example, fixtures};
use serde_json::Value;
use tempfile::TempDir;

/// A folder with the two images of the narrow model, named as COCO names its files, and a file that is no image.
fn photos() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let images = Fixture::load("tiny_r18").images();
    images[0].to_rgb8().unwrap().save(folder.path().join("COCO_val_000000000042.png")).unwrap();
    images[1].to_rgb8().unwrap().save(folder.path().join("holiday photo.png")).unwrap();
    std::fs::write(folder.path().join("broken.jpg"), "no image").unwrap();
    folder
}

fn detect(arguments: &[&str]) -> Command {
    let mut command = Command::new(example("detect"));
    command
        .arg("--model")
        .arg(fixtures().join("tiny_r18.toml"))
        .arg("--weights")
        .arg(fixtures().join("tiny_r18.safetensors"))
        .args(arguments)
        .env_remove("RUST_BACKTRACE");
    command
}

fn run(command: &mut Command) -> (bool, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.success(), text(stdout), text(stderr))
}

fn read(path: &Path) -> Vec<Value> {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_bad_image_is_reported_and_nothing_else_is_lost() {
    let photos = photos();
    let out = tempfile::tempdir().unwrap();
    let json = out.path().join("results.json");
    let [folder, drawn, file] =
        [photos.path(), out.path(), &json].map(|path| path.to_str().unwrap().to_owned());
    let arguments =
        ["--score-threshold", "0.05", "--batch", "2", "--output", &drawn, "--json", &file, &folder];
    let (success, lines, errors) = run(&mut detect(&arguments));
    assert!(!success, "one image is bad, so the exit status is 1");
    assert!(errors.contains("broken.jpg") && errors.contains("1 images could not"), "{errors}");
    assert_eq!(lines.lines().count(), 2, "{lines}");
    for name in ["COCO_val_000000000042.png", "holiday photo.png"] {
        assert!(image::open(out.path().join(name)).is_ok(), "{name}");
    }

    let results = read(&json);
    let count = |id: Value| results.iter().filter(|entry| entry["image_id"] == id).count();
    assert_eq!(count(Value::from(42)), 7, "the number in the file's name");
    assert_eq!(count(Value::from("holiday photo.png")), 14, "else the name");
    for entry in &results {
        let size = &entry["segmentation"]["size"];
        let side = |i: usize| size[i].as_u64().unwrap() as usize;
        let size = ImageSize { height: side(0), width: side(1) };
        let counts = entry["segmentation"]["counts"].as_str().unwrap();
        Rle::from_coco_string(counts, size).unwrap();
        assert_eq!(entry["bbox"].as_array().unwrap().len(), 4);
        assert!(entry["score"].as_f64().unwrap() > 0.05);
    }
}

#[test]
fn globs_and_thresholds() {
    let photos = photos();
    let glob = photos.path().join("*.png");
    let out = photos.path().join("drawn");
    let arguments = ["--score-threshold", "0.99", "--output", out.to_str().unwrap()];
    let (success, lines, errors) = run(detect(&arguments).arg(&glob));
    assert!(success, "{errors}");
    assert_eq!(lines.lines().filter(|line| line.ends_with("nothing found")).count(), 2, "{lines}");
}

/// After every image the results are whole: here only some of many are done when the process is killed.
#[test]
fn results_are_valid_whenever_it_is_killed() {
    let photos = photos();
    std::fs::remove_file(photos.path().join("broken.jpg")).unwrap();
    for copy in 0..60 {
        let name = photos.path().join(format!("copy-{copy}.png"));
        std::fs::copy(photos.path().join("holiday photo.png"), name).unwrap();
    }
    let json = photos.path().join("results.json");
    let out = photos.path().join("drawn");
    let mut command = detect(&["--score-threshold", "0.05", "--output", out.to_str().unwrap()]);
    command.arg("--json").arg(&json).arg(photos.path());
    let mut child = command
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let started = std::time::Instant::now();
    let written = |path: &Path| std::fs::metadata(path).map_or(0, |data| data.len());
    while written(&json) < 2000 && started.elapsed().as_secs() < 60 {
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!read(&json).is_empty());
}

#[test]
fn what_is_wrong_is_said() {
    let photos = photos();
    let out = photos.path().join("drawn");
    let refused = |arguments: &[&str]| {
        let (success, _, errors) =
            run(detect(&["--output", out.to_str().unwrap()]).args(arguments));
        assert!(!success && !errors.contains("panicked"), "{arguments:?}: {errors}");
        errors
    };
    let folder = photos.path().to_str().unwrap();
    assert!(refused(&["--device", "cuda", folder]).contains("use cpu"));
    assert!(refused(&["--batch", "0", folder]).contains("--batch is 0"));
    assert!(refused(&["no such photo.jpg"]).contains("no such photo.jpg"));
    assert!(refused(&["*.nothing"]).contains("*.nothing matches no file"));
    assert!(refused(&["--min-size", "0", folder]).contains("image.min_size"));
}
