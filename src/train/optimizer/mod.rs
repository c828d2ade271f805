//! How gradients change parameters.
//!
//! Update rules are torch's; the state of each parameter is kept under its name, so that it can be saved and found
//! again.

mod groups;
pub(super) mod kernels;

use candle_core::Tensor;
use kernels::ByMoments;

pub use groups::{Decay, ParameterGroups, ParameterOptions};

use super::gradients::Gradients;
use super::parameters::Parameter;
use super::verdict::{Approval, Verdict};
use crate::error::{Error, Result};

/// How a gradient changes a parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum UpdateRule {
    /// Stochastic gradient descent: `v ← momentum · v + g + decay · p`, then `p ← p − rate · v`.
    ///
    /// Reference: torch `optim/sgd.py`, without dampening.
    Sgd(Momentum),
    /// Adam with decay apart from the gradient (Loshchilov and Hutter, arXiv:1711.05101).
    ///
    /// Reference: torch `optim/adamw.py`, without `amsgrad`.
    AdamW {
        /// What a step keeps of the averages of gradients and of their squares.
        betas: [f64; 2],
        /// Added to the root of the average square.
        eps: f64,
    },
}

/// What a step of gradient descent keeps of the ones before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Momentum {
    /// Nothing.
    None,
    /// This share of the last direction, such as 0.9.
    Heavy(f64),
    /// The same, with the gradient taken as if the step had been made: `p ← p − rate · (g + decay · p + momentum · v)`.
    Nesterov(f64),
}

impl UpdateRule {
    /// AdamW with torch's numbers: 0.9, 0.999 and 1e-8.
    pub const ADAM_W: Self = Self::AdamW { betas: [0.9, 0.999], eps: 1e-8 };

    /// Names of the tensors that are kept per parameter.
    fn slots(&self) -> &'static [&'static str] {
        match self {
            Self::Sgd(Momentum::None) => &[],
            Self::Sgd(_) => &["momentum"],
            Self::AdamW { .. } => &["mean", "mean_square"],
        }
    }
}

/// A parameter with what the optimiser knows of it.
struct Entry {
    parameter: Parameter,
    options: ParameterOptions,
    /// One per slot of the rule.
    state: Vec<Tensor>,
}

/// Changes parameters by their gradients.
pub struct Optimizer {
    rule: UpdateRule,
    entries: Vec<Entry>,
    steps: u64,
}

impl Optimizer {
    /// An optimiser of `parameters` that has made no step.
    ///
    /// # Errors
    /// Those of candle.
    pub fn new(
        parameters: &[Parameter],
        rule: UpdateRule,
        groups: &ParameterGroups,
    ) -> Result<Self> {
        let entries = parameters
            .iter()
            .map(|parameter| {
                let tensor = parameter.var.as_tensor();
                let slots = rule.slots().iter();
                let state = slots.map(|_| kernels::state_like(tensor)).collect::<Result<_>>()?;
                let options = groups.options(parameter);
                Ok(Entry { parameter: parameter.clone(), options, state })
            })
            .collect::<Result<_>>()?;
        Ok(Self { rule, entries, steps: 0 })
    }

    /// Steps made.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The parameters, in the order in which gradients are expected.
    pub fn parameters(&self) -> Vec<Parameter> {
        self.entries.iter().map(|entry| entry.parameter.clone()).collect()
    }

    /// Makes a step at a learning rate, which each parameter multiplies by its own factor.
    ///
    /// # Errors
    /// [`Error::TrainingState`] when the gradients are those of other parameters; those of candle.
    pub fn step(&mut self, gradients: &Gradients, rate: f64) -> Result<()> {
        let factor = gradients.parts().1;
        self.advance(gradients, rate, |tensor| Gradient { tensor, factor, verdict: None })
    }

