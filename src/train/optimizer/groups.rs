//! Which parameters are treated otherwise than the rest.

use crate::train::parameters::{Parameter, ParameterKind};

/// How one parameter is updated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ParameterOptions {
    /// Factor on the learning rate.
    pub rate: f64,
    /// Share of the parameter that is taken from it, per unit of learning rate.
    pub weight_decay: f64,
}

/// Which parameters decay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decay {
    /// All, as in the recipe of the published weights.
    All,
    /// All but weights and biases of norms.
    AllButNorms,
    /// Weights of convolutions and linear layers only.
    WeightsOnly,
}

/// Options of all parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct ParameterGroups {
    /// Share of a parameter that is taken from it, per unit of learning rate.
    pub weight_decay: f64,
    /// Which parameters decay.
    pub decay: Decay,
    /// Factors on the learning rate of parameters whose names start with these prefixes; the first that fits counts.
    pub rates: Vec<(String, f64)>,
}

impl ParameterGroups {
    /// One rate for all, all decay.
    pub fn uniform(weight_decay: f64) -> Self {
        Self { weight_decay, decay: Decay::All, rates: Vec::new() }
    }

    /// The options of a parameter.
    pub fn options(&self, parameter: &Parameter) -> ParameterOptions {
        let decays = match self.decay {
            Decay::All => true,
            Decay::AllButNorms => parameter.kind != ParameterKind::Norm,
            Decay::WeightsOnly => parameter.kind == ParameterKind::Weight,
        };
        let rate = self.rates.iter().find(|(prefix, _)| parameter.name.starts_with(prefix));
        ParameterOptions {
            rate: rate.map_or(1.0, |(_, rate)| *rate),
            weight_decay: if decays { self.weight_decay } else { 0.0 },
        }
    }
}
