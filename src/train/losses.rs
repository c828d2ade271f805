//! Losses by name.

use std::fmt;
use std::sync::Arc;

/// Names of the losses of an architecture, in its order; torchvision's where it has one.
pub type LossNames = Arc<[String]>;

/// The losses of a batch, or means over some batches.
#[derive(Debug, Clone, PartialEq)]
pub struct Losses {
    names: LossNames,
    values: Vec<f32>,
}

impl Losses {
    /// As many values as names.
    pub(super) fn new(names: &LossNames, values: &[f32]) -> Self {
        Self { names: names.clone(), values: values.to_vec() }
    }

    /// The sum, which training makes small.
    pub fn total(&self) -> f32 {
        self.values.iter().sum()
    }

    /// Each with its name, in the order of the architecture.
    pub fn named(&self) -> impl Iterator<Item = (&str, f32)> {
        self.names.iter().map(String::as_str).zip(self.values.iter().copied())
    }

    /// The loss called `name`.
    pub fn get(&self, name: &str) -> Option<f32> {
        self.named().find(|(own, _)| *own == name).map(|(_, value)| value)
    }

    /// The mean over batches of one network; `None` of none.
    pub fn mean(all: &[Self]) -> Option<Self> {
        let (first, others) = all.split_first()?;
        let mut mean = first.clone();
        for losses in others {
            mean.values.iter_mut().zip(&losses.values).for_each(|(sum, value)| *sum += value);
        }
        let share = 1.0 / all.len() as f32;
        mean.values.iter_mut().for_each(|value| *value *= share);
        Some(mean)
    }

    /// Whether all are finite.
    pub fn are_finite(&self) -> bool {
        self.values.iter().all(|value| value.is_finite())
    }
}

impl fmt::Display for Losses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (name, value)) in self.named().enumerate() {
            let separator = if place > 0 { ", " } else { "" };
            write!(f, "{separator}{name} {value:.4}")?;
        }
        Ok(())
    }
}
