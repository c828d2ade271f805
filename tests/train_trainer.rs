//! Whole runs on a narrow model: learning and interruption.
#![cfg(feature = "train")]

mod common;

use std::path::Path;
use std::sync::Arc;

use candle_core::Device;
use candle_detection::checkpoint::Checkpoint;
use candle_detection::train::parallel::Alone;
use candle_detection::train::{
    Course, Ending, Flow, Milestone, Observer, Position, RunFolder, RunLength, StepReport, Trainer,
    TrainerOptions, UpdateRule,
};
use candle_detection::{Detector, Error, Result};
use common::rectangles::{PICTURES, Rectangles};
use common::runs::{Log, assert_same, network, options, trainer, weights};
use common::{fixtures, largest_difference, values};

/// What is shown often enough is found again, where it is and as what it is.
#[test]
fn four_pictures_are_learned_by_heart() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(150);
    options.average = None;
    // Plain descent takes far longer on so few pictures, and how long depends on the seed.
    options.rule = UpdateRule::ADAM_W;
    options.schedule.rate = 2e-3;
    options.schedule.course = Course::Steps { milestones: vec![200], factor: 0.1 };
    let mut trainer = trainer(options, Some(folder.path()));
    let mut log = Log::default();
    let ending = trainer.run(&mut Rectangles::new(2), &mut log).unwrap();
    assert_eq!(ending, Ending::Complete);
    let mean = |reports: &[StepReport]| {
        reports.iter().map(|report| report.losses.total()).sum::<f32>() / reports.len() as f32
    };
    let (first, last) = (mean(&log.steps[..8]), mean(&log.steps[log.steps.len() - 8..]));
    assert!(last < 0.2 * first, "{first} → {last}");
    let snapshot = RunFolder::new(folder.path(), 2).snapshots().unwrap().pop().unwrap();
    let detector =
        Detector::from_files(&fixtures().join("tiny_r18.toml"), &snapshot.model()).unwrap();
    for index in 0..PICTURES {
        let (image, target) = Rectangles::picture(index);
        let found = detector.detect(&image).unwrap();
        let best = found.instances.first().unwrap();
        assert!(best.score > 0.8 && best.label == target.labels[0], "{index}: {best:?}");
        let (a, b) = (best.bbox, target.boxes[0]);
        let width = (a.x2.min(b.x2) - a.x1.max(b.x1)).max(0.0);
        let height = (a.y2.min(b.y2) - a.y1.max(b.y1)).max(0.0);
        let shared = width * height;
        let either = a.width() * a.height() + b.width() * b.height() - shared;
        assert!(shared / either > 0.8, "{index}: {a:?} {b:?}");
        let mask = best.mask.as_ref().unwrap().binarize(0.5);
        let truth = target.masks[0].to_bitmap().unwrap();
        let pairs = || mask.as_raw().iter().zip(truth.as_raw());
        let both = pairs().filter(|(a, b)| **a > 0 && **b > 0).count();
        let any = pairs().filter(|(a, b)| **a > 0 || **b > 0).count();
        assert!(both as f64 > 0.8 * any as f64, "{index}: {both} of {any}");
    }
}

/// A run that stops after any update and is resumed by another process ends in the same bits.
#[test]
fn a_resumed_run_ends_as_the_unbroken_one() {
    let mut accumulating = options(3);
    accumulating.batches_per_update = 3;
    accumulating.snapshot_every = Some(1);
    let mut adam = options(2);
    adam.rule = UpdateRule::ADAM_W;
    adam.schedule.rate = 1e-3;
    for options in [accumulating, adam] {
        let mut unbroken = trainer(options.clone(), None);
        let mut log = Log::default();
        unbroken.run(&mut Rectangles::new(1), &mut log).unwrap();
        let steps = log.steps.len() as u64;
        let folder = tempfile::tempdir().unwrap();
        for stop_at in 1..=steps {
            let mut resumed = trainer(options.clone(), Some(folder.path()));
            let found = resumed.resume().unwrap();
            assert_eq!(found, (stop_at > 1).then_some(stop_at - 1));
            let mut part = Log { stop_at: Some(stop_at), ..Log::default() };
            assert_eq!(resumed.run(&mut Rectangles::new(1), &mut part).unwrap(), Ending::Stopped);
            assert_eq!(part.steps.len(), 1);
            assert_eq!(part.steps[0].losses, log.steps[stop_at as usize - 1].losses);
            if stop_at == steps {
                assert_same(&weights(&resumed), &weights(&unbroken), 0.0);
                let tensors = |trainer: &Trainer| trainer.average().unwrap().into_iter().collect();
                assert_same(&tensors(&resumed), &tensors(&unbroken), 0.0);
            }
        }
        let folder = RunFolder::new(folder.path(), 2);
        assert_eq!(folder.snapshots().unwrap().len(), 2);
    }
}

