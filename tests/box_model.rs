//! The model that comes along: its file is the one of the manifest, and it does on new scenes what is claimed.
#![cfg(all(feature = "eval", feature = "visualize"))]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use candle_detection::checkpoint::sha256;
use common::example;
use serde_json::Value;

/// Scenes of the figures in the manifest; neither training nor the choice of its best weights has seen this seed.
const SCENES: &str = "200";
const SEED: &str = "3";

fn weights() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("weights")
}

/// Entry of the only file in the manifest.
fn entry() -> toml::Table {
    let text = std::fs::read_to_string(weights().join("manifest.toml")).unwrap();
    let manifest: toml::Table = text.parse().unwrap();
    let files = manifest["file"].as_array().unwrap();
    assert_eq!(files.len(), 1);
    files[0].as_table().unwrap().clone()
}

fn file() -> PathBuf {
    weights().join(entry()["name"].as_str().unwrap())
}

fn succeed(command: &mut Command) -> String {
    let output = command.env_remove("CANDLE_DETECTION_ISA").output().unwrap();
    let (lines, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {errors}");
    lines.into_owned()
}

#[test]
fn the_file_is_that_of_the_manifest() {
    let entry = entry();
    assert_eq!(sha256(&file()).unwrap(), entry["sha256"].as_str().unwrap());
    let bytes = std::fs::metadata(file()).unwrap().len();
    assert_eq!(bytes, entry["bytes"].as_integer().unwrap() as u64);
    assert!(bytes <= 10_000_000, "{bytes}");
}

#[test]
fn scenes_it_has_not_seen_give_the_figures_of_the_manifest() {
    let folder = tempfile::tempdir().unwrap();
    let scenes = folder.path().join("scenes");
    let figures = folder.path().join("figures.json");
    succeed(
        Command::new(example("make_scenes"))
            .args(["--images", SCENES, "--seed", SEED, "--out"])
            .arg(&scenes),
    );
    succeed(
        Command::new(example("evaluate"))
            .args(["--model", "maskrcnn_shapes", "--weights"])
            .arg(file())
            .arg("--annotations")
            .arg(scenes.join("annotations.json"))
            .arg("--images")
            .arg(scenes.join("images"))
            .arg("--json")
            .arg(&figures),
    );
    let found: Value = serde_json::from_slice(&std::fs::read(figures).unwrap()).unwrap();
    for (kind, key) in [("bbox", "box_ap"), ("segm", "mask_ap")] {
        let found = found[kind]["ap"].as_f64().unwrap();
        let claimed = entry()[key].as_float().unwrap();
        // Scenes are drawn with the functions of this machine's C library.
        assert!((found - claimed).abs() < 0.01, "{key}: {found}, the manifest says {claimed}");
    }
    assert!(entry()["mask_ap"].as_float().unwrap() >= 0.8);
}

/// What somebody sees who runs the example without arguments.
#[test]
fn the_scene_is_found_without_arguments() {
    let folder = tempfile::tempdir().unwrap();
    let lines = succeed(Command::new(example("detect")).current_dir(folder.path()));
    assert!(lines.contains("scene.jpg → "), "{lines}");
    assert!(folder.path().join("detections/scene.png").is_file());
    assert!(lines.matches(" 0.9").count() + lines.matches(" 1.00").count() >= 3, "{lines}");
}
