//! The example `train`, as people run it: interrupted and resumed, with other classes, with losses that explode.
#![cfg(all(feature = "train", feature = "eval"))]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use candle_detection::config::ModelConfig;
use candle_detection::layers::Norm;
use candle_detection::train::log::CsvLog;
use candle_detection::{Detector, ImageInput};
use common::{example, fixtures};
use tempfile::TempDir;

/// Drawn scenes, small ones: `train` and `val`.
fn scenes() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, images, seed) in [("train", "12", "1"), ("val", "3", "2")] {
        let made = Command::new(example("make_scenes"))
            .args(["--images", images, "--size", "96x80", "--seed", seed, "--out"])
            .arg(folder.path().join(name))
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    folder
}

/// A narrow model with weights for four classes, on data of ten.
fn train(data: &Path, out: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(example("train"));
    command
        .arg("--train")
        .arg(data.join("train"))
        .arg("--val")
        .arg(data.join("val"))
        .arg("--model")
        .arg(fixtures().join("tiny_r18.toml"))
        .arg("--out")
        .arg(out)
        .args(["--batch-size", "2", "--seed", "5", "--threads", "2"])
        .args(flags)
        .env_remove("RUST_BACKTRACE")
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

fn weights() -> String {
    fixtures().join("tiny_r18.safetensors").to_str().unwrap().to_owned()
}

fn run(command: &mut Command) -> (bool, String) {
    let Output { status, stderr, .. } = command.output().unwrap();
    (status.success(), String::from_utf8(stderr).unwrap())
}

fn read(path: PathBuf) -> Vec<u8> {
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Waits until a run has a snapshot of a step, then kills it.
fn kill_after(mut child: Child, out: &Path, step: u64) {
    let snapshot = out.join(format!("step-{step:010}"));
    let begun = Instant::now();
    while !snapshot.is_dir() {
        assert!(child.try_wait().unwrap().is_none(), "the run ended before step {step}");
        assert!(begun.elapsed() < Duration::from_secs(120), "no snapshot of step {step}");
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success(), "the run was over before it was killed");
}

/// Columns of the log but the speed, which is another each time.
fn figures(path: &Path) -> Vec<(u64, Vec<Option<f64>>)> {
    let (columns, rows) = CsvLog::read(path).unwrap();
    let speed = columns.iter().position(|column| column == "images_per_second");
    let kept = |values: Vec<Option<f64>>| {
        let others = values.into_iter().enumerate().filter(|(at, _)| Some(*at) != speed);
        others.map(|(_, value)| value).collect()
    };
    rows.into_iter().map(|row| (row.step, kept(row.values))).collect()
}

/// Killed twice without warning, a run ends with the same file, byte for byte, and its logs have no gap.
#[test]
fn a_killed_run_goes_on_as_if_nothing_had_happened() {
    let data = scenes();
    let folder = tempfile::tempdir().unwrap();
    let (unbroken, broken) = (folder.path().join("unbroken"), folder.path().join("broken"));
    let weights = weights();
    let flags = [
        "--weights",
        &weights,
        "--epochs",
        "4",
        "--lr",
        "0.002",
        "--save-every",
        "1",
        "--keep",
        "2",
        "--log-every",
        "1",
        "--ema",
        "0.9",
        "--clip",
        "5",
        "--accumulate",
        "2",
        "--color-jitter",
        "--large-scale-jitter",
        "96",
        "--jitter-scale",
        "0.5,2",
        "--copy-paste",
    ];
    let (success, lines) = run(&mut train(data.path(), &unbroken, &flags));
    assert!(success, "{lines}");
    assert!(lines.contains("the number of classes differs"), "{lines}");
    assert!(lines.contains("roi_heads.box_predictor.cls_score.weight"), "{lines}");

    let resumed: Vec<&str> = flags.iter().copied().chain(["--resume"]).collect();
    kill_after(train(data.path(), &broken, &flags).spawn().unwrap(), &broken, 2);
    kill_after(train(data.path(), &broken, &resumed).spawn().unwrap(), &broken, 7);
    let (success, lines) = run(&mut train(data.path(), &broken, &resumed));
    assert!(success, "{lines}");
    assert!(lines.contains("going on after"), "{lines}");

    for file in ["last.safetensors", "best.safetensors", "evaluation.csv", "model.toml"] {
        assert!(read(unbroken.join(file)) == read(broken.join(file)), "{file} differs");
    }
    let figures = [&unbroken, &broken].map(|run| figures(&run.join("log.csv")));
    assert_eq!(
        figures[0].iter().map(|row| row.0).collect::<Vec<_>>(),
        (1..=12).collect::<Vec<_>>()
    );
    assert_eq!(figures[0], figures[1]);
    let boards = |run: &Path| std::fs::read_dir(run.join("tensorboard")).unwrap().count();
    assert_eq!(boards(&unbroken), 1);
    let summary = String::from_utf8(read(broken.join("summary.svg"))).unwrap();
    assert!(summary.starts_with("<svg") && summary.contains("average precision"), "{summary}");

    // Finished, resuming it again changes nothing.
    let before = read(broken.join("last.safetensors"));
    let (success, lines) = run(&mut train(data.path(), &broken, &resumed));
    assert!(success, "{lines}");
    assert!(read(broken.join("last.safetensors")) == before);
}

/// What a run leaves behind detects.
#[test]
fn the_files_of_a_run_make_a_detector() {
    let data = scenes();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let flags = [
        "--from-scratch",
        "--iterations",
        "2",
        "--lr",
        "0.001",
        "--multi-scale",
        "64,80",
        "--min-size",
        "72",
        "--max-size",
        "200",
    ];
    let (success, lines) = run(&mut train(data.path(), &out, &flags));
    assert!(success, "{lines}");
    let mut config = ModelConfig::load(&out.join("model.toml")).unwrap();
    assert_eq!(config.num_classes, 11);
    // The fixture's norms are fixed, to the statistics of weights that this run did not start from.
    assert_eq!(config.body.as_resnet_mut().unwrap().norm, Norm::BatchNorm);
    assert_eq!((config.image.min_size, config.image.max_size), (72, 200));
    assert_eq!(config.label_map().unwrap().name(10), Some("fish"));
    let detector =
        Detector::from_files(&out.join("model.toml"), &out.join("last.safetensors")).unwrap();
    let image = ImageInput::open(&data.path().join("val/images/000001.jpg")).unwrap();
    detector.detect(&image).unwrap();
}

/// The images at fault are named, the state is kept, and the snapshots are left alone.
#[test]
fn losses_that_are_not_finite_end_a_run() {
    let data = scenes();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let flags = [
        "--from-scratch",
        "--iterations",
        "9",
        "--lr",
        "1e25",
        "--warm-up",
        "0",
        "--save-every",
        "1",
    ];
    let (success, lines) = run(&mut train(data.path(), &out, &flags));
    assert!(!success, "{lines}");
    assert!(lines.contains("not finite (images [") && lines.contains("--lr"), "{lines}");
    assert!(lines.contains(out.join("failed").to_str().unwrap()), "{lines}");
    let states = std::fs::read_dir(out.join("failed")).unwrap().count();
    assert_eq!(states, 1, "{lines}");
    assert!(!out.join("last.safetensors").exists());
}

#[test]
fn a_run_is_not_mixed_with_another() {
    let data = scenes();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let flags = ["--from-scratch", "--iterations", "1"];
    let (success, lines) = run(&mut train(data.path(), &out, &flags));
    assert!(success, "{lines}");
    let (success, lines) = run(&mut train(data.path(), &out, &flags));
    assert!(!success && lines.contains("--resume"), "{lines}");
    let other = ["--from-scratch", "--iterations", "2", "--resume"];
    let (success, lines) = run(&mut train(data.path(), &out, &other));
    assert!(!success && lines.contains("iterations"), "{lines}");
    let misfit = ["--weights", "/nowhere.safetensors", "--iterations", "1"];
    let (success, lines) = run(&mut train(data.path(), &folder.path().join("new"), &misfit));
    assert!(!success && lines.contains("/nowhere.safetensors"), "{lines}");
}

/// What torchrun sets is not passed over in silence where processes can't train together.
#[test]
fn several_processes_without_gpus_are_refused() {
    let data = scenes();
    let out = data.path().join("run");
    let mut command = train(data.path(), &out, &["--epochs", "1"]);
    let launched = [("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")];
    let (success, message) = run(command.envs(launched));
    assert!(!success);
    let cure = if cfg!(feature = "nccl") { "--device cuda" } else { "--features cudnn,nccl" };
    assert!(message.contains("2 processes") && message.contains(cure), "{message}");
    assert!(!out.exists());
}