/// Where the process of [`a_killed_run_ends_as_the_unbroken_one`] trains.
const KILLED_RUN: &str = "CANDLE_DETECTION_KILLED_RUN";

fn options_of_the_killed_run() -> TrainerOptions {
    let mut options = options(30);
    options.snapshot_every = Some(1);
    options
}

#[test]
#[ignore = "a process for a_killed_run_ends_as_the_unbroken_one"]
fn process_to_be_killed() {
    let folder = std::env::var_os(KILLED_RUN).unwrap();
    let mut trainer = trainer(options_of_the_killed_run(), Some(Path::new(&folder)));
    trainer.resume().unwrap();
    trainer.run(&mut Rectangles::new(2), &mut Log::default()).unwrap();
}

/// Killed at any moment, also while a snapshot is being written, a run goes on as if nothing had happened.
#[test]
fn a_killed_run_ends_as_the_unbroken_one() {
    let mut unbroken = trainer(options_of_the_killed_run(), None);
    unbroken.run(&mut Rectangles::new(2), &mut Log::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let run = RunFolder::new(folder.path(), 2);
    let last_step = || run.snapshots().unwrap().last().map_or(0, |snapshot| snapshot.step);
    let mut kills = 0;
    loop {
        let before = last_step();
        let mut process = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["process_to_be_killed", "--exact", "--ignored"])
            .env(KILLED_RUN, folder.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // Some steps later, and a little longer each time, so that it dies in different places.
        while last_step() < before + 9 && process.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_millis(3 * kills));
        process.kill().unwrap();
        if process.wait().unwrap().success() {
            break;
        }
        kills += 1;
    }
    assert!(kills >= 3, "killed {kills} times");
    let mut resumed = trainer(options_of_the_killed_run(), Some(folder.path()));
    assert_eq!(resumed.resume().unwrap(), Some(60));
    assert_same(&weights(&resumed), &weights(&unbroken), 0.0);
}

/// A snapshot that was being written when the process died is no snapshot.
#[test]
fn what_is_half_written_is_not_resumed_from() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = trainer(options(1), Some(folder.path()));
    first.run(&mut Rectangles::new(2), &mut Log::default()).unwrap();
    let half = folder.path().join(".step-0000000009.tmp");
    std::fs::create_dir(&half).unwrap();
    std::fs::write(half.join("model.safetensors"), b"half").unwrap();
    let mut second = trainer(options(1), Some(folder.path()));
    assert_eq!(second.resume().unwrap(), Some(2));
    // Nor is a damaged one, which is named.
    let snapshot = RunFolder::new(folder.path(), 2).snapshots().unwrap().pop().unwrap();
    let state = snapshot.model().with_file_name("state.safetensors");
    let bytes = std::fs::read(&state).unwrap();
    std::fs::write(&state, &bytes[..bytes.len() / 2]).unwrap();
    let message = second.resume().unwrap_err().to_string();
    assert!(message.contains("state.safetensors") && message.contains("complete"), "{message}");
}

#[test]
fn a_new_run_does_not_mix_with_an_old_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = trainer(options(1), Some(folder.path()));
    first.run(&mut Rectangles::new(4), &mut Log::default()).unwrap();
    let mut second = trainer(options(1), Some(folder.path()));
    let message = second.run(&mut Rectangles::new(4), &mut Log::default()).unwrap_err().to_string();
    assert!(message.contains("step 1") && message.contains("resume"), "{message}");
}

