//! Ranks that are processes with a GPU each, on one machine or several.

use std::time::Duration;

use candle_core::{Device, Tensor};

use super::rendezvous::distribute;
use super::{Communicator, Launch};
use crate::error::Result;
use crate::ops::support::cuda::clique::{self, Clique};

/// A rank among processes that have a GPU each, by NVIDIA's NCCL (feature `nccl`).
///
/// Values go from GPU to GPU, on the stream of the device, and never through the host's memory; a call returns when its
/// work is in the queue. It was compiled and linted, and what is around NCCL is tested, but it **has not run on several
/// GPUs**.
///
/// **No overlap with the backward pass.** candle's `backward` returns all gradients at once, and has no hook that is
/// called when one of them is complete. So the first bucket cannot travel while the last layers' gradients are computed,
/// as in torch; buckets travel one after the other, after the backward pass and before the update. A second stream would
/// gain nothing: there is no work left to put beside them.
///
/// **A rank that dies** is not noticed by NCCL: the others wait for it. The launchers end them (`torchrun`; `mpirun`;
/// `srun --kill-on-bad-exit=1`). A rank that fails on its own batch tells the others
/// ([`Trainer`](crate::train::Trainer)), so that all end by themselves.
pub struct NcclCommunicator {
    clique: Clique,
    rank: usize,
    world_size: usize,
}

impl NcclCommunicator {
    /// How long ranks should wait for each other at the beginning, where nothing speaks for another time: as long as
    /// they may take to read a large data set's annotations.
    pub const PATIENCE: Duration = Duration::from_secs(600);

    /// Meets the other ranks at the launch's address, within `patience`, and joins their GPUs. Every rank must have a
    /// GPU of its own, usually that of number [`Launch::local_rank`], and train on this very device.
    ///
    /// # Errors
    /// [`Error::Rendezvous`](crate::Error::Rendezvous) when the ranks don't meet,
    /// [`Error::Unsupported`](crate::Error::Unsupported) for a device that is no NVIDIA GPU, and
    /// [`Error::Parallel`](crate::Error::Parallel) for what NCCL refuses, such as a GPU that two ranks want.
    pub fn new(launch: &Launch, device: &Device, patience: Duration) -> Result<Self> {
        let Launch { rank, world_size, .. } = *launch;
        // Before others wait for a rank that can't join.
        crate::ops::support::cuda::of("NCCL", device)?;
        let id = distribute(launch, patience, clique::unique_id)?;
        let clique = Clique::join(device, rank, world_size, id)?;
        Ok(Self { clique, rank, world_size })
    }

    /// Takes leave, together with all other ranks; waits for them. What comes after is an error.
    ///
    /// A communicator that is dropped without is left to the end of the process, so that a rank which has failed ends
    /// at once.
    ///
    /// # Errors
    /// [`Error::Parallel`](crate::Error::Parallel) for what NCCL says.
    pub fn close(&self) -> Result<()> {
        self.clique.close()
    }
}

impl Communicator for NcclCommunicator {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn all_reduce_sum(&self, values: &Tensor) -> Result<Tensor> {
        self.clique.all_reduce_sum(values)
    }

    fn broadcast(&self, values: &Tensor) -> Result<Tensor> {
        self.clique.broadcast(values)
    }
}
