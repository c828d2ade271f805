//! Updates that were started and of which nobody has heard yet.

use std::time::{Duration, Instant};

use candle_core::Tensor;

use super::losses::{LossNames, Losses};
use super::observer::StepReport;
use super::state::Numbers;
use super::verdict::{Judgement, Verdict};
use crate::error::{Error, Result};

/// How far a run is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Progress {
    pub numbers: Numbers,
    /// Steps of the optimiser.
    pub steps: u64,
    /// Updates of the running average, where one is kept.
    pub updates: u64,
}

/// An update whose losses and verdict are on the device.
pub(super) struct Pending {
    /// The state that it changes.
    pub before: Progress,
    /// The state after it, if it goes on.
    pub after: Numbers,
    pub epochs: f64,
    pub rate: f64,
    pub images: Vec<u64>,
    /// Of this rank, `[L]`.
    pub own_losses: Tensor,
    pub verdict: Verdict,
}

impl Pending {
    /// What an observer hears of it; the clock is read for the last update that was started.
    pub fn report(&self, judgement: &Judgement, reading: &Reading) -> StepReport {
        StepReport {
            step: self.after.step,
            steps: reading.steps,
            position: self.after.position,
            epochs: self.epochs,
            losses: judgement.losses.clone(),
            rate: self.rate,
            gradient_norm: judgement.gradient_norm,
            images: self.images.len(),
            elapsed: reading.elapsed,
            remaining: reading
                .per_update
                .mul_f64(reading.steps.saturating_sub(self.after.step) as f64),
        }
    }

    /// Why it was not made, as this rank sees it.
    pub fn error(self, names: &LossNames, judgement: &Judgement, rank: usize) -> Result<Error> {
        let step = self.after.step;
        let own = Losses::new(names, &self.own_losses.to_vec1()?);
        let what = if !own.are_finite() {
            format!("a loss of step {step}")
        } else if !judgement.losses.are_finite() {
            let problem = "another rank has failed; see its message".to_owned();
            return Ok(Error::Parallel { rank, problem });
        } else {
            format!("the gradient of step {step}")
        };
        Ok(Error::NonFinite { what, images: self.images, losses: own.to_string() })
    }
}

/// When a run and its current group of updates were begun.
pub(super) struct Clock {
    run: Instant,
    group: Instant,
    /// Updates made before.
    first: u64,
    /// Updates of the whole run.
    steps: u64,
}

/// Times of the updates of a group.
pub(super) struct Reading {
    steps: u64,
    /// Of each.
    elapsed: Duration,
    /// Since the run was begun, all that it does besides included.
    per_update: Duration,
}

impl Clock {
    /// Starts with a run from the update `first` to `steps`.
    pub fn start(first: u64, steps: u64) -> Self {
        let now = Instant::now();
        Self { run: now, group: now, first, steps }
    }

    /// Starts with a group of updates.
    pub fn begin_group(&mut self) {
        self.group = Instant::now();
    }

    /// After a group of some updates, the last of which is `step`.
    pub fn read(&self, updates: usize, step: u64) -> Reading {
        let done = step.saturating_sub(self.first).max(1);
        Reading {
            steps: self.steps,
            elapsed: self.group.elapsed().div_f64(updates.max(1) as f64),
            per_update: self.run.elapsed().div_f64(done as f64),
        }
    }
}
