//! Training on CUDA: whole steps against torchvision's and the CPU's, updates of the weights, and what a step copies.

use candle_core::{Device, Tensor, Var};
use candle_detection::train::{
    Average, Gradients, Momentum, Optimizer, Parameter, ParameterGroups, ParameterKind,
    RandomSampler, UpdateRule, Verdict,
};

use super::common::training::{Reference, check_gradients, compare};
use super::common::{largest_difference, largest_value};
use super::counters::{Counts, alone, count};
use super::support::{Random, assert_close, cuda};

/// Of a gradient on the CPU, relative to its largest entry.
const GRADIENT_TOLERANCE: f32 = 1e-3;
/// Or relative to the largest entry of all gradients: sums of numbers that cancel out leave rounding errors, such as that of
/// the bias in front of a softmax over places.
const ROUNDING: f32 = 1e-6;

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
    let all = gradients.names().iter().map(|name| expected.get(name).unwrap().unwrap());
    let rounding = ROUNDING * all.map(|tensor| largest_value(&tensor)).fold(0.0, f32::max);
    for name in gradients.names() {
        let found = on_host(&gradients.get(name).unwrap().unwrap());
        let expected = expected.get(name).unwrap().unwrap();
        let difference = largest_difference(&found, &expected);
        let largest = largest_value(&expected);
        assert!(
            difference <= (GRADIENT_TOLERANCE * largest).max(rounding),
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

#[test]
fn a_step_on_mobilenet_has_the_losses_and_gradients_of_the_cpu() {
    let _alone = alone();
    compare_step(&Reference::load("tiny_mobilenet"), "objects");
}

#[test]
fn a_step_on_keypoints_has_the_losses_and_gradients_of_the_cpu() {
    let _alone = alone();
    let reference = Reference::load("tiny_keypointrcnn");
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
    // Whatever is in the images, and in one of them nothing.
    for case in ["objects", "one_empty", "all_empty"] {
        let batch = reference.batch(case);
        let mut step = |step: u64| {
            let mut sampler = RandomSampler::new(7, step);
            let (evaluated, losses) = count(|| network.evaluate(&batch, &mut sampler).unwrap());
            let values = evaluated.values().clone();
            let (gradients, backward) = count(|| evaluated.gradients(&parameters).unwrap());
            let (verdict, judged) =
                count(|| Verdict::new(&values, &gradients, Some(1.0), None).unwrap());
            let ((), update) = count(|| {
                optimizer.step_if(&verdict, &gradients, 0.01).unwrap();
                average.update_if(&verdict).unwrap();
            });
            let (read, reading) =
                count(|| Verdict::read(network.loss_names(), &[&verdict, &verdict]).unwrap());
            assert!(read.iter().all(|judgement| judgement.goes_on));
            [losses, backward, judged, update, reading].map(copies)
        };
        step(0);
        let [losses, backward, judged, update, reading] = step(1);
        let quiet = Counts::default();
        // The pixels of all images, and what they show.
        let uploads = Counts { host_to_device: 2, ..quiet };
        for (part, found, expected) in [
            ("losses", losses, uploads),
            ("gradients", backward, quiet),
            ("verdict", judged, quiet),
            ("update", update, quiet),
        ] {
            assert_eq!(found.unwrap_or(expected), expected, "{case}, {part}");
        }
        let download = Counts { device_to_host: 1, synchronizations: 1, ..quiet };
        let reading = reading.map(|counts| Counts { device_to_device: 0, ..counts });
        assert_eq!(reading.unwrap_or(download), download, "{case}, reading");
    }
}
