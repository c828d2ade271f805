//! What a GPU's forward pass costs: its own time, and what the host asks of the driver.

use anyhow::Result;
use candle_core::Device;
use serde_json::{Map, Value};

/// Times and counts of one forward pass, as fields of the report; none on the CPU.
#[cfg(not(feature = "cuda"))]
pub fn figures(_: &Device, _: usize, _: impl FnMut() -> Result<()>) -> Result<Map<String, Value>> {
    Ok(Map::new())
}

/// Times and counts of one forward pass, as fields of the report; none on the CPU.
#[cfg(feature = "cuda")]
pub fn figures(
    device: &Device,
    iterations: usize,
    mut forward: impl FnMut() -> Result<()>,
) -> Result<Map<String, Value>> {
    use candle_core::cuda_backend::WrapErr;
    use candle_core::cuda_backend::cudarc::driver::sys::CUevent_flags::CU_EVENT_DEFAULT;
    use serde_json::json;

    let Device::Cuda(gpu) = device else { return Ok(Map::new()) };
    let stream = gpu.cuda_stream();
    let mut times = Vec::with_capacity(iterations);
    for _ in 0..iterations {
        let start = stream.record_event(Some(CU_EVENT_DEFAULT)).w()?;
        forward()?;
        let end = stream.record_event(Some(CU_EVENT_DEFAULT)).w()?;
        times.push(f64::from(start.elapsed_ms(&end).w()?));
    }
    times.sort_by(f64::total_cmp);

    let before = candle_detection::device::traffic();
    emulator::reset();
    forward()?;
    let after = candle_detection::device::traffic();
    let launches = (after.launches + after.products + after.replays)
        - (before.launches + before.products + before.replays);
    let downloads = after.downloads - before.downloads;
    let mut figures = json!({
        "gpu_time_ms": times[times.len() / 2],
        "gpu_time_min_ms": times[0],
        "gpu_time_max_ms": times[times.len() - 1],
        "counted_by": "candle-detection",
        "host_to_device_copies": after.uploads - before.uploads,
        "device_to_host_copies": downloads,
        "synchronizations": downloads,
        "kernel_launches": launches,
        "device_peak_memory_bytes": candle_detection::device::peak_memory(device),
    });
    if let Some(counts) = emulator::counts() {
        let number = |path: &str| counts.pointer(path).cloned().unwrap_or(Value::Null);
        figures["counted_by"] = "emulator".into();
        figures["host_to_device_copies"] = number("/h2d/count");
        figures["device_to_host_copies"] = number("/d2h/count");
        figures["synchronizations"] = number("/sync/count");
        figures["kernel_launches"] = number("/launch/count");
    }
    let Value::Object(figures) = figures else { unreachable!("an object was written above") };
    Ok(figures)
}

/// The counters of the CUDA emulator, where the program runs on it.
#[cfg(feature = "cuda")]
mod emulator {
    use std::ffi::{CStr, c_char, c_void};

    use serde_json::Value;

    type CountersJson = unsafe extern "C" fn(*mut c_char, usize) -> usize;
    type Reset = unsafe extern "C" fn();

    pub fn reset() {
        if let Some(reset) = symbol(c"cudaemu_reset") {
            // SAFETY: the emulator exports this function with this signature.
            unsafe { std::mem::transmute::<*mut c_void, Reset>(reset)() };
        }
    }

    pub fn counts() -> Option<Value> {
        let address = symbol(c"cudaemu_counters_json")?;
        // SAFETY: the emulator exports this function with this signature.
        let counters = unsafe { std::mem::transmute::<*mut c_void, CountersJson>(address) };
        // SAFETY: no buffer of no length only asks for the length.
        let length = unsafe { counters(std::ptr::null_mut(), 0) };
        let mut text = vec![0u8; length + 1];
        // SAFETY: the buffer has the length that it is given with.
        unsafe { counters(text.as_mut_ptr().cast(), text.len()) };
        serde_json::from_slice(&text[..length]).ok()
    }

    #[cfg(unix)]
    fn symbol(name: &CStr) -> Option<*mut c_void> {
        // SAFETY: looks a name up in the libraries of the program.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    }

    #[cfg(not(unix))]
    fn symbol(_: &CStr) -> Option<*mut c_void> {
        None
    }
}
