//! Sums and copies over the GPUs of several processes, by NCCL, beside the work of each.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::result as driver;
use candle_core::cuda_backend::cudarc::driver::sys as driver_sys;
use candle_core::cuda_backend::cudarc::nccl::result::{self, NcclError};
use candle_core::cuda_backend::cudarc::nccl::sys;
use candle_core::{CudaDevice, DType, Device, Tensor};

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
/// Exchanges have a stream of their own, beside the device's one: an exchange begins when what was put onto the device's
/// stream before it has ended, and runs beside what comes after it. The host waits for nothing. What is not closed ends
/// with the process: NCCL waits for all members when one takes its leave, which must not keep a process that has failed
/// from ending.
pub(crate) struct Clique {
    rank: usize,
    device: Device,
    handles: Mutex<Option<Handles>>,
}

struct Handles {
    comm: sys::ncclComm_t,
    /// Of the exchanges.
    stream: driver_sys::CUstream,
}

// SAFETY: NCCL and the driver let any thread use their handles, one at a time, which the mutex around them sees to.
unsafe impl Send for Handles {}

/// What members do together.
#[derive(Clone, Copy)]
pub(crate) enum Operation {
    /// All get the sum of what all give.
    Sum,
    /// All get what member 0 gives.
    Broadcast,
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
        let stream = driver::stream::create(driver::stream::StreamKind::NonBlocking).w()?;
        // SAFETY: the place for the handle is valid, and the thread is bound to the device that is meant.
        unsafe { result::comm_init_rank(&raw mut comm, all, id, own) }
            .map_err(|error| fault(rank, CALL, &error))?;
        let handles = Mutex::new(Some(Handles { comm, stream }));
        Ok(Self { rank, device: device.clone(), handles })
    }

    /// Starts an operation on f32 `values`.
    pub fn start(&self, operation: Operation, values: &Tensor) -> Result<Exchange> {
        let call = match operation {
            Operation::Sum => "ncclAllReduce",
            Operation::Broadcast => "ncclBroadcast",
        };
        argument(call, "values", values).dtype(DType::F32)?.on(&self.device)?;
        let device = of(call, &self.device)?;
        let given = values.contiguous()?;
        let (arriving, to) = output(device, DType::F32, values.shape())?;
        let from = pointer::<f32>(&given)? as *const c_void;
        let (to, count) = (to as *mut c_void, values.elem_count());
        let handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Handles { comm, stream }) = *handles else {
            let problem = format!("{call} after the communicator was closed");
            return Err(Error::Parallel { rank: self.rank, problem });
        };
        device.cuda_stream().context().bind_to_thread().w()?;
        Event::record(device.cuda_stream().cu_stream())?.hold_back(stream)?;
        let nccl_stream: sys::cudaStream_t = stream.cast();
        // SAFETY: both addresses are those of live f32 tensors of `count` values on the clique's device, which `Exchange`
        // keeps until the device's stream has waited for the operation; both were ready on that stream when the event
        // was recorded that this one waits for. The handle is open as long as it is locked.
        match operation {
            Operation::Sum => unsafe {
                let (dtype, sum) = (sys::ncclDataType_t::ncclFloat32, sys::ncclRedOp_t::ncclSum);
                result::all_reduce(from, to, count, dtype, sum, comm, nccl_stream)
            },
            Operation::Broadcast => unsafe {
                let dtype = sys::ncclDataType_t::ncclFloat32;
                result::broadcast(from, to, count, dtype, ROOT, comm, nccl_stream)
            },
        }
        .map_err(|error| fault(self.rank, call, &error))?;
        let over = Event::record(stream)?;
        Ok(Exchange { device: device.clone(), arriving, _given: given, over: Some(over) })
    }

    /// Takes leave, together with all other members: waits until what was started has ended everywhere.
    pub fn close(&self) -> Result<()> {
        let mut handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Handles { comm, stream }) = handles.take() else { return Ok(()) };
        let own = of("nccl", &self.device)?.cuda_stream();
        own.context().bind_to_thread().w()?;
        own.synchronize().w()?;
        // SAFETY: the stream is live; it is destroyed below.
        unsafe { driver::stream::synchronize(stream) }.w()?;
        // SAFETY: the handle was open, and nobody has it any more.
        unsafe { result::comm_finalize(comm) }
            .map_err(|error| fault(self.rank, "ncclCommFinalize", &error))?;
        // SAFETY: as above; a finalised communicator is destroyed once.
        unsafe { result::comm_destroy(comm) }
            .map_err(|error| fault(self.rank, "ncclCommDestroy", &error))?;
        // SAFETY: nothing is left on the stream, and nobody has it any more.
        unsafe { driver::stream::destroy(stream) }.w()?;
        Ok(())
    }
}

/// An operation that may be under way.
///
/// It keeps the memory that it works on until the device's stream has been told to wait for it, also when nobody wants
/// the result: memory is given back in the order of that stream.
pub(crate) struct Exchange {
    device: CudaDevice,
    _given: Tensor,
    arriving: Tensor,
    over: Option<Event>,
}

impl Exchange {
    /// The result, for what is put onto the device's stream from now on.
    pub fn finish(mut self) -> Result<Tensor> {
        self.wait()?;
        Ok(self.arriving.clone())
    }

    fn wait(&mut self) -> Result<()> {
        let Some(over) = self.over.take() else { return Ok(()) };
        let stream = self.device.cuda_stream();
        stream.context().bind_to_thread().w()?;
        over.hold_back(stream.cu_stream())
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        // A driver that refuses this has failed, and with it all that could still use the memory.
        let _ = self.wait();
    }
}

/// A mark in a stream.
struct Event(driver_sys::CUevent);

// SAFETY: the driver lets any thread use an event.
unsafe impl Send for Event {}

impl Event {
    /// Marks what was put onto a live stream until now.
    fn record(stream: driver_sys::CUstream) -> Result<Self> {
        let untimed = driver_sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let event = Self(driver::event::create(untimed).w()?);
        // SAFETY: the event was just made, and the stream is live.
        unsafe { driver::event::record(event.0, stream) }.w()?;
        Ok(event)
    }

    /// Has what is put onto a live stream from now on wait for what was marked.
    fn hold_back(&self, stream: driver_sys::CUstream) -> Result<()> {
        let usual = driver_sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are live; the event may be destroyed before it is reached.
        Ok(unsafe { driver::stream::wait_event(stream, self.0, usual) }.w()?)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: nobody else has the event. One that is not reached yet lives on in the driver until then. What the
        // driver says of it is of no use to anybody.
        let _ = unsafe { driver::event::destroy(self.0) };
    }
}

fn fault(rank: usize, call: &str, error: &NcclError) -> Error {
    let problem = format!("{call}: {:?} (NCCL_DEBUG=WARN says more)", error.0);
    Error::Parallel { rank, problem }
}
