//! Counts of driver calls, read from the emulator.

use std::ffi::{CStr, c_char, c_void};

use serde_json::Value;

type CountersJson = unsafe extern "C" fn(*mut c_char, usize) -> usize;
type Reset = unsafe extern "C" fn();

/// What the host asked of the driver since a reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub host_to_device: u64,
    pub device_to_host: u64,
    pub device_to_device: u64,
    /// Waits for the device; a download counts as one.
    pub synchronizations: u64,
    pub launches: u64,
}

/// Counts what `work` asks of the driver; `None` on a real GPU.
pub fn count<T>(work: impl FnOnce() -> T) -> (T, Option<Counts>) {
    if let Some(reset) = symbol(c"cudaemu_reset") {
        // SAFETY: the emulator exports this function with this signature.
        unsafe { std::mem::transmute::<*mut c_void, Reset>(reset)() };
    }
    let result = work();
    (result, read())
}

fn read() -> Option<Counts> {
    let address = symbol(c"cudaemu_counters_json")?;
    // SAFETY: the emulator exports this function with this signature.
    let counters = unsafe { std::mem::transmute::<*mut c_void, CountersJson>(address) };
    // SAFETY: no buffer of no length only asks for the length.
    let length = unsafe { counters(std::ptr::null_mut(), 0) };
    let mut text = vec![0u8; length + 1];
    // SAFETY: the buffer has the length that it is given with.
    unsafe { counters(text.as_mut_ptr().cast(), text.len()) };
    let json: Value = serde_json::from_slice(&text[..length]).unwrap();
    let number = |path: &str| json.pointer(path).and_then(Value::as_u64).unwrap();
    Some(Counts {
        host_to_device: number("/h2d/count"),
        device_to_host: number("/d2h/count"),
        device_to_device: number("/d2d/count"),
        synchronizations: number("/sync/count"),
        launches: number("/launch/count"),
    })
}

fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: looks a name up in the libraries of the program.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}
