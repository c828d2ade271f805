//! A checkpoint of a training run, loaded by torchvision.
#![cfg(feature = "train")]

mod common;

use std::process::Command;
use std::sync::Arc;

use candle_core::Device;
use candle_detection::checkpoint::{Checkpoint, Loading};
use candle_detection::config::ModelConfig;
use candle_detection::train::parallel::Alone;
use candle_detection::train::{
    Course, Ending, Flow, Freezing, Milestone, Network, Observer, ParameterGroups, RunFolder,
    RunLength, Schedule, StepReport, Trainer, TrainerOptions, UpdateRule, WarmUp,
};
use candle_detection::{Detector, Result};
use common::rectangles::{PICTURES, Rectangles};
use common::{fixtures, largest_difference};

/// A Python interpreter with torchvision, Pillow and safetensors.
const PYTHON: &str = "CANDLE_DETECTION_PYTHON";

struct Nobody;

impl Observer for Nobody {
    fn step(&mut self, _: &StepReport) -> Result<Flow> {
        Ok(Flow::Continue)
    }

    fn evaluate(&mut self, _: &Milestone<'_>) -> Result<Option<f64>> {
        Ok(None)
    }
}

fn trained_network(folder: &RunFolder) {
    let config = ModelConfig::load(&fixtures().join("tiny_r18.toml")).unwrap();
    let checkpoint = Checkpoint::open(&fixtures().join("tiny_r18.safetensors")).unwrap();
    let freezing = Freezing::backbone(&config, 5);
    let (network, _) =
        Network::from_checkpoint(&config, checkpoint, Loading::Strict, freezing, &Device::Cpu)
            .unwrap();
    let options = TrainerOptions {
        length: RunLength::Updates(8),
        seed: 3,
        schedule: Schedule {
            rate: 1e-3,
            warm_up: WarmUp { steps: 0, start: 1.0 },
            course: Course::Constant,
        },
        rule: UpdateRule::ADAM_W,
        groups: ParameterGroups::uniform(1e-4),
        clip_norm: None,
        batches_per_update: 1,
        average: None,
        snapshot_every: None,
        evaluate_every: 1,
        report_every: 1,
    };
    let mut trainer =
        Trainer::new(network, options, Some(folder.clone()), Arc::new(Alone)).unwrap();
    let ending = trainer.run(&mut Rectangles::new(2), &mut Nobody).unwrap();
    assert_eq!(ending, Ending::Complete);
}

#[test]
fn torchvision_detects_the_same_with_a_checkpoint() {
    let Some(python) = std::env::var_os(PYTHON).filter(|python| !python.is_empty()) else {
        eprintln!("skipped: torchvision_detects_the_same_with_a_checkpoint: {PYTHON} is not set");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let run = RunFolder::new(folder.path(), 1);
    trained_network(&run);
    let weights = run.snapshots().unwrap().pop().unwrap().model();
    let out = folder.path().join("found.safetensors");
    let mut command = Command::new(python);
    command.arg(fixtures().join("detect_with_torchvision.py")).arg(&weights).arg(&out);
    let mut pictures = Vec::new();
    for index in 0..PICTURES {
        let (picture, _) = Rectangles::picture(index);
        let path = folder.path().join(format!("{index}.png"));
        picture.to_rgb8().unwrap().save(&path).unwrap();
        command.arg(path);
        pictures.push(picture);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected = candle_core::safetensors::load(&out, &Device::Cpu).unwrap();

    let detector = Detector::from_files(&fixtures().join("tiny_r18.toml"), &weights).unwrap();
    let mut detections = 0;
    for (index, picture) in pictures.iter().enumerate() {
        let found = detector.detect(picture).unwrap();
        let found = found.to_tensors(&Device::Cpu).unwrap();
        let expected = |key: &str| &expected[&format!("{key}.{index}")];
        assert_eq!(found.boxes.dims(), expected("boxes").dims(), "{index}");
        detections += found.boxes.dims()[0];
        assert!(largest_difference(&found.labels, expected("labels")) == 0.0, "{index}");
        for (found, key, tolerance) in [
            (&found.scores, "scores", 1e-4),
            (&found.boxes, "boxes", 1e-2),
            (found.masks.as_ref().unwrap(), "masks", 1e-3),
        ] {
            let difference = largest_difference(found, expected(key));
            assert!(difference < tolerance, "{key} of picture {index}: {difference}");
        }
    }
    assert!(detections > 0);
}
