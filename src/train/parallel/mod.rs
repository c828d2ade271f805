//! Training by several processes (or threads) that see different batches and make the same steps.
//!
//! Each has its own network; before a step, gradients are averaged over all. What carries the numbers is a
//! [`Communicator`]: `NcclCommunicator` between GPUs (feature `nccl`), [`ThreadCommunicator`] within a process, or one of
//! your own; [`distribute`] is where its ranks can meet.

mod agreement;
mod launch;
#[cfg(feature = "nccl")]
mod nccl;
mod rendezvous;
mod threads;

use candle_core::Tensor;

pub(super) use agreement::{Computed, Ranks};
pub use launch::Launch;
#[cfg(feature = "nccl")]
pub use nccl::NcclCommunicator;
pub use rendezvous::distribute;
pub use threads::ThreadCommunicator;

use super::gradients::Gradients;
use crate::error::Result;

/// Elements that travel together: 25 MiB, as torch's.
const BUCKET: usize = 25 * (1 << 20) / 4;

/// Exchanges numbers between the ranks of a run. Every rank makes the same calls in the same order.
pub trait Communicator: Send + Sync {
    /// This process, counted from 0.
    fn rank(&self) -> usize;

    /// Processes in all.
    fn world_size(&self) -> usize;

    /// The sum of what all ranks give, the same bits for each: f32, contiguous, of one dimension, on the device that
    /// the rank trains on.
    ///
    /// # Errors
    /// [`Error::Parallel`](crate::Error::Parallel) when another rank is gone.
    fn all_reduce_sum(&self, values: &Tensor) -> Result<Tensor>;

    /// What rank 0 gives, for each. Others give a tensor of the same form.
    ///
    /// # Errors
    /// As [`Self::all_reduce_sum`].
    fn broadcast(&self, values: &Tensor) -> Result<Tensor>;
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

    fn all_reduce_sum(&self, values: &Tensor) -> Result<Tensor> {
        Ok(values.clone())
    }

    fn broadcast(&self, values: &Tensor) -> Result<Tensor> {
        Ok(values.clone())
    }
}

/// Averages gradients over all ranks, in buckets of many parameters.
///
/// Losses are means over a rank's own samples; as in torch, the average of ranks is that of their means, also where they
/// sampled different numbers of boxes.
///
/// # Errors
/// Those of the communicator, and of candle.
pub fn average_gradients(communicator: &dyn Communicator, gradients: &mut Gradients) -> Result<()> {
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
    let sums = exchange(&scaled, |bucket| communicator.all_reduce_sum(bucket))?;
    gradients.replace(sums);
    gradients.scale(1.0 / world as f64);
    Ok(())
}

/// Gives every rank the tensors of rank 0.
///
/// # Errors
/// Those of the communicator, and of candle.
pub fn broadcast_all(communicator: &dyn Communicator, tensors: &[Tensor]) -> Result<Vec<Tensor>> {
    if communicator.world_size() == 1 {
        return Ok(tensors.to_vec());
    }
    exchange(tensors, |bucket| communicator.broadcast(bucket))
}

/// Strings tensors together, hands them to `travel` bucket by bucket, and takes them apart again.
fn exchange(tensors: &[Tensor], travel: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Vec<Tensor>> {
    let mut arrived = Vec::with_capacity(tensors.len());
    let mut rest = tensors;
    while !rest.is_empty() {
        let mut elements = 0;
        let fits = |tensor: &&Tensor| {
            elements += tensor.elem_count();
            elements <= BUCKET
        };
        // A tensor that exceeds a bucket travels alone.
        let count = rest.iter().take_while(fits).count().max(1);
        let (bucket, after) = rest.split_at(count);
        let flat: Vec<Tensor> =
            bucket.iter().map(Tensor::flatten_all).collect::<candle_core::Result<_>>()?;
        let sum = travel(&Tensor::cat(&flat, 0)?)?;
        let mut start = 0;
        for tensor in bucket {
            let part = sum.narrow(0, start, tensor.elem_count())?;
            arrived.push(part.reshape(tensor.shape())?);
            start += tensor.elem_count();
        }
        rest = after;
    }
    Ok(arrived)
}

#[cfg(test)]
mod tests;
