//! This process among those that a launcher (torchrun, srun, mpirun) has started together.

use std::num::NonZeroUsize;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use candle_core::Device;
use candle_detection::device;
use candle_detection::train::Part;
use candle_detection::train::parallel::{Alone, Communicator, Launch};

/// Who this process is. Rank 0 alone writes, logs and evaluates.
pub struct Ranks {
    /// `None` for a process that was started alone.
    launch: Option<Launch>,
}

impl Ranks {
    pub fn from_environment() -> Result<Self> {
        let launch = Launch::from_environment()?.filter(|launch| launch.world_size > 1);
        Ok(Self { launch })
    }

    pub fn count(&self) -> usize {
        self.launch.as_ref().map_or(1, |launch| launch.world_size)
    }

    pub fn is_first(&self) -> bool {
        self.launch.as_ref().is_none_or(|launch| launch.rank == 0)
    }

    /// Which part of each step's images this process reads.
    pub fn part(&self) -> Part {
        let Some(Launch { rank, world_size, .. }) = self.launch else { return Part::WHOLE };
        Part { rank, of: NonZeroUsize::new(world_size).unwrap_or(NonZeroUsize::MIN) }
    }

    /// The device of the command line; for `cuda` without a number, the GPU of this process.
    pub fn device(&self, name: &str) -> Result<Device> {
        let Some(launch) = &self.launch else { return Ok(device::parse(name)?) };
        let count = launch.world_size;
        if !cfg!(feature = "nccl") {
            bail!(
                "{count} processes were started together, and this program was built to train in one: build it with \
                 `--features cudnn,nccl`, or start it alone"
            );
        }
        if !name.starts_with("cuda") {
            bail!(
                "{count} processes were started together, which train on a GPU each, not on --device {name}: give \
                 --device cuda, or start one process"
            );
        }
        let own = format!("cuda:{}", launch.local_rank);
        let name = if name == "cuda" { &own } else { name };
        device::parse(name).with_context(|| {
            format!(
                "rank {} is number {} on its machine and wants a GPU of its own; where the launcher shows each process \
                 one GPU only, give --device cuda:0",
                launch.rank, launch.local_rank
            )
        })
    }

    /// Meets the other processes.
    pub fn connect(&self, device: &Device) -> Result<Connection> {
        match &self.launch {
            None => Ok(Connection { communicator: Arc::new(Alone), close: Box::new(|| Ok(())) }),
            Some(launch) => connect(launch, device),
        }
    }
}

/// The way to the other processes.
pub struct Connection {
    pub communicator: Arc<dyn Communicator>,
    /// Takes leave of them, once all have done their work.
    pub close: Box<dyn FnOnce() -> candle_detection::Result<()>>,
}

#[cfg(feature = "nccl")]
fn connect(launch: &Launch, device: &Device) -> Result<Connection> {
    use candle_detection::train::parallel::NcclCommunicator;
    let communicator = NcclCommunicator::new(launch, device, NcclCommunicator::PATIENCE)?;
    let communicator = Arc::new(communicator);
    let closed = Arc::clone(&communicator);
    Ok(Connection { communicator, close: Box::new(move || closed.close()) })
}

#[cfg(not(feature = "nccl"))]
fn connect(launch: &Launch, _device: &Device) -> Result<Connection> {
    // `Ranks::device` has refused before.
    bail!("{} processes can't exchange gradients without the feature nccl", launch.world_size)
}
