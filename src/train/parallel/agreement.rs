//! What ranks have to agree on while they train.

use candle_core::{Device, Tensor};

use super::{Communicator, average_gradients};
use crate::error::{Error, Result};
use crate::train::gradients::Gradients;
use crate::train::observer::Flow;

/// What was computed of an update, on the device of the network.
pub(in crate::train) struct Computed {
    /// Means of the batches, `[L]` f32.
    pub losses: Tensor,
    /// Likewise.
    pub gradients: Gradients,
    /// Ids of the images that this rank has seen.
    pub images: Vec<u64>,
}

/// The ranks of a run, as one of them sees them. A run of one process agrees with itself, and nothing is copied.
pub(in crate::train) struct Ranks<'a> {
    pub communicator: &'a dyn Communicator,
    pub device: &'a Device,
}

impl Ranks<'_> {
    /// Whether this is the only one.
    pub fn is_alone(&self) -> bool {
        self.communicator.world_size() == 1
    }

    /// Refuses ranks that go on from different steps, such as one that can't see the run's folder.
    pub fn check_step(&self, step: u64) -> Result<()> {
        if self.is_alone() {
            return Ok(());
        }
        // In two parts, as f32 holds 24 bits exactly.
        let (low, high) = (step % (1 << 24), step >> 24);
        let mut steps = vec![0.0; 2 * self.communicator.world_size()];
        steps[2 * self.communicator.rank()..][..2].copy_from_slice(&[low as f32, high as f32]);
        let all = self.exchange(steps)?;
        let steps: Vec<u64> =
            all.chunks_exact(2).map(|step| step[0] as u64 + ((step[1] as u64) << 24)).collect();
        if steps.iter().all(|other| *other == step) {
            return Ok(());
        }
        Err(Error::TrainingState {
            what: "the steps that ranks go on from, by rank".to_owned(),
            found: format!("{steps:?}"),
            expected: "the same for all; every rank must be able to read the run's folder"
                .to_owned(),
        })
    }

    /// Averages over all, unless one of them has failed: then all fail, instead of waiting for it. `losses` are as many as
    /// the networks have.
    pub fn average(&self, computed: Result<Computed>, losses: usize) -> Result<Computed> {
        if self.is_alone() {
            return computed;
        }
        let mut values = match &computed {
            Ok(computed) => computed.losses.to_vec1()?,
            Err(_) => vec![0.0; losses],
        };
        values.push(if computed.is_err() { 1.0 } else { 0.0 });
        let mut sums = self.exchange(values)?;
        let mut computed = computed?;
        if sums.pop().is_some_and(|failed| failed > 0.0) {
            let problem = "another rank has failed; see its message".to_owned();
            return Err(Error::Parallel { rank: self.communicator.rank(), problem });
        }
        average_gradients(self.communicator, &mut computed.gradients)?;
        let share = 1.0 / self.communicator.world_size() as f32;
        sums.iter_mut().for_each(|sum| *sum *= share);
        computed.losses = Tensor::new(sums, self.device)?;
        Ok(computed)
    }

    /// Whether the observer of any wants to stop.
    pub fn any_stops(&self, flow: Flow) -> Result<bool> {
        if self.is_alone() {
            return Ok(flow == Flow::Stop);
        }
        let stops = self.exchange(vec![if flow == Flow::Stop { 1.0 } else { 0.0 }])?;
        Ok(stops[0] > 0.0)
    }

    /// Sums over all.
    fn exchange(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        let values = Tensor::new(values, self.device)?;
        Ok(self.communicator.all_reduce_sum(&values)?.to_vec1()?)
    }
}
