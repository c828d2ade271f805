//! Runs on CUDA: what they end in, and when something is read.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use candle_detection::train::parallel::Alone;
use candle_detection::train::{
    Batch, BatchSource, Course, Ending, Momentum, Position, RunFolder, RunLength, Schedule,
    Trainer, TrainerOptions, UpdateRule, WarmUp,
};
use candle_detection::{Error, ImageInput, Result};

use super::common;
use super::common::rectangles::Rectangles;
use super::common::runs::Log;
use super::common::training::Reference;
use super::counters::{Counts, alone, count};
use super::support::{cuda, values};

/// One batch, over and over.
struct Same(Batch);

impl BatchSource for Same {
    fn batches_per_epoch(&self) -> usize {
        4
    }

    fn batch(&mut self, _: Position) -> Result<Batch> {
        Ok(self.0.clone())
    }
}

pub fn options(length: RunLength) -> TrainerOptions {
    let schedule = Schedule {
        rate: 0.005,
        warm_up: WarmUp { steps: 2, start: 0.1 },
        course: Course::Constant,
    };
    TrainerOptions { length, seed: 5, schedule, ..common::runs::options(1) }
}

/// A run with two batches per update, snapshots and all, follows the CPU's.
#[test]
fn a_run_follows_that_of_the_cpu() {
    let _alone = alone();
    let reference = Reference::load("tiny_r18");
    let run = |device: &Device, resume: bool| {
        let folder = std::env::temp_dir().join(format!("run-{}", std::process::id()));
        let length = RunLength::Epochs(1 + u64::from(resume));
        let options = TrainerOptions { batches_per_update: 2, ..options(length) };
        let network = reference.network(device, 3);
        let folder = RunFolder::new(&folder, 1);
        let mut trainer = Trainer::new(network, options, Some(folder), Arc::new(Alone)).unwrap();
        assert_eq!(trainer.resume().unwrap(), resume.then_some(2));
        let mut log = Log::default();
        trainer.run(&mut Same(reference.batch("objects")), &mut log).unwrap();
        log.steps
    };
    let mut both = [cuda(), Device::Cpu].map(|device| {
        let first = run(&device, false);
        let steps = [first, run(&device, true)].concat();
        std::fs::remove_dir_all(std::env::temp_dir().join(format!("run-{}", std::process::id())))
            .unwrap();
        steps.into_iter()
    });
    let [found, expected] = &mut both;
    assert_eq!((found.len(), expected.len()), (4, 4));
    for (found, expected) in found.zip(expected) {
        for ((name, found), (_, expected)) in found.losses.named().zip(expected.losses.named()) {
            assert!((found - expected).abs() <= 1e-3 * expected, "{name}: {found} {expected}");
        }
        let (found, expected) = (found.gradient_norm, expected.gradient_norm);
        assert!((found - expected).abs() <= 1e-3 * expected, "norm {found} {expected}");
    }
}

/// A run downloads when losses are read, and uploads images and targets.
#[test]
fn losses_are_read_when_reports_are_due() {
    let _alone = alone();
    let reference = Reference::load("tiny_r18");
    let run = |updates: u64, report_every| {
        let options = TrainerOptions { report_every, ..options(RunLength::Updates(updates)) };
        let network = reference.network(&cuda(), 3);
        let mut trainer = Trainer::new(network, options, None, Arc::new(Alone)).unwrap();
        let mut source = Same(reference.batch("objects"));
        let mut log = Log::default();
        let (ending, counts) = count(|| trainer.run(&mut source, &mut log).unwrap());
        assert_eq!((ending, log.steps.len() as u64), (Ending::Complete, updates));
        assert!(log.steps.iter().all(|report| report.losses.are_finite()));
        counts
    };
    run(1, 1);
    // The end of each epoch of four updates is a report as well.
    for (updates, report_every, reports) in [(3, 1, 3), (3, 3, 1), (4, 3, 2), (4, 100, 1)] {
        let expected = Counts {
            host_to_device: 2 * updates,
            device_to_host: reports,
            synchronizations: reports,
            ..Counts::default()
        };
        let found = run(updates, report_every).unwrap_or(expected);
        let found = Counts { launches: 0, device_to_device: 0, ..found };
        assert_eq!(found, expected, "{updates} updates, a report every {report_every}");
    }
}

/// Pictures, of which one at a position has pixels that are no numbers.
pub struct Poisoned {
    pub pictures: Rectangles,
    pub at: Option<Position>,
    pub device: Device,
}

impl BatchSource for Poisoned {
    fn batches_per_epoch(&self) -> usize {
        self.pictures.batches_per_epoch()
    }

    fn batch(&mut self, position: Position) -> Result<Batch> {
        let mut batch = self.pictures.batch(position)?;
        if self.at == Some(position) {
            let size = batch.images[0].size();
            let planes = Tensor::full(f32::NAN, (3, size.height, size.width), &self.device)?;
            batch.images[0] = ImageInput::from_tensor(&planes)?;
        }
        Ok(batch)
    }
}

/// What is not finite is found when losses are read, and has changed nothing.
#[test]
fn an_update_that_is_not_finite_changes_nothing() {
    let _alone = alone();
    let reference = Reference::load("tiny_r18");
    let run = |rule, poisoned, report_every, length| {
        let options = TrainerOptions { rule, report_every, ..options(length) };
        let network = reference.network(&cuda(), 5);
        let mut trainer = Trainer::new(network, options, None, Arc::new(Alone)).unwrap();
        let mut source = Poisoned { pictures: Rectangles::new(1), at: poisoned, device: cuda() };
        let ending = trainer.run(&mut source, &mut Log::default());
        let all = trainer.network().parameters().all();
        let weights = all.iter().map(|p| values(p.var.as_tensor())).collect::<Vec<_>>();
        let average = trainer.average().unwrap().iter().map(|(_, t)| values(t)).collect::<Vec<_>>();
        (ending, weights, average, trainer.numbers())
    };
    // Four updates an epoch, of which the third fails and the fourth was started.
    let poisoned = Some(Position { epoch: 0, index: 2 });
    for rule in [UpdateRule::Sgd(Momentum::Heavy(0.9)), UpdateRule::ADAM_W] {
        let (_, weights, average, numbers) = run(rule, None, 1, RunLength::Updates(2));
        let (ending, found, found_average, at) = run(rule, poisoned, 4, RunLength::Epochs(2));
        let error = ending.unwrap_err();
        assert!(matches!(&error, Error::NonFinite { images, .. } if *images == [2]), "{error}");
        assert_eq!(at, numbers);
        assert!(found == weights && found_average == average);
    }
}
