//! The numbers of a run, from the command line.

use candle_core::Device;
use candle_detection::train::{
    Course, Decay, Momentum, ParameterGroups, RunLength, Schedule, TrainerOptions, UpdateRule,
    WarmUp,
};

use super::args::{Args, CourseArgs, OptimizerName, ScheduleName};

/// Images of an update for which the usual learning rate of sgd is [`USUAL_RATE`].
const USUAL_IMAGES: f64 = 16.0;
const USUAL_RATE: f64 = 0.02;

/// The options of a run over so many batches per epoch, of so many processes, on a device.
pub fn options(args: &Args, batches: usize, ranks: usize, device: &Device) -> TrainerOptions {
    let course = &args.course;
    let length = course.iterations.map_or(RunLength::Epochs(course.epochs), RunLength::Updates);
    let per_epoch = batches.div_ceil(course.accumulate.get()) as u64;
    TrainerOptions {
        length,
        seed: args.seed,
        schedule: schedule(course, length.updates(per_epoch), per_epoch, ranks),
        rule: update_rule(course),
        groups: groups(course),
        clip_norm: course.clip,
        batches_per_update: course.accumulate.get(),
        average: course.ema,
        snapshot_every: args.save_every.map(|updates| updates.get() as u64),
        evaluate_every: args.evaluate_every.get() as u64,
        // On the CPU nothing waits for a loss to be read.
        report_every: if device.is_cpu() { 1 } else { args.log_every.get() as u64 },
    }
}

fn update_rule(args: &CourseArgs) -> UpdateRule {
    match args.optimizer {
        OptimizerName::Sgd => UpdateRule::Sgd(Momentum::Heavy(args.momentum)),
        OptimizerName::Nesterov => UpdateRule::Sgd(Momentum::Nesterov(args.momentum)),
        OptimizerName::Adamw => UpdateRule::ADAM_W,
    }
}

fn groups(args: &CourseArgs) -> ParameterGroups {
    let (usual, decay) = match args.optimizer {
        OptimizerName::Sgd | OptimizerName::Nesterov => (1e-4, Decay::All),
        OptimizerName::Adamw => (0.05, Decay::WeightsOnly),
    };
    ParameterGroups { weight_decay: args.weight_decay.unwrap_or(usual), decay, rates: Vec::new() }
}

fn schedule(args: &CourseArgs, total: u64, per_epoch: u64, ranks: usize) -> Schedule {
    let images = (args.batch_size.get() * args.accumulate.get() * ranks) as f64;
    let usual = match args.optimizer {
        OptimizerName::Sgd | OptimizerName::Nesterov => USUAL_RATE * images / USUAL_IMAGES,
        OptimizerName::Adamw => 1e-4,
    };
    let warm_up = match args.warm_up {
        Some(steps) => WarmUp { steps, ..WarmUp::reference(per_epoch) },
        None => WarmUp::reference(per_epoch),
    };
    let course = match args.schedule {
        ScheduleName::Constant => Course::Constant,
        ScheduleName::Steps => {
            Course::Steps { milestones: vec![total * 2 / 3, total * 8 / 9], factor: 0.1 }
        }
        ScheduleName::Cosine => Course::Cosine { total, end: 0.0 },
    };
    Schedule { rate: args.lr.unwrap_or(usual), warm_up, course }
}