/// Names, shapes and types of what is saved are those of torchvision's own state dict.
#[test]
fn saved_weights_are_torchvisions() {
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = trainer(options(1), Some(folder.path()));
    trainer.run(&mut Rectangles::new(4), &mut Log::default()).unwrap();
    let snapshot = RunFolder::new(folder.path(), 2).snapshots().unwrap().pop().unwrap();
    let listed = |path: &Path| -> Vec<(String, Vec<usize>, String)> {
        let checkpoint = Checkpoint::open(path).unwrap();
        let of = |t: candle_detection::checkpoint::TensorInfo<'_>| {
            (t.name.to_owned(), t.shape.to_vec(), format!("{:?}", t.dtype))
        };
        checkpoint.tensors().map(of).collect()
    };
    let reference = listed(&fixtures().join("tiny_r18.safetensors"));
    assert_eq!(listed(&snapshot.model()), reference);
    assert_eq!(listed(&snapshot.average().unwrap()), reference);
}

#[test]
fn the_best_weights_are_kept_with_their_score() {
    let path = tempfile::tempdir().unwrap();
    let mut trainer = trainer(options(4), Some(path.path()));
    let mut log = Log { scores: vec![0.1, 0.4, 0.3], ..Log::default() };
    let mut averages = Vec::new();
    struct Watching<'a>(&'a mut Log, &'a mut Vec<Vec<u8>>);
    impl Observer for Watching<'_> {
        fn step(&mut self, report: &StepReport) -> Result<Flow> {
            self.0.step(report)
        }
        fn evaluate(&mut self, milestone: &Milestone<'_>) -> Result<Option<f64>> {
            self.1.push(std::fs::read(milestone.weights().unwrap()).unwrap());
            self.0.evaluate(milestone)
        }
    }
    trainer.run(&mut Rectangles::new(4), &mut Watching(&mut log, &mut averages)).unwrap();
    let folder = RunFolder::new(path.path(), 2);
    assert_eq!(folder.best_score().unwrap(), Some(0.4));
    let best = candle_core::safetensors::load(folder.best(), &Device::Cpu).unwrap();
    for (epoch, same) in [(1, true), (2, false)] {
        let then = candle_core::safetensors::load_buffer(&averages[epoch], &Device::Cpu).unwrap();
        let equal = best.iter().all(|(name, t)| largest_difference(t, &then[name]) == 0.0);
        assert_eq!(equal, same, "epoch {}", epoch + 1);
    }
}

/// Amid an epoch as well, the end is saved and evaluated; epochs between evaluations are saved only.
#[test]
fn a_run_of_so_many_updates_is_evaluated_when_asked_and_at_its_end() {
    let path = tempfile::tempdir().unwrap();
    let mut options = options(1);
    options.length = RunLength::Updates(11);
    options.evaluate_every = 2;
    let mut trainer = trainer(options.clone(), Some(path.path()));
    let mut log = Log::default();
    // Four pictures, two at a time: two updates are an epoch.
    assert_eq!(trainer.run(&mut Rectangles::new(2), &mut log).unwrap(), Ending::Complete);
    assert_eq!(log.evaluated, [(4, 2.0), (8, 4.0), (11, 5.5)]);
    assert_eq!(log.steps.len(), 11);
    assert!(log.steps.iter().all(|report| report.steps == 11));
    let epochs: Vec<f64> = log.steps[..3].iter().map(|report| report.epochs).collect();
    assert_eq!(epochs, [0.5, 1.0, 1.5]);
    let snapshots = RunFolder::new(path.path(), 2).snapshots().unwrap();
    assert_eq!(snapshots.iter().map(|snapshot| snapshot.step).collect::<Vec<_>>(), [10, 11]);
    // Resumed at its end, it is only evaluated.
    let mut again = self::trainer(options, Some(path.path()));
    assert_eq!(again.resume().unwrap(), Some(11));
    let mut log = Log::default();
    assert_eq!(again.run(&mut Rectangles::new(2), &mut log).unwrap(), Ending::Complete);
    assert_eq!((log.evaluated, log.steps.len()), (vec![(11, 5.5)], 0));
}

