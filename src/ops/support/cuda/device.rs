//! Setting a GPU up, once.

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{CudaContext, result, sys};
use candle_core::{CudaDevice, Device};

use crate::error::Result;

/// Opens the GPU of this number: its own stream, so that all threads of a program are in one order, memory that stays
/// with the process, and no events per tensor. The error says why there is none.
pub(crate) fn open(ordinal: usize) -> std::result::Result<Device, String> {
    let count = CudaContext::device_count().map_err(|error| {
        format!("the NVIDIA driver found no GPU ({error}); check `nvidia-smi`, or use cpu")
    })?;
    if ordinal as i64 >= i64::from(count) {
        return Err(format!(
            "{count} GPU(s) can be seen, numbered from 0; check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or use cpu"
        ));
    }
    let device = CudaDevice::new_with_stream(ordinal).map_err(|error| error.to_string())?;
    keep_memory(&device).map_err(|error| error.to_string())?;
    // SAFETY: every tensor of this device is made, used and freed on its one stream. Exchanges with other GPUs, which
    // have a stream of their own, wait for this one, and it for them.
    unsafe { device.disable_event_tracking() };
    Ok(Device::Cuda(device))
}

/// Lets the pool keep what is freed. By default each synchronisation gives it back to the system, and the next forward
/// pass asks for all of it again.
fn keep_memory(device: &CudaDevice) -> Result<()> {
    let stream = device.cuda_stream();
    let mut threshold = u64::MAX;
    // SAFETY: the handle is that of a live context, and the attribute is a 64-bit number.
    unsafe {
        let pool = result::device::get_default_mem_pool(stream.context().cu_device()).w()?;
        result::mem_pool::set_attribute(
            pool,
            sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
            (&raw mut threshold).cast(),
        )
        .w()?;
    }
    Ok(())
}

/// The most bytes that tensors of a device have taken at once, where its memory pool tells.
pub(crate) fn peak_memory(device: &CudaDevice) -> Option<u64> {
    let stream = device.cuda_stream();
    let mut bytes = 0u64;
    // SAFETY: the handle is that of a live context, and the attribute is a 64-bit number.
    unsafe {
        let pool = result::device::get_default_mem_pool(stream.context().cu_device()).ok()?;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
        result::mem_pool::get_attribute(pool, attribute, (&raw mut bytes).cast()).ok()?;
    }
    (bytes > 0).then_some(bytes)
}