    /// Like [`Self::step`], with gradients as long as a verdict on them allows, if it goes on; else nothing changes but the
    /// number of steps, which [`Self::rewind`] sets right. Who waits for the verdict is the device.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub fn step_if(&mut self, verdict: &Verdict, gradients: &Gradients, rate: f64) -> Result<()> {
        let verdict = Some(verdict);
        self.advance(gradients, rate, |tensor| Gradient { tensor, factor: 1.0, verdict })
    }

    /// Takes back the count of steps that were not made.
    pub fn rewind(&mut self, steps: u64) {
        self.steps = steps;
    }

    fn advance<'a>(
        &mut self,
        gradients: &'a Gradients,
        rate: f64,
        gradient: impl Fn(&'a Tensor) -> Gradient<'a>,
    ) -> Result<()> {
        let names = self.entries.iter().map(|entry| &entry.parameter.name);
        if !names.eq(gradients.names()) {
            return Err(Error::TrainingState {
                what: "gradients".to_owned(),
                found: format!("those of {} parameters", gradients.names().len()),
                expected: format!("those of the optimiser's {}, in its order", self.entries.len()),
            });
        }
        self.steps += 1;
        for (entry, tensor) in self.entries.iter().zip(gradients.parts().0) {
            let (gradient, rate) = (gradient(tensor), rate * entry.options.rate);
            match self.rule {
                UpdateRule::Sgd(momentum) => entry.descend(momentum, gradient, rate)?,
                UpdateRule::AdamW { betas, eps } => {
                    entry.adam(betas, eps, gradient, rate, self.steps)?;
                }
            }
        }
        Ok(())
    }

    /// The state by name: `SLOT.PARAMETER`.
    pub fn state(&self) -> Vec<(String, Tensor)> {
        let rule = self.rule;
        let of_entry = |entry: &Entry| {
            let named = rule.slots().iter().zip(entry.state.clone());
            let name = entry.parameter.name.clone();
            named.map(|(slot, tensor)| (format!("{slot}.{name}"), tensor)).collect::<Vec<_>>()
        };
        self.entries.iter().flat_map(of_entry).collect()
    }

    /// Goes on from a saved state, which `find` yields by name.
    ///
    /// # Errors
    /// Those of `find`, [`Error::Shape`] for a tensor of another shape.
    pub fn restore(
        &mut self,
        steps: u64,
        mut find: impl FnMut(&str) -> Result<Tensor>,
    ) -> Result<()> {
        for (name, tensor) in self.state() {
            kernels::overwrite(&tensor, &find(&name)?)?;
        }
        self.steps = steps;
        Ok(())
    }
}

/// The gradient of a parameter.
#[derive(Clone, Copy)]
struct Gradient<'a> {
    tensor: &'a Tensor,
    /// What the host multiplies it by.
    factor: f64,
    /// Has a factor as well, and says whether the step is made.
    verdict: Option<&'a Verdict>,
}

impl<'a> Gradient<'a> {
    /// For changes by the gradient.
    fn approval(self) -> Approval<'a> {
        self.verdict.map_or(Approval::NotNeeded, Approval::Scaling)
    }

    /// For changes by what was made of it.
    fn approval_alone(self) -> Approval<'a> {
        self.verdict.map_or(Approval::NotNeeded, Approval::Needed)
    }
}

impl Entry {
    fn descend(&self, momentum: Momentum, gradient: Gradient<'_>, rate: f64) -> Result<()> {
        let p = self.parameter.var.as_tensor();
        let decay = self.options.weight_decay;
        let (g, factor, approval) = (gradient.tensor, gradient.factor, gradient.approval());
        match (momentum, self.state.as_slice()) {
            (Momentum::Heavy(share), [v]) => {
                kernels::combine(v, share, [(g, factor), (p, decay)], approval)?;
                kernels::blend(p, 1.0, (v, -rate), gradient.approval_alone())
            }
            (Momentum::Nesterov(share), [v]) => {
                kernels::combine(v, share, [(g, factor), (p, decay)], approval)?;
                let terms = [(g, -rate * factor), (v, -rate * share)];
                kernels::combine(p, 1.0 - rate * decay, terms, approval)
            }
            _ => kernels::blend(p, 1.0 - rate * decay, (g, -rate * factor), approval),
        }
    }

    fn adam(
        &self,
        betas: [f64; 2],
        eps: f64,
        gradient: Gradient<'_>,
        rate: f64,
        steps: u64,
    ) -> Result<()> {
        let [mean, squares] = self.state.as_slice() else { return Ok(()) };
        let (g, factor, approval) = (gradient.tensor, gradient.factor, gradient.approval());
        kernels::blend(mean, betas[0], (g, (1.0 - betas[0]) * factor), approval)?;
        kernels::average_squares(squares, betas[1], (g, factor), approval)?;
        // Averages that start at zero are too small by these shares.
        let seen = betas.map(|beta| 1.0 - beta.powi(steps.min(i32::MAX as u64) as i32));
        let step = ByMoments {
            keep: 1.0 - rate * self.options.weight_decay,
            rate: rate / seen[0],
            correction: 1.0 / seen[1],
            eps,
        };
        let p = self.parameter.var.as_tensor();
        kernels::step_by_moments(p, [mean, squares], step, gradient.approval_alone())
    }
}
