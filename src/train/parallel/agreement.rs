//! What ranks have to agree on while they train.

use std::sync::Arc;

use candle_core::{Device, Tensor};

use super::{Collective, Communicator, Exchange, Plan};
use crate::error::{Error, Result};
use crate::train::observer::Flow;

/// The ranks of a run, as one of them sees them. A run of one process agrees with itself, and nothing is copied.
pub(in crate::train) struct Ranks<'a> {
    pub communicator: &'a Arc<dyn Communicator>,
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
        let all = self.sums(steps)?;
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

    /// What an update's gradients are summed by; `None` where there is nobody to sum with.
    pub fn exchange_of_gradients(&self, plan: &Arc<Plan>) -> Option<Exchange> {
        let exchange =
            || Exchange::new(self.communicator.clone(), Collective::AllReduceSum, plan.clone());
        (!self.is_alone()).then(exchange)
    }

    /// The means over all of the losses `[L]` of an update. They stay where they are: nothing waits.
    pub fn mean(&self, losses: &Tensor) -> Result<Tensor> {
        if self.is_alone() {
            return Ok(losses.clone());
        }
        let sum = self.communicator.start(Collective::AllReduceSum, losses)?.finish()?;
        Ok((sum * (1.0 / self.communicator.world_size() as f64))?)
    }

    /// Whether the observer of any wants to stop.
    pub fn any_stops(&self, flow: Flow) -> Result<bool> {
        if self.is_alone() {
            return Ok(flow == Flow::Stop);
        }
        let stops = self.sums(vec![if flow == Flow::Stop { 1.0 } else { 0.0 }])?;
        Ok(stops[0] > 0.0)
    }

    /// Sums over all; waits for them.
    fn sums(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        let values = Tensor::new(values, self.device)?;
        let sums = self.communicator.start(Collective::AllReduceSum, &values)?.finish()?;
        Ok(sums.to_vec1()?)
    }
}
