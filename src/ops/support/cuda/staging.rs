//! Uploads of bytes through page-locked memory, which the GPU reads by itself while the program goes on.
//!
//! From ordinary memory the driver copies to page-locked memory of its own first, and may wait for earlier work to do
//! so. Page-locked memory is dear to get, so it is kept: for a stream of images it is asked for once or twice.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaEvent, result, sys};
use candle_core::{CudaDevice, DType, Tensor};

use super::memory::{Output, pointer};
use super::of;
use super::traffic::{Event, count};
use crate::error::Result;
use crate::ops::support::check::argument;

/// Page-locked memory, and when the GPU has read what was last in it.
struct Buffer {
    bytes: *mut u8,
    len: usize,
    read: CudaEvent,
}

// SAFETY: the memory belongs to this value alone, and every thread may access it.
unsafe impl Send for Buffer {}

/// Buffers that no thread fills at the moment.
static BUFFERS: Mutex<Vec<Buffer>> = Mutex::new(Vec::new());

impl Buffer {
    /// One of at least `len` bytes that the GPU has done with.
    fn take(context: &Arc<CudaContext>, len: usize) -> Result<Self> {
        let mut buffers = BUFFERS.lock().unwrap_or_else(PoisonError::into_inner);
        let free = |buffer: &Self| buffer.read.context() == context && buffer.read.is_complete();
        if let Some(place) = buffers.iter().position(|buffer| buffer.len >= len && free(buffer)) {
            return Ok(buffers.swap_remove(place));
        }
        // Too small for this program's images, or it would have been taken.
        if let Some(place) = buffers.iter().position(free) {
            buffers.swap_remove(place);
        }
        drop(buffers);
        Self::new(context, len.next_power_of_two())
    }

    fn new(context: &Arc<CudaContext>, len: usize) -> Result<Self> {
        context.bind_to_thread().w()?;
        let read = context.new_event(None).w()?;
        // The host only writes, so its caches need not be asked.
        // SAFETY: the context is bound, and `drop` gives the memory back.
        let bytes = unsafe { result::malloc_host(len, sys::CU_MEMHOSTALLOC_WRITECOMBINED) }.w()?;
        Ok(Self { bytes: bytes.cast(), len, read })
    }

    fn give_back(self) {
        BUFFERS.lock().unwrap_or_else(PoisonError::into_inner).push(self);
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Only buffers that the GPU has done with are dropped, and those of a copy that failed. A failure here leaks.
        // SAFETY: the memory came from `malloc_host`, and nothing else knows its address.
        let _ =
            self.read.synchronize().and_then(|()| unsafe { result::free_host(self.bytes.cast()) });
    }
}

/// Brings pieces of bytes to the device, one after another, in a single copy.
pub(crate) fn upload(device: &CudaDevice, pieces: &[&[u8]]) -> Result<Output<u8>> {
    let len = pieces.iter().map(|piece| piece.len()).sum();
    let uploaded = Output::new(device, len)?;
    copy(device, pieces, len, uploaded.pointer())?;
    Ok(uploaded)
}

/// Like [`upload`], over what a tensor `[total]` u8 holds.
pub(crate) fn upload_into(pieces: &[&[u8]], target: &Tensor) -> Result<()> {
    let len = pieces.iter().map(|piece| piece.len()).sum();
    argument("upload", "target", target).dtype(DType::U8)?.shape(&[len], "[total]")?;
    copy(of("upload", target.device())?, pieces, len, pointer::<u8>(target)?)
}

/// `target` has room for the `len` bytes of all pieces.
fn copy(device: &CudaDevice, pieces: &[&[u8]], len: usize, target: u64) -> Result<()> {
    count(Event::Upload);
    let stream = device.cuda_stream();
    let buffer = Buffer::take(stream.context(), len.max(1))?;
    let mut end = 0;
    for piece in pieces {
        // SAFETY: the pieces together have `len` bytes, which the buffer has at least; it is nobody else's.
        unsafe { buffer.bytes.add(end).copy_from_nonoverlapping(piece.as_ptr(), piece.len()) };
        end += piece.len();
    }
    // SAFETY: `len` bytes have just been written to the buffer, and the target has room for them. The buffer is not
    // written again before the event says that the copy is done.
    unsafe {
        let bytes = std::slice::from_raw_parts(buffer.bytes, len);
        result::memcpy_htod_async(target, bytes, stream.cu_stream()).w()?;
    }
    buffer.read.record(&stream).w()?;
    buffer.give_back();
    Ok(())
}
