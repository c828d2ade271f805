//! What can be chosen about a run.

use super::optimizer::{ParameterGroups, UpdateRule};
use super::schedule::Schedule;
use crate::error::{Error, Result};

/// When a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunLength {
    /// After so many passes over the data.
    Epochs(u64),
    /// After so many updates, be it amid a pass.
    Updates(u64),
}

impl RunLength {
    /// Updates of the whole run.
    pub fn updates(self, per_epoch: u64) -> u64 {
        match self {
            Self::Epochs(epochs) => epochs * per_epoch,
            Self::Updates(updates) => updates,
        }
    }
}

/// How a run goes.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainerOptions {
    /// When it ends.
    pub length: RunLength,
    /// Of all that is random about the steps. The batches have a seed of their own.
    pub seed: u64,
    /// The learning rate.
    pub schedule: Schedule,
    /// How gradients change parameters.
    pub rule: UpdateRule,
    /// Which parameters are treated otherwise.
    pub groups: ParameterGroups,
    /// The most that all gradients together may measure; `None` for no limit.
    pub clip_norm: Option<f64>,
    /// Batches whose gradients are averaged to one update, at least 1; fewer at the end of an epoch.
    pub batches_per_update: usize,
    /// Share that a running average of the weights keeps at each update, such as 0.9998; `None` for no average.
    pub average: Option<f64>,
    /// Updates between snapshots; there is one after every epoch and after the last update anyway.
    pub snapshot_every: Option<u64>,
    /// Epochs between evaluations, at least 1; there is one after the last update anyway.
    pub evaluate_every: u64,
    /// Updates between times when losses are read, at least 1; they are before every snapshot anyway. The observer hears
    /// of all updates then, one by one.
    ///
    /// Weights don't depend on it. On a GPU each reading is a download that waits for all updates so far, and nothing waits
    /// in between. A loss or gradient that is not finite is found when it is read; the updates from it on change nothing.
    pub report_every: u64,
}

impl TrainerOptions {
    /// Updates of an epoch of so many batches.
    pub fn updates_per_epoch(&self, batches: usize) -> u64 {
        batches.div_ceil(self.batches_per_update.max(1)) as u64
    }

    pub(super) fn check(&self) -> Result<()> {
        if let RunLength::Epochs(0) | RunLength::Updates(0) = self.length {
            return Err(option("length", &format!("{:?}", self.length), "at least 1"));
        }
        if self.snapshot_every == Some(0) {
            return Err(option("snapshot_every", "0", "at least 1, or none"));
        }
        if self.evaluate_every == 0 {
            return Err(option("evaluate_every", "0", "at least 1"));
        }
        if self.report_every == 0 {
            return Err(option("report_every", "0", "at least 1"));
        }
        if self.batches_per_update == 0 {
            return Err(option("batches_per_update", "0", "at least 1"));
        }
        if let Some(length) = self.clip_norm.filter(|length| length.is_nan() || *length <= 0.0) {
            return Err(option("clip_norm", &length.to_string(), "a length above 0"));
        }
        if let Some(decay) = self.average.filter(|decay| !(0.0..1.0).contains(decay)) {
            return Err(option("average", &decay.to_string(), "a share from 0 to below 1"));
        }
        let rate = self.schedule.rate;
        if !(rate > 0.0 && rate.is_finite()) {
            return Err(option("schedule.rate", &rate.to_string(), "a rate above 0"));
        }
        Ok(())
    }
}

pub(super) fn option(field: &str, found: &str, expected: &str) -> Error {
    Error::Config {
        origin: "training options".to_owned(),
        field: field.to_owned(),
        found: found.to_owned(),
        expected: expected.to_owned(),
    }
}
