//! Ranks that are processes with a GPU each, on one machine or several.

use std::time::Duration;

use candle_core::{Device, Tensor};

use super::rendezvous::distribute;
use super::{Collective, Communicator, Launch, Transfer};
use crate::error::Result;
use crate::ops::support::cuda::clique::{self, Clique, Operation};

/// A rank among processes that have a GPU each, by NVIDIA's NCCL (feature `nccl`).
///
/// Values go from GPU to GPU and never through the host's memory. Exchanges have a stream of their own, so that they run
/// beside what the device computes; a call returns when its work is in the queue. All of it runs in tests under an
/// emulator of CUDA that stands in for NCCL, too; it **has not run on several GPUs**.
///
/// **A rank that dies** is not noticed by NCCL: the others wait for it. The launchers end them (`torchrun`; `mpirun`;
/// `srun --kill-on-bad-exit=1`). A rank that fails on its own batch lets the others know
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

    fn start(&self, collective: Collective, values: &Tensor) -> Result<Transfer> {
        if values.elem_count() == 0 {
            return Ok(Transfer::arrived(values.clone()));
        }
        let operation = match collective {
            Collective::AllReduceSum => Operation::Sum,
            Collective::Broadcast => Operation::Broadcast,
        };
        let exchange = self.clique.start(operation, values)?;
        Ok(Transfer::new(move || exchange.finish()))
    }
}
