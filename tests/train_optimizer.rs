//! Optimisers and schedules against torch's, over several steps: see `make_training.py`.
#![cfg(feature = "train")]

mod common;

use std::collections::HashMap;

use candle_core::{Device, Tensor, Var};
use candle_detection::train::{
    Course, Decay, Gradients, Momentum, Optimizer, Parameter, ParameterGroups, ParameterKind,
    Schedule, UpdateRule, WarmUp,
};
use common::{fixtures, largest_difference};

const STEPS: usize = 6;
const TOLERANCE: f32 = 1e-6;

struct Reference(HashMap<String, Tensor>);

impl Reference {
    fn load() -> Self {
        let path = fixtures().join("train_optimizers.safetensors");
        Self(candle_core::safetensors::load(path, &Device::Cpu).unwrap())
    }

    fn rates(&self, key: &str) -> Vec<f64> {
        self.0[key].to_vec1().unwrap()
    }

    fn parameters(&self) -> Vec<Parameter> {
        [
            ("conv.weight", ParameterKind::Weight),
            ("norm.bias", ParameterKind::Norm),
            ("norm.weight", ParameterKind::Norm),
        ]
        .into_iter()
        .map(|(name, kind)| {
            let first = self.0[&format!("start/{name}")].copy().unwrap();
            let var = Var::from_tensor(&first).unwrap();
            Parameter { name: name.to_owned(), var, kind, trainable: true }
        })
        .collect()
    }

    fn gradients(&self, parameters: &[Parameter], step: usize) -> Gradients {
        let of = |p: &Parameter| self.0[&format!("grads/{}", p.name)].get(step).unwrap();
        Gradients::from_tensors(parameters.iter().map(|p| (p.name.clone(), of(p)))).unwrap()
    }

    fn groups(weight_decay: f64) -> ParameterGroups {
        let rates = vec![("norm.".to_owned(), 0.5)];
        ParameterGroups { weight_decay, decay: Decay::AllButNorms, rates }
    }

    fn check(&self, case: &str, step: usize, parameters: &[Parameter]) {
        for parameter in parameters {
            let Some(expected) = self.0.get(&format!("{case}/{step}/{}", parameter.name)) else {
                continue;
            };
            let difference = largest_difference(parameter.var.as_tensor(), expected);
            assert!(difference <= TOLERANCE, "{case} {step} {}: {difference}", parameter.name);
        }
    }
}

const SGD: UpdateRule = UpdateRule::Sgd(Momentum::Heavy(0.9));

#[test]
fn update_rules_are_torchs() {
    let reference = Reference::load();
    let rates = reference.rates("rates");
    let cases = [
        ("sgd_plain", UpdateRule::Sgd(Momentum::None), 0.0),
        ("sgd_decay", UpdateRule::Sgd(Momentum::None), 0.01),
        ("sgd_momentum", SGD, 0.01),
        ("sgd_nesterov", UpdateRule::Sgd(Momentum::Nesterov(0.9)), 0.01),
        ("adamw", UpdateRule::ADAM_W, 0.05),
        ("adamw_betas", UpdateRule::AdamW { betas: [0.8, 0.95], eps: 1e-4 }, 0.05),
    ];
    for (case, rule, decay) in cases {
        let parameters = reference.parameters();
        let mut optimizer = Optimizer::new(&parameters, rule, &Reference::groups(decay)).unwrap();
        for (step, rate) in rates.iter().copied().enumerate() {
            optimizer.step(&reference.gradients(&parameters, step), rate).unwrap();
            reference.check(case, step, &parameters);
        }
        assert_eq!(optimizer.steps(), STEPS as u64);
        // The comparison means something: the parameters have moved.
        let first = &reference.0["start/conv.weight"];
        assert!(largest_difference(parameters[0].var.as_tensor(), first) > 0.01, "{case}");
    }
}

#[test]
fn clipping_is_torchs() {
    let reference = Reference::load();
    let (rates, norms) =
        (reference.rates("rates"), common::values(&reference.0["sgd_clipped/norms"]));
    let parameters = reference.parameters();
    let mut optimizer = Optimizer::new(&parameters, SGD, &Reference::groups(0.01)).unwrap();
    for step in 0..STEPS {
        let mut gradients = reference.gradients(&parameters, step);
        let norm = gradients.clip_norm(12.0).unwrap();
        assert!((norm - f64::from(norms[step])).abs() < 1e-5 * norm, "{step}: {norm}");
        optimizer.step(&gradients, rates[step]).unwrap();
        reference.check("sgd_clipped", step, &parameters);
    }
    assert!(norms.iter().any(|norm| *norm < 12.0) && norms.iter().any(|norm| *norm > 12.0));
}

