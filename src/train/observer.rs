//! Who hears of a run's progress.

use std::path::PathBuf;
use std::time::Duration;

use super::batch::Position;
use super::losses::Losses;
use super::network::Network;
use super::state::Snapshot;
use crate::error::Result;

/// One update, as it is reported.
#[derive(Debug, Clone, PartialEq)]
pub struct StepReport {
    /// Updates made, this one included.
    pub step: u64,
    /// Updates of the whole run.
    pub steps: u64,
    /// The batch that comes next.
    pub position: Position,
    /// Passes over the data, with the part of one that is not complete.
    pub epochs: f64,
    /// Mean of the batches of the update, over all ranks.
    pub losses: Losses,
    /// Learning rate.
    pub rate: f64,
    /// Length of all gradients together, before they were clipped.
    pub gradient_norm: f64,
    /// Images that this rank has seen in the update.
    pub images: usize,
    /// Time of the update, waiting for the batches included: the mean of the updates that are reported together.
    pub elapsed: Duration,
    /// Time that the rest of the run will take if it goes on as since it was started.
    pub remaining: Duration,
}

/// A state of the run that is to be evaluated.
pub struct Milestone<'a> {
    /// Updates made.
    pub step: u64,
    /// Passes over the data, with the part of one that is not complete.
    pub epochs: f64,
    /// The network as it is.
    pub network: &'a Network,
    /// The weights on disk: the running average where one is kept, else the network's.
    pub snapshot: Option<&'a Snapshot>,
}

impl Milestone<'_> {
    /// The file to evaluate: of the running average where one is kept.
    pub fn weights(&self) -> Option<PathBuf> {
        self.snapshot.map(Snapshot::weights)
    }
}

/// Whether a run goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// It does.
    Continue,
    /// It ends after the updates that are reported together, with a snapshot, from which it can be resumed.
    Stop,
}

/// Hears of a run's progress: logs it, evaluates, and may stop it.
///
/// What fails for reasons of its own is [`Error::Observer`](crate::Error::Observer).
pub trait Observer {
    /// Once for every update, in their order: as soon as [`TrainerOptions::report_every`](super::TrainerOptions) lets their
    /// losses be read.
    ///
    /// # Errors
    /// End the run.
    fn step(&mut self, report: &StepReport) -> Result<Flow>;

    /// After as many epochs as [`TrainerOptions::evaluate_every`](super::TrainerOptions) says and after the last update,
    /// on rank 0, once the snapshot is on disk; again when a run is resumed from there. Returns how well the network
    /// does, where it was evaluated; the weights with the largest score are kept.
    ///
    /// # Errors
    /// End the run.
    fn evaluate(&mut self, milestone: &Milestone<'_>) -> Result<Option<f64>>;
}
