//! Numbers of the optimiser and the learning rate, from the command line.

use anyhow::{Result, ensure};
use candle_detection::train::{
    Course, Decay, Momentum, ParameterGroups, Schedule, UpdateRule, WarmUp,
};

use super::args::{CourseArgs, OptimizerName, ScheduleName};

/// Images of an update for which the usual learning rate of sgd is [`USUAL_RATE`].
const USUAL_IMAGES: f64 = 16.0;
const USUAL_RATE: f64 = 0.02;

/// Updates of a run, and of an epoch of it.
#[derive(Debug, Clone, Copy)]
pub struct Length {
    pub total: u64,
    pub per_epoch: u64,
}

impl Length {
    pub fn new(args: &CourseArgs, batches_per_epoch: usize) -> Result<Self> {
        let per_epoch = batches_per_epoch.div_ceil(args.accumulate.get()) as u64;
        let total = args.iterations.unwrap_or(args.epochs * per_epoch);
        ensure!(total > 0, "a run of no updates");
        Ok(Self { total, per_epoch })
    }
}

pub fn update_rule(args: &CourseArgs) -> UpdateRule {
    match args.optimizer {
        OptimizerName::Sgd => UpdateRule::Sgd(Momentum::Heavy(args.momentum)),
        OptimizerName::Nesterov => UpdateRule::Sgd(Momentum::Nesterov(args.momentum)),
        OptimizerName::Adamw => UpdateRule::ADAM_W,
    }
}

pub fn groups(args: &CourseArgs) -> ParameterGroups {
    let (usual, decay) = match args.optimizer {
        OptimizerName::Sgd | OptimizerName::Nesterov => (1e-4, Decay::All),
        OptimizerName::Adamw => (0.05, Decay::WeightsOnly),
    };
    ParameterGroups { weight_decay: args.weight_decay.unwrap_or(usual), decay, rates: Vec::new() }
}

pub fn schedule(args: &CourseArgs, length: Length) -> Schedule {
    let images = (args.batch_size.get() * args.accumulate.get()) as f64;
    let usual = match args.optimizer {
        OptimizerName::Sgd | OptimizerName::Nesterov => USUAL_RATE * images / USUAL_IMAGES,
        OptimizerName::Adamw => 1e-4,
    };
    let warm_up = match args.warm_up {
        Some(steps) => WarmUp { steps, ..WarmUp::reference(length.per_epoch) },
        None => WarmUp::reference(length.per_epoch),
    };
    let total = length.total;
    let course = match args.schedule {
        ScheduleName::Constant => Course::Constant,
        ScheduleName::Steps => {
            Course::Steps { milestones: vec![total * 2 / 3, total * 8 / 9], factor: 0.1 }
        }
        ScheduleName::Cosine => Course::Cosine { total, end: 0.0 },
    };
    Schedule { rate: args.lr.unwrap_or(usual), warm_up, course }
}
