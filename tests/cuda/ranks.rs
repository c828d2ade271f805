//! Ranks that exchange gradients by NCCL: on two GPUs, or on the emulator, which stands in for NCCL between threads.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use candle_core::Device;
use candle_detection::train::parallel::{
    Communicator, Launch, NcclCommunicator, ThreadCommunicator,
};
use candle_detection::train::{
    Ending, Position, RunFolder, RunLength, StepReport, Trainer, TrainerOptions,
};
use candle_detection::{Result, device};

use super::common::rectangles::Rectangles;
use super::common::runs::{Log, on_ranks};
use super::common::training::Reference;
use super::counters::{Counts, alone, count};
use super::runs::{Poisoned, options};
use super::support::values;

const RANKS: usize = 2;

/// A device for each rank, `None` where NCCL would refuse them: on a GPU, each wants its own.
fn devices() -> Option<[Device; RANKS]> {
    let first = device::parse("cuda:0").unwrap();
    let second = match device::parse("cuda:1") {
        Ok(device) => device,
        Err(_) if count(|| ()).1.is_some() => device::parse("cuda:0").unwrap(),
        Err(_) => {
            println!("skipped: NCCL between ranks (needs two GPUs)");
            return None;
        }
    };
    Some([first, second])
}

/// The address where ranks of one run meet.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn launch(rank: usize, port: u16) -> Launch {
    let address = "127.0.0.1".to_owned();
    Launch { rank, world_size: RANKS, local_rank: rank, address, port }
}

/// What a rank has at the end of a run.
struct Outcome {
    ending: Result<Ending>,
    reports: Vec<StepReport>,
    weights: Vec<Vec<f32>>,
    step: u64,
}

fn train(
    communicator: Arc<dyn Communicator>,
    device: &Device,
    options: TrainerOptions,
    at: Option<Position>,
) -> Outcome {
    let rank = communicator.rank();
    let network = Reference::load("tiny_r18").network(device, 5);
    let none: Option<RunFolder> = None;
    let mut trainer = Trainer::new(network, options, none, communicator).unwrap();
    let pictures = Rectangles { batch: 1, rank, ranks: RANKS, poisoned: None };
    let mut source = Poisoned { pictures, at, device: device.clone() };
    let mut log = Log::default();
    let ending = trainer.run(&mut source, &mut log);
    let all = trainer.network().parameters().all();
    let weights = all.iter().map(|parameter| values(parameter.var.as_tensor())).collect();
    Outcome { ending, reports: log.steps, weights, step: trainer.numbers().step }
}

/// A run whose ranks meet, train and part as `examples/train` has them.
fn train_by_nccl(
    devices: &[Device; RANKS],
    options: &TrainerOptions,
    at: impl Fn(usize) -> Option<Position> + Sync,
) -> Vec<Outcome> {
    let port = free_port();
    on_ranks(devices.iter().enumerate(), |(rank, device)| {
        let patience = Duration::from_secs(60);
        let nccl = NcclCommunicator::new(&launch(rank, port), device, patience).unwrap();
        let nccl = Arc::new(nccl);
        let outcome = train(nccl.clone(), device, options.clone(), at(rank));
        nccl.close().unwrap();
        outcome
    })
}

/// What travels beside the backward pass arrives whole and in time: the weights are those of ranks that exchange through
/// the host's memory, which waits for everything.
#[test]
fn ranks_learn_the_same_whatever_their_gradients_travel_by() {
    let _alone = alone();
    let Some(devices) = devices() else { return };
    let options =
        TrainerOptions { batches_per_update: 2, report_every: 2, ..options(RunLength::Epochs(3)) };
    let found = train_by_nccl(&devices, &options, |_| None);
    let expected = on_ranks(ThreadCommunicator::group(RANKS), |communicator| {
        let device = &devices[communicator.rank()];
        train(Arc::new(communicator), device, options.clone(), None)
    });
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(*found.ending.as_ref().unwrap(), Ending::Complete);
        assert!(found.weights == expected.weights);
        let losses = |outcome: &Outcome| -> Vec<_> {
            outcome
                .reports
                .iter()
                .map(|report| (report.losses.clone(), report.gradient_norm))
                .collect()
        };
        assert_eq!(losses(found), losses(expected));
    }
    assert!(found[0].weights == found[1].weights);
}

/// Ranks wait for nothing either: beside images and targets, only what is read when reports are due is copied.
#[test]
fn ranks_read_losses_when_reports_are_due() {
    let _alone = alone();
    let Some(devices) = devices() else { return };
    let run = |updates: u64, report_every| {
        let options = TrainerOptions { report_every, ..options(RunLength::Updates(updates)) };
        count(|| {
            let outcomes = train_by_nccl(&devices, &options, |_| None);
            assert!(outcomes.iter().all(|outcome| outcome.reports.len() as u64 == updates));
        })
        .1
    };
    // A run has copies besides those of its updates: weights are uploaded and, here, read at the end; steps are agreed on.
    let Some(one) = run(1, 1) else { return };
    let more = |counts: Counts| {
        let ranks = RANKS as u64;
        let copies = [counts.host_to_device, counts.device_to_host, counts.synchronizations];
        let of_one = [one.host_to_device, one.device_to_host, one.synchronizations];
        [0, 1, 2].map(|kind| (copies[kind] - of_one[kind]) / ranks)
    };
    // An epoch has two updates, and its end is a report. With each report, ranks ask each other whether to go on.
    for (updates, report_every, reports) in [(2, 1, 2), (2, 2, 1), (4, 2, 2), (4, 100, 2)] {
        let found = more(run(updates, report_every).unwrap_or(one));
        let (updates, reports) = (updates - 1, reports - 1);
        let expected = [2 * updates + reports, 2 * reports, 2 * reports];
        assert_eq!(found, expected, "{} updates, a report every {report_every}", updates + 1);
    }
}

/// A rank that fails ends all by itself, also where the others hear of it later.
#[test]
fn a_rank_that_fails_ends_the_others() {
    let _alone = alone();
    let Some(devices) = devices() else { return };
    let options = TrainerOptions { report_every: 2, ..options(RunLength::Epochs(2)) };
    let at = Position { epoch: 1, index: 0 };
    let ends = train_by_nccl(&devices, &options, |rank| (rank == 1).then_some(at));
    let message = |rank: usize| ends[rank].ending.as_ref().unwrap_err().to_string();
    assert!(message(0).contains("another rank has failed"), "{}", message(0));
    assert!(message(1).contains("not finite"), "{}", message(1));
    assert!(ends.iter().all(|end| end.step == 2));
    assert!(ends[0].weights == ends[1].weights);
}
