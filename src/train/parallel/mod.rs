//! Training by several processes (or threads) that see different batches and make the same steps.
//!
//! Each has its own network; before a step, gradients are averaged over all. What carries the numbers is a
//! [`Communicator`]: `NcclCommunicator` between GPUs (feature `nccl`), [`ThreadCommunicator`] within a process, or one of
//! your own; [`distribute`] is where its ranks can meet. Gradients travel while the backward pass goes on.

mod agreement;
mod exchange;
mod launch;
#[cfg(feature = "nccl")]
mod nccl;
mod rendezvous;
mod threads;

use std::sync::Arc;

use candle_core::Tensor;

pub(super) use agreement::Ranks;
pub(super) use exchange::{Exchange, Plan};
pub use launch::Launch;
#[cfg(feature = "nccl")]
pub use nccl::NcclCommunicator;
pub use rendezvous::distribute;
pub use threads::ThreadCommunicator;

use super::gradients::Gradients;
use crate::error::Result;

/// Elements that travel together: 25 MiB, as torch's.
pub(super) const BUCKET: usize = 25 * (1 << 20) / 4;

/// What ranks do with numbers together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Collective {
    /// Each gets the sum of what all give, the same bits.
    AllReduceSum,
    /// Each gets what rank 0 gives; the others give a tensor of the same form.
    Broadcast,
}

/// Exchanges numbers between the ranks of a run. Every rank makes the same calls in the same order.
pub trait Communicator: Send + Sync {
    /// This process, counted from 0.
    fn rank(&self) -> usize;

    /// Processes in all.
    fn world_size(&self) -> usize;

    /// Starts to exchange values: f32, contiguous, of one dimension, on the device that the rank trains on. More may be
    /// started before this one is finished; one that needs no time may be over when this returns.
    ///
    /// # Errors
    /// [`Error::Parallel`](crate::Error::Parallel) when another rank is gone, here or from [`Transfer::finish`].
    fn start(&self, collective: Collective, values: &Tensor) -> Result<Transfer>;
}

/// Values on their way between ranks. What is dropped unfinished arrives nowhere.
pub struct Transfer(Box<dyn FnOnce() -> Result<Tensor> + Send>);

impl Transfer {
    /// One that `finish` waits for, and returns what arrives, in the form of what was given.
    pub fn new(finish: impl FnOnce() -> Result<Tensor> + Send + 'static) -> Self {
        Self(Box::new(finish))
    }

    /// One that is over.
    pub fn arrived(values: Tensor) -> Self {
        Self::new(move || Ok(values))
    }

    /// What arrives. On a GPU it is work in the queue: what is computed from it comes after it.
    ///
    /// # Errors
    /// As for [`Communicator::start`].
    pub fn finish(self) -> Result<Tensor> {
        (self.0)()
    }
}

/// A run of one process.
#[derive(Debug, Clone, Copy, Default)]
pub struct Alone;

impl Communicator for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        1
    }

    fn start(&self, _: Collective, values: &Tensor) -> Result<Transfer> {
        Ok(Transfer::arrived(values.clone()))
    }
}

/// Averages gradients over all ranks, in buckets of many parameters.
///
/// Losses are means over a rank's own samples; as in torch, the average of ranks is that of their means, also where they
/// sampled different numbers of boxes. A [`Trainer`](super::Trainer) does the same during the backward pass.
///
/// # Errors
/// Those of the communicator, and of candle.
pub fn average_gradients(
    communicator: &Arc<dyn Communicator>,
    gradients: &mut Gradients,
) -> Result<()> {
    let world = communicator.world_size();
    if world == 1 {
        return Ok(());
    }
    // The factor may differ between ranks, and is no part of what travels.
    let (tensors, factor) = gradients.parts();
    let scaled: Vec<Tensor> = if factor == 1.0 {
        tensors.to_vec()
    } else {
        tensors.iter().map(|tensor| tensor * factor).collect::<Result<_, _>>()?
    };
    let sums = exchange_all(communicator, Collective::AllReduceSum, &scaled)?;
    gradients.replace(sums);
    gradients.scale(1.0 / world as f64);
    Ok(())
}

/// Gives every rank the tensors of rank 0.
///
/// # Errors
/// Those of the communicator, and of candle.
pub fn broadcast_all(
    communicator: &Arc<dyn Communicator>,
    tensors: &[Tensor],
) -> Result<Vec<Tensor>> {
    if communicator.world_size() == 1 {
        return Ok(tensors.to_vec());
    }
    exchange_all(communicator, Collective::Broadcast, tensors)
}

/// Exchanges tensors that are all there.
fn exchange_all(
    communicator: &Arc<dyn Communicator>,
    collective: Collective,
    tensors: &[Tensor],
) -> Result<Vec<Tensor>> {
    let sizes: Vec<usize> = tensors.iter().map(Tensor::elem_count).collect();
    let plan = Arc::new(Plan::new(&sizes, 0..sizes.len(), BUCKET));
    let exchange = Exchange::new(communicator.clone(), collective, plan);
    let like: Vec<&Tensor> = tensors.iter().collect();
    exchange.finish(tensors.iter().cloned().map(Some).collect(), &like)
}

#[cfg(test)]
mod tests;
