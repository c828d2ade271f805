//! Runs on a narrow model, and what comes of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use candle_detection::Result;
use candle_detection::checkpoint::{Checkpoint, Loading};
use candle_detection::config::ModelConfig;
use candle_detection::train::parallel::Alone;
use candle_detection::train::{
    Course, Flow, Freezing, Milestone, Momentum, Network, Observer, ParameterGroups, RunFolder,
    RunLength, Schedule, StepReport, Trainer, TrainerOptions, UpdateRule, WarmUp,
};

use super::{fixtures, largest_difference};

pub fn config() -> ModelConfig {
    let mut config = ModelConfig::load(&fixtures().join("tiny_r18.toml")).unwrap();
    let training = &mut config.architecture.as_rcnn_mut().unwrap().training;
    training.rpn.samples_per_image = 32;
    training.rpn.pre_nms_top_n = 40;
    training.rpn.post_nms_top_n = 40;
    training.roi.samples_per_image = 32;
    config
}

pub fn network() -> Network {
    let config = config();
    let checkpoint = Checkpoint::open(&fixtures().join("tiny_r18.safetensors")).unwrap();
    let freezing = Freezing::backbone(&config, 5);
    Network::from_checkpoint(&config, checkpoint, Loading::Strict, freezing, &Device::Cpu)
        .unwrap()
        .0
}

#[derive(Default)]
pub struct Log {
    pub steps: Vec<StepReport>,
    /// Steps and epochs.
    pub evaluated: Vec<(u64, f64)>,
    pub scores: Vec<f64>,
    pub stop_at: Option<u64>,
}

impl Observer for Log {
    fn step(&mut self, report: &StepReport) -> Result<Flow> {
        self.steps.push(report.clone());
        Ok(if self.stop_at == Some(report.step) { Flow::Stop } else { Flow::Continue })
    }

    fn evaluate(&mut self, milestone: &Milestone<'_>) -> Result<Option<f64>> {
        self.evaluated.push((milestone.step, milestone.epochs));
        let at = (milestone.epochs as usize).checked_sub(1);
        Ok(at.and_then(|at| self.scores.get(at)).copied())
    }
}

pub fn options(epochs: u64) -> TrainerOptions {
    TrainerOptions {
        length: RunLength::Epochs(epochs),
        seed: 3,
        schedule: Schedule {
            rate: 0.01,
            warm_up: WarmUp { steps: 5, start: 0.1 },
            course: Course::Constant,
        },
        rule: UpdateRule::Sgd(Momentum::Heavy(0.9)),
        groups: ParameterGroups::uniform(1e-4),
        clip_norm: Some(5.0),
        batches_per_update: 1,
        average: Some(0.9),
        snapshot_every: None,
        evaluate_every: 1,
        report_every: 1,
    }
}

pub fn trainer(options: TrainerOptions, folder: Option<&Path>) -> Trainer {
    let folder = folder.map(|path| RunFolder::new(path, 2));
    Trainer::new(network(), options, folder, Arc::new(Alone)).unwrap()
}

/// Runs `work` on a thread for each of some ranks, and returns the results in their order.
pub fn on_ranks<R: Send, T: Send>(
    ranks: impl IntoIterator<Item = R>,
    work: impl Fn(R) -> T + Sync,
) -> Vec<T> {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            ranks.into_iter().map(|rank| scope.spawn(move || work(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

pub fn weights(trainer: &Trainer) -> BTreeMap<String, Tensor> {
    let all = trainer.network().parameters().all();
    all.into_iter().map(|p| (p.name, p.var.as_detached_tensor().copy().unwrap())).collect()
}

#[track_caller]
pub fn assert_same(a: &BTreeMap<String, Tensor>, b: &BTreeMap<String, Tensor>, tolerance: f32) {
    assert!(a.keys().eq(b.keys()));
    for (name, tensor) in a {
        let difference = largest_difference(tensor, &b[name]);
        assert!(difference <= tolerance, "{name} differs by {difference}");
    }
}