/// What an observer fails with ends the run, and is found behind the run's error.
#[test]
fn an_observer_ends_a_run_with_an_error_of_its_own() {
    struct Failing;
    impl Observer for Failing {
        fn step(&mut self, _: &StepReport) -> Result<Flow> {
            Err(Error::Observer { source: "the disk of the logs is full".into() })
        }
        fn evaluate(&mut self, _: &Milestone<'_>) -> Result<Option<f64>> {
            Ok(None)
        }
    }
    let mut trainer = trainer(options(1), None);
    let error = trainer.run(&mut Rectangles::new(2), &mut Failing).unwrap_err();
    let source = std::error::Error::source(&error).unwrap();
    assert_eq!(source.to_string(), "the disk of the logs is full");
    assert_eq!(trainer.numbers().step, 1);
}

/// An interruption between a snapshot and its evaluation loses no evaluation.
#[test]
fn the_last_epoch_is_evaluated_when_a_run_is_resumed() {
    let path = tempfile::tempdir().unwrap();
    let mut first = trainer(options(2), Some(path.path()));
    first.run(&mut Rectangles::new(4), &mut Log::default()).unwrap();
    let mut second = trainer(options(2), Some(path.path()));
    second.resume().unwrap();
    let mut log = Log { scores: vec![0.0, 0.7], ..Log::default() };
    assert_eq!(second.run(&mut Rectangles::new(4), &mut log).unwrap(), Ending::Complete);
    assert_eq!((log.evaluated, log.steps.len()), (vec![(2, 2.0)], 0));
    assert_eq!(RunFolder::new(path.path(), 2).best_score().unwrap(), Some(0.7));
}

#[test]
fn a_batch_that_is_not_finite_ends_the_run_and_the_weights_before_it_are_kept_apart() {
    let path = tempfile::tempdir().unwrap();
    let mut trainer = trainer(options(2), Some(path.path()));
    let poisoned = Some(Position { epoch: 1, index: 1 });
    let mut source = Rectangles { poisoned, ..Rectangles::new(2) };
    let error = trainer.run(&mut source, &mut Log::default()).unwrap_err();
    assert!(matches!(&error, Error::NonFinite { images, .. } if *images == [3, 0]), "{error}");
    let folder = RunFolder::new(path.path(), 2);
    let steps: Vec<u64> =
        folder.snapshots().unwrap().iter().map(|snapshot| snapshot.step).collect();
    assert_eq!(steps, [2]);
    let snapshot = folder.failed().snapshots().unwrap().pop().unwrap();
    assert_eq!(snapshot.step, 3);
    let saved = candle_core::safetensors::load(snapshot.model(), &Device::Cpu).unwrap();
    assert!(saved.values().all(|tensor| values(tensor).iter().all(|value| value.is_finite())));
}

#[test]
fn options_that_make_no_sense_are_named() {
    type Edit = fn(&mut TrainerOptions);
    let cases: [(&str, Edit); 8] = [
        ("length", |o| o.length = RunLength::Epochs(0)),
        ("length", |o| o.length = RunLength::Updates(0)),
        ("snapshot_every", |o| o.snapshot_every = Some(0)),
        ("evaluate_every", |o| o.evaluate_every = 0),
        ("batches_per_update", |o| o.batches_per_update = 0),
        ("clip_norm", |o| o.clip_norm = Some(0.0)),
        ("average", |o| o.average = Some(1.0)),
        ("schedule.rate", |o| o.schedule.rate = f64::NAN),
    ];
    for (field, edit) in cases {
        let mut options = options(1);
        edit(&mut options);
        let error = Trainer::new(network(), options, None, Arc::new(Alone)).err().unwrap();
        assert!(error.to_string().contains(field), "{error}");
    }
}
