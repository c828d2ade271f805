//! Runs of several ranks on a narrow model.
#![cfg(feature = "train")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use candle_detection::checkpoint::{Checkpoint, Loading};
use candle_detection::train::parallel::{Alone, Communicator, ThreadCommunicator};
use candle_detection::train::{
    Batch, BatchSource, Freezing, Losses, Network, Position, RunFolder, RunLength, Trainer,
    TrainerOptions,
};
use candle_detection::{Error, Result};
use common::fixtures;
use common::rectangles::Rectangles;
use common::runs::{Log, assert_same, config, network, on_ranks, options, weights};

/// Runs `work` on every rank of two, and returns the results by rank.
fn on_two_ranks<T: Send>(work: impl Fn(Arc<dyn Communicator>) -> T + Sync) -> Vec<T> {
    on_ranks(ThreadCommunicator::group(2), |communicator| work(Arc::new(communicator)))
}

/// The samples of both kinds are all there are, so that no random choice differs.
fn network_that_samples_everything() -> Network {
    let mut config = config();
    let training = &mut config.architecture.as_rcnn_mut().unwrap().training;
    training.rpn.samples_per_image = 100_000;
    training.rpn.positive_fraction = 0.0;
    training.roi.samples_per_image = 1000;
    training.roi.positive_fraction = 0.0;
    let checkpoint = Checkpoint::open(&fixtures().join("tiny_r18.safetensors")).unwrap();
    let freezing = Freezing::backbone(&config, 3);
    Network::from_checkpoint(&config, checkpoint, Loading::Strict, freezing, &Device::Cpu)
        .unwrap()
        .0
}

/// Weights at the end of a run, and the losses of its updates.
fn run(
    options: &TrainerOptions,
    communicator: Arc<dyn Communicator>,
    batch: usize,
) -> (BTreeMap<String, Tensor>, Vec<Losses>) {
    let (rank, ranks) = (communicator.rank(), communicator.world_size());
    let network = network_that_samples_everything();
    let mut trainer = Trainer::new(network, options.clone(), None, communicator).unwrap();
    let mut source = Rectangles { batch, rank, ranks, poisoned: None };
    let mut log = Log::default();
    trainer.run(&mut source, &mut log).unwrap();
    (weights(&trainer), log.steps.iter().map(|report| report.losses.clone()).collect())
}

/// Two ranks with a picture each make the steps of one rank with both.
#[test]
fn ranks_together_learn_what_one_learns_alone() {
    for batches_per_update in [1, 2] {
        let options = TrainerOptions { average: None, batches_per_update, ..options(3) };
        let (alone, losses) = run(&options, Arc::new(Alone), 2);
        let ranks = on_two_ranks(|communicator| run(&options, communicator, 1));
        assert_same(&ranks[0].0, &ranks[1].0, 0.0);
        assert_same(&ranks[0].0, &alone, 1e-3);
        assert_eq!(ranks[0].1, ranks[1].1);
        for (together, alone) in ranks[0].1.iter().zip(&losses) {
            let (a, b) = (together.total(), alone.total());
            assert!((a - b).abs() < 0.02 * b, "{a} {b}");
        }
    }
}

/// How often ranks read their losses changes nothing.
#[test]
fn ranks_need_not_hear_of_every_update() {
    let run = |report_every| {
        let options = TrainerOptions { report_every, ..options(3) };
        on_two_ranks(|communicator| run(&options, communicator, 1)).remove(0)
    };
    let ((expected, losses), (found, same)) = (run(1), run(4));
    assert_eq!(losses, same);
    assert_same(&found, &expected, 0.0);
}

/// Rectangles, or an error in their place.
struct Breaking {
    pictures: Rectangles,
    broken: Option<Position>,
}

impl BatchSource for Breaking {
    fn batches_per_epoch(&self) -> usize {
        self.pictures.batches_per_epoch()
    }

    fn batch(&mut self, position: Position) -> Result<Batch> {
        if self.broken == Some(position) {
            return Err(Error::Observer { source: "the disk is gone".into() });
        }
        self.pictures.batch(position)
    }
}

/// Nobody waits for a rank that fails, in whatever way and whenever the others hear of it; nobody makes its update.
#[test]
fn a_rank_that_fails_ends_all() {
    let (whole, at) = (options(3), Position { epoch: 1, index: 1 });
    let before = TrainerOptions { length: RunLength::Updates(3), ..whole };
    let expected = on_two_ranks(|communicator| {
        let rank = communicator.rank();
        let mut trainer = Trainer::new(network(), before.clone(), None, communicator).unwrap();
        let mut source = Rectangles { batch: 1, rank, ranks: 2, poisoned: None };
        trainer.run(&mut source, &mut Log::default()).unwrap();
        weights(&trainer)
    });
    for report_every in [1, 2, 5] {
        for (is_broken, reason) in [(false, "not finite"), (true, "the disk is gone")] {
            let ends = on_two_ranks(|communicator| {
                let rank = communicator.rank();
                let options = TrainerOptions { report_every, ..options(3) };
                let mut trainer = Trainer::new(network(), options, None, communicator).unwrap();
                let at = (rank == 1).then_some(at);
                let poisoned = at.filter(|_| !is_broken);
                let pictures = Rectangles { batch: 1, rank, ranks: 2, poisoned };
                let mut source = Breaking { pictures, broken: at.filter(|_| is_broken) };
                let mut log = Log::default();
                let error = trainer.run(&mut source, &mut log).unwrap_err();
                let problem = match &error {
                    Error::Observer { source } => source.to_string(),
                    other => other.to_string(),
                };
                (problem, log.steps.len(), trainer.numbers().step, weights(&trainer))
            });
            let [first, second] = &ends[..] else { unreachable!() };
            assert!(first.0.contains("another rank has failed"), "{}", first.0);
            assert!(second.0.contains(reason), "{}", second.0);
            for ((_, heard, step, found), expected) in ends.iter().zip(&expected) {
                assert_eq!((*heard, *step), (3, 3), "{report_every} {reason}");
                assert_same(found, expected, 0.0);
            }
        }
    }
}

#[test]
fn a_rank_that_cannot_see_the_snapshots_ends_all() {
    let folder = tempfile::tempdir().unwrap();
    let run_folder = |place: &str| Some(RunFolder::new(folder.path().join(place), 1));
    let mut first =
        Trainer::new(network(), options(1), run_folder("seen"), Arc::new(Alone)).unwrap();
    let mut source = Rectangles { batch: 1, rank: 0, ranks: 1, poisoned: None };
    first.run(&mut source, &mut Log::default()).unwrap();
    let step = first.numbers().step;
    let messages = on_two_ranks(|communicator| {
        let rank = communicator.rank();
        let place = run_folder(["seen", "elsewhere"][rank]);
        let mut trainer = Trainer::new(network(), options(2), place, communicator).unwrap();
        trainer.resume().unwrap();
        let mut source = Rectangles { batch: 1, rank, ranks: 2, poisoned: None };
        trainer.run(&mut source, &mut Log::default()).unwrap_err().to_string()
    });
    for message in messages {
        assert!(message.contains(&format!("[{step}, 0]")), "{message}");
    }
}
