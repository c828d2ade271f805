//! Training on CUDA: whole steps against torchvision's and the CPU's, updates of the weights, and what a step copies.

use std::sync::Arc;

use candle_core::{Device, Tensor, Var};
use candle_detection::Result;
use candle_detection::train::parallel::Alone;
use candle_detection::train::{
    Average, Batch, BatchSource, Course, Flow, Gradients, Milestone, Momentum, Observer, Optimizer,
    Parameter, ParameterGroups, ParameterKind, Position, RandomSampler, RunFolder, RunLength,
    Schedule, StepReport, Trainer, TrainerOptions, UpdateRule, WarmUp,
};

use super::common::training::{Reference, check_gradients, compare};
use super::common::{largest_difference, largest_value};
use super::counters::{Counts, alone, count};
use super::support::{Random, assert_close, cuda};

/// Of a gradient on the CPU, relative to its largest entry.
const GRADIENT_TOLERANCE: f32 = 1e-3;

fn on_host(tensor: &Tensor) -> Tensor {
    tensor.to_device(&Device::Cpu).unwrap()
}

/// A step on CUDA has the reference's losses and gradients, and the CPU's.
#[track_caller]
fn compare_step(reference: &Reference, case: &str) {
    let (_, losses, gradients) = compare(reference, case, &cuda());
    let (_, expected_losses, expected) = compare(reference, case, &Device::Cpu);
    for ((name, found), (_, expected)) in losses.named().zip(expected_losses.named()) {
        assert!((found - expected).abs() <= 1e-4 * expected, "{case} {name}: {found} {expected}");
    }
    assert_eq!(gradients.names(), expected.names());
    for name in gradients.names() {
        let found = on_host(&gradients.get(name).unwrap().unwrap());
        let expected = expected.get(name).unwrap().unwrap();
        let difference = largest_difference(&found, &expected);
        let largest = largest_value(&expected);
        assert!(
            difference <= GRADIENT_TOLERANCE * largest,
            "{case} {name}: {difference} of {largest}"
        );
    }
    let (found, expected) = (gradients.norm().unwrap(), expected.norm().unwrap());
    assert!((found - expected).abs() <= 1e-4 * expected, "{case}: norm {found} {expected}");
}

#[test]
fn a_step_has_the_losses_and_gradients_of_the_reference() {
    let _alone = alone();
    let reference = Reference::load("tiny_r18");
    for case in ["objects", "one_empty", "all_empty"] {
        compare_step(&reference, case);
    }
}

/// With norms that use the statistics of the batch: gradients within the reference's own noise, statistics too.
#[test]
fn batch_norms_train_as_the_references() {
    let _alone = alone();
    let reference = Reference::load("tiny_r50_v2");
    let (network, _, gradients) = compare(&reference, "objects", &cuda());
    check_gradients(&reference, "objects", &gradients);
    let mut statistics = 0;
    for (key, expected) in &reference.tensors {
        let Some(name) = key.strip_prefix("objects/after.") else { continue };
        let found = network.parameters().get(name).unwrap();
        let difference = largest_difference(&on_host(found.var.as_tensor()), expected);
        assert!(difference <= 1e-4 * largest_value(expected).max(0.1), "{name}: {difference}");
        statistics += 1;
    }
    assert!(statistics > 100, "{statistics}");
}

/// Bit for bit: no sum depends on the order in which threads run.
#[test]
fn steps_repeat() {
    let _alone = alone();
    let reference = Reference::load("tiny_r18");
    let run = || compare(&reference, "objects", &cuda());
    let ((_, losses, gradients), (_, again, same)) = (run(), run());
    assert_eq!(losses, again);
    for name in gradients.names() {
        let (a, b) = (gradients.get(name).unwrap().unwrap(), same.get(name).unwrap().unwrap());
        assert_eq!(largest_difference(&on_host(&a), &on_host(&b)), 0.0, "{name}");
    }
}

/// A parameter of some values, and a gradient for each of some steps.
fn parameter(random: &mut Random, device: &Device, dims: &[usize]) -> Parameter {
    let var = Var::from_tensor(&random.tensor(dims).to_device(device).unwrap()).unwrap();
    let name = format!("weight{}", dims.len());
    Parameter { name, var, kind: ParameterKind::Weight, trainable: true }
}

