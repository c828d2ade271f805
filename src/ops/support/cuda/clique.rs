//! Sums and copies over the GPUs of several processes, by NCCL.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::nccl::result::{self, NcclError, NcclStatus};
use candle_core::cuda_backend::cudarc::nccl::sys;
use candle_core::{DType, Device, Tensor};

use super::{of, output, pointer};
use crate::error::{Error, Result};
use crate::ops::support::check::argument;

/// Bytes of the name by which the members of a clique find each other.
pub(crate) const ID_BYTES: usize = 128;

/// Rank whose values are broadcast.
const ROOT: c_int = 0;

/// A name for a clique that nobody else has.
pub(crate) fn unique_id() -> Result<[u8; ID_BYTES]> {
    let id = result::get_uniqueid().map_err(|error| fault(0, "ncclGetUniqueId", &error))?;
    Ok(id.internal.map(|byte| byte as u8))
}

/// GPUs of several processes, one of each, as this process sees them.
///
/// Work is put onto the device's one stream: it begins when what was started before has ended, and the host waits for
/// nothing. What is not closed ends with the process: NCCL waits for all members when one takes its leave, which must
/// not keep a process that has failed from ending.
pub(crate) struct Clique {
    rank: usize,
    device: Device,
    handle: Mutex<Option<Handle>>,
}

struct Handle(sys::ncclComm_t);

// SAFETY: NCCL lets any thread use a communicator, one at a time, which the mutex around it sees to.
unsafe impl Send for Handle {}

/// The arguments that all of NCCL's operations have.
struct Journey {
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    comm: sys::ncclComm_t,
    stream: sys::cudaStream_t,
}

impl Clique {
    /// Joins the clique of this name. Returns when all members have joined.
    pub fn join(
        device: &Device,
        rank: usize,
        world_size: usize,
        id: [u8; ID_BYTES],
    ) -> Result<Self> {
        const CALL: &str = "ncclCommInitRank";
        let cuda = of("nccl", device)?;
        let number = |value: usize| {
            c_int::try_from(value).map_err(|_| Error::Parallel {
                rank,
                problem: format!("{CALL}: {value} ranks are too many"),
            })
        };
        let (own, all) = (number(rank)?, number(world_size)?);
        let id = sys::ncclUniqueId { internal: id.map(|byte| byte as _) };
        let mut comm: sys::ncclComm_t = std::ptr::null_mut();
        cuda.cuda_stream().context().bind_to_thread().w()?;
        // SAFETY: the place for the handle is valid, and the thread is bound to the device that is meant.
        unsafe { result::comm_init_rank(&raw mut comm, all, id, own) }
            .map_err(|error| fault(rank, CALL, &error))?;
        Ok(Self { rank, device: device.clone(), handle: Mutex::new(Some(Handle(comm))) })
    }

    /// The sum of what all members give, f32, in their shape.
    pub fn all_reduce_sum(&self, values: &Tensor) -> Result<Tensor> {
        self.exchange("ncclAllReduce", values, |journey| {
            let Journey { from, to, count, comm, stream } = journey;
            let (dtype, sum) = (sys::ncclDataType_t::ncclFloat32, sys::ncclRedOp_t::ncclSum);
            // SAFETY: see `exchange`.
            unsafe { result::all_reduce(from, to, count, dtype, sum, comm, stream) }
        })
    }

    /// What member 0 gives, f32.
    pub fn broadcast(&self, values: &Tensor) -> Result<Tensor> {
        self.exchange("ncclBroadcast", values, |journey| {
            let Journey { from, to, count, comm, stream } = journey;
            let dtype = sys::ncclDataType_t::ncclFloat32;
            // SAFETY: see `exchange`.
            unsafe { result::broadcast(from, to, count, dtype, ROOT, comm, stream) }
        })
    }

    /// Starts an operation that reads `values` and writes as many.
    ///
    /// Both addresses are those of live f32 tensors of `count` values on the clique's device, the handle is open as long
    /// as it is locked, and memory is given back in the order of the stream that the operation is put onto.
    fn exchange(
        &self,
        call: &'static str,
        values: &Tensor,
        start: impl FnOnce(Journey) -> std::result::Result<NcclStatus, NcclError>,
    ) -> Result<Tensor> {
        argument(call, "values", values).dtype(DType::F32)?.on(&self.device)?;
        if values.elem_count() == 0 {
            return Ok(values.clone());
        }
        let device = of(call, &self.device)?;
        let held = values.contiguous()?;
        let (tensor, to) = output(device, DType::F32, values.shape())?;
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Handle(comm)) = *handle else {
            let problem = format!("{call} after the communicator was closed");
            return Err(Error::Parallel { rank: self.rank, problem });
        };
        let stream = device.cuda_stream();
        stream.context().bind_to_thread().w()?;
        let journey = Journey {
            from: pointer::<f32>(&held)? as *const c_void,
            to: to as *mut c_void,
            count: values.elem_count(),
            comm,
            stream: stream.cu_stream().cast(),
        };
        start(journey).map_err(|error| fault(self.rank, call, &error))?;
        Ok(tensor)
    }

    /// Takes leave, together with all other members: waits until what was started has ended everywhere.
    pub fn close(&self) -> Result<()> {
        let mut handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Handle(comm)) = handle.take() else { return Ok(()) };
        let stream = of("nccl", &self.device)?.cuda_stream();
        stream.context().bind_to_thread().w()?;
        stream.synchronize().w()?;
        // SAFETY: the handle was open, and nobody has it any more.
        unsafe { result::comm_finalize(comm) }
            .map_err(|error| fault(self.rank, "ncclCommFinalize", &error))?;
        // SAFETY: as above; a finalised communicator is destroyed once.
        unsafe { result::comm_destroy(comm) }
            .map_err(|error| fault(self.rank, "ncclCommDestroy", &error))?;
        Ok(())
    }
}

fn fault(rank: usize, call: &str, error: &NcclError) -> Error {
    let problem = format!("{call}: {:?} (NCCL_DEBUG=WARN says more)", error.0);
    Error::Parallel { rank, problem }
}