/// Two halves of a batch, each weighted by a half, are the whole.
#[test]
fn accumulated_gradients_are_those_of_the_whole() {
    let reference = Reference::load();
    let rates = reference.rates("rates");
    let parameters = reference.parameters();
    let mut optimizer = Optimizer::new(&parameters, SGD, &Reference::groups(0.01)).unwrap();
    for (step, rate) in rates.into_iter().enumerate() {
        let whole = reference.gradients(&parameters, step);
        let part = |factor: f64| {
            let of = |p: &Parameter| (whole.get(&p.name).unwrap().unwrap() * factor).unwrap();
            Gradients::from_tensors(parameters.iter().map(|p| (p.name.clone(), of(p)))).unwrap()
        };
        let mut sum = part(0.5);
        sum.add(&part(1.5)).unwrap();
        sum.scale(0.5);
        optimizer.step(&sum, rate).unwrap();
        reference.check("sgd_momentum", step, &parameters);
    }
}

#[test]
fn a_restored_optimiser_goes_on_bit_for_bit() {
    let reference = Reference::load();
    for rule in [SGD, UpdateRule::ADAM_W] {
        let parameters = reference.parameters();
        let mut optimizer = Optimizer::new(&parameters, rule, &Reference::groups(0.05)).unwrap();
        let step = |optimizer: &mut Optimizer, parameters: &[Parameter], step| {
            optimizer.step(&reference.gradients(parameters, step), 0.01).unwrap();
        };
        (0..3).for_each(|i| step(&mut optimizer, &parameters, i));
        let saved: HashMap<String, Tensor> = optimizer
            .state()
            .into_iter()
            .map(|(name, tensor)| (name, tensor.copy().unwrap()))
            .collect();
        let copies: Vec<Parameter> = parameters
            .iter()
            .map(|p| {
                let var = Var::from_tensor(&p.var.as_detached_tensor().copy().unwrap()).unwrap();
                Parameter { var, ..p.clone() }
            })
            .collect();
        let mut restored = Optimizer::new(&copies, rule, &Reference::groups(0.05)).unwrap();
        restored.restore(3, |name| Ok(saved[name].clone())).unwrap();
        for i in 3..STEPS {
            step(&mut optimizer, &parameters, i);
            step(&mut restored, &copies, i);
        }
        for (a, b) in parameters.iter().zip(&copies) {
            assert_eq!(largest_difference(a.var.as_tensor(), b.var.as_tensor()), 0.0, "{}", a.name);
        }
    }
}

#[test]
fn gradients_of_other_parameters_are_refused() {
    let reference = Reference::load();
    let parameters = reference.parameters();
    let mut optimizer = Optimizer::new(&parameters[..2], SGD, &Reference::groups(0.0)).unwrap();
    let gradients = reference.gradients(&parameters, 0);
    let message = optimizer.step(&gradients, 0.1).unwrap_err().to_string();
    assert!(message.contains("3 parameters") && message.contains("2"), "{message}");
    assert_eq!(optimizer.steps(), 0);
}

#[test]
fn parameters_are_told_apart_by_kind_and_name() {
    let reference = Reference::load();
    let groups = |decay| ParameterGroups { weight_decay: 0.3, decay, ..Reference::groups(0.0) };
    let options = |decay, index: usize| groups(decay).options(&reference.parameters()[index]);
    assert_eq!(options(Decay::All, 1).weight_decay, 0.3);
    assert_eq!(options(Decay::AllButNorms, 1).weight_decay, 0.0);
    assert_eq!(options(Decay::WeightsOnly, 0).weight_decay, 0.3);
    assert_eq!(options(Decay::WeightsOnly, 1).weight_decay, 0.0);
    let bias = Parameter { kind: ParameterKind::Bias, ..reference.parameters().remove(0) };
    assert_eq!(groups(Decay::WeightsOnly).options(&bias).weight_decay, 0.0);
    assert_eq!(groups(Decay::AllButNorms).options(&bias).weight_decay, 0.3);
    assert_eq!([options(Decay::All, 0).rate, options(Decay::All, 2).rate], [1.0, 0.5]);
}

#[test]
fn schedules_are_torchs() {
    let reference = Reference::load();
    let steps = Schedule {
        rate: 0.02,
        warm_up: WarmUp { steps: 20, start: 0.001 },
        course: Course::Steps { milestones: vec![50, 70], factor: 0.1 },
    };
    let cosine = Schedule {
        rate: 0.02,
        warm_up: WarmUp::NONE,
        course: Course::Cosine { total: 60, end: 0.1 },
    };
    for (case, schedule) in [("steps", steps), ("cosine", cosine)] {
        for (step, expected) in (0..).zip(reference.rates(&format!("schedule/{case}"))) {
            let found = schedule.at(step);
            assert!((found - expected).abs() < 1e-12, "{case} {step}: {found} {expected}");
        }
    }
}