#[test]
fn updates_and_averages_agree() {
    let _alone = alone();
    let rules = [
        UpdateRule::Sgd(Momentum::None),
        UpdateRule::Sgd(Momentum::Heavy(0.9)),
        UpdateRule::Sgd(Momentum::Nesterov(0.9)),
        UpdateRule::ADAM_W,
    ];
    for rule in rules {
        let run = |device: &Device| {
            let mut random = Random::new(3);
            let parameters = [
                parameter(&mut random, device, &[5]),
                parameter(&mut random, device, &[7, 130]),
                parameter(&mut random, device, &[2, 3, 1]),
            ];
            let groups = ParameterGroups::uniform(0.05);
            let mut optimizer = Optimizer::new(&parameters, rule, &groups).unwrap();
            let mut average = Average::new(&parameters, 0.9).unwrap();
            let mut norms = Vec::new();
            let mut step = |quiet: bool| {
                let named = parameters.iter().map(|parameter| {
                    let gradient = random.tensor(parameter.var.dims()).to_device(device).unwrap();
                    (parameter.name.clone(), gradient)
                });
                let mut gradients = Gradients::from_tensors(named.collect::<Vec<_>>()).unwrap();
                let (norm, norm_counts) = count(|| gradients.clip_norm(2.0).unwrap());
                norms.push(norm);
                let ((), counts) = count(|| {
                    optimizer.step(&gradients, 0.1).unwrap();
                    average.update().unwrap();
                });
                if let (true, Some(counts), Some(norm_counts)) = (quiet, counts, norm_counts) {
                    // One launch for each tensor that changes; for the norm of all, one download.
                    let tensors = 1 + match rule {
                        UpdateRule::Sgd(Momentum::None) => 1,
                        UpdateRule::Sgd(_) => 2,
                        UpdateRule::AdamW { .. } => 3,
                    };
                    assert_eq!(counts, Counts { launches: 3 * tensors, ..Counts::default() });
                    let expected = Counts {
                        device_to_host: 1,
                        synchronizations: 1,
                        launches: norm_counts.launches,
                        ..Counts::default()
                    };
                    assert_eq!(norm_counts, expected);
                }
            };
            (0..4).for_each(|index| step(device.is_cuda() && index > 0));
            let after = parameters.iter().map(|p| on_host(p.var.as_tensor())).collect::<Vec<_>>();
            let averages = average.tensors().into_iter().map(|(_, t)| on_host(&t));
            (after, averages.collect::<Vec<_>>(), norms)
        };
        let (found, found_averages, norms) = run(&cuda());
        let (expected, expected_averages, expected_norms) = run(&Device::Cpu);
        let pairs =
            found.iter().zip(&expected).chain(found_averages.iter().zip(&expected_averages));
        for (found, expected) in pairs {
            assert_close(found, expected, 1e-6);
        }
        for (found, expected) in norms.iter().zip(expected_norms) {
            assert!((found - expected).abs() < 1e-9 * expected, "{found} {expected}");
        }
    }
}

/// Copies and waits of a part of a step, its launches aside.
fn copies(counts: Option<Counts>) -> Option<Counts> {
    counts.map(|counts| {
        println!("{counts:?}");
        Counts { launches: 0, ..counts }
    })
}

/// What a step asks of the driver, part by part; `docs/cuda.md` has the table.
#[test]
fn a_step_keeps_to_its_budget() {
    let _alone = alone();
    let reference = Reference::load("tiny_r18");
    let network = reference.network(&cuda(), 5);
    let parameters = network.parameters().trainable();
    let groups = ParameterGroups::uniform(1e-4);
    let rule = UpdateRule::Sgd(Momentum::Heavy(0.9));
    let mut optimizer = Optimizer::new(&parameters, rule, &groups).unwrap();
    let mut average = Average::new(&network.parameters().all(), 0.999).unwrap();
    let batch = reference.batch("objects");
    let mut step = |step: u64| {
        let mut sampler = RandomSampler::new(7, step);
        let (evaluated, losses) = count(|| network.evaluate(&batch, &mut sampler).unwrap());
        let (mut gradients, backward) = count(|| evaluated.gradients(&parameters).unwrap());
        let (_, norm) = count(|| gradients.clip_norm(1.0).unwrap());
        let ((), update) = count(|| {
            optimizer.step(&gradients, 0.01).unwrap();
            average.update().unwrap();
        });
        [losses, backward, norm, update].map(copies)
    };
    step(0);
    let [losses, backward, norm, update] = step(1);
    let quiet = Counts::default();
    let download = Counts { device_to_host: 1, synchronizations: 1, ..quiet };
    // Up: pixels; rows of the sampled logits and deltas of anchors; boxes and counts of the sampled proposals, which fill
    // all slots here; boxes, counts, used slots and labels of the masks; a gradient by the predictions of each loss.
    let up = 1 + 2 + 2 + 4 + 5;
    // Down: the proposals, and the predictions that each loss is of.
    let down = 1 + 5;
    let of_losses =
        Counts { host_to_device: up, device_to_host: down, synchronizations: down, ..quiet };
    for (part, found, expected) in [
        ("losses", losses, of_losses),
        ("gradients", backward, quiet),
        ("norm", norm, download),
        ("update", update, quiet),
    ] {
        assert_eq!(found.unwrap_or(expected), expected, "{part}");
    }
}

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

#[derive(Default)]
struct Log(Vec<StepReport>);

impl Observer for Log {
    fn step(&mut self, report: &StepReport) -> Result<Flow> {
        self.0.push(*report);
        Ok(Flow::Continue)
    }

    fn evaluate(&mut self, _: &Milestone<'_>) -> Result<Option<f64>> {
        Ok(None)
    }
}

/// A run with two batches per update, snapshots and all, follows the CPU's.
#[test]
fn a_run_follows_that_of_the_cpu() {
    let _alone = alone();
    let reference = Reference::load("tiny_r18");
    let run = |device: &Device, resume: bool| {
        let folder = std::env::temp_dir().join(format!("run-{}", std::process::id()));
        let options = TrainerOptions {
            length: RunLength::Epochs(1 + u64::from(resume)),
            evaluate_every: 1,
            seed: 5,
            schedule: Schedule {
                rate: 0.005,
                warm_up: WarmUp { steps: 2, start: 0.1 },
                course: Course::Constant,
            },
            rule: UpdateRule::Sgd(Momentum::Heavy(0.9)),
            groups: ParameterGroups::uniform(1e-4),
            clip_norm: Some(5.0),
            batches_per_update: 2,
            average: Some(0.9),
            snapshot_every: None,
        };
        let network = reference.network(device, 3);
        let folder = RunFolder::new(&folder, 1);
        let mut trainer = Trainer::new(network, options, Some(folder), Arc::new(Alone)).unwrap();
        assert_eq!(trainer.resume().unwrap(), resume.then_some(2));
        let mut log = Log::default();
        trainer.run(&mut Same(reference.batch("objects")), &mut log).unwrap();
        log.0
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
