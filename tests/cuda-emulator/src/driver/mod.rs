//! The CUDA driver API. Work is done at once, inside the call that asks for it, unless its stream
//! is being captured; streams and events only keep the bookkeeping that programs can see.
use crate::compile::{self, Kernel};
use crate::counters::{self, with};
use crate::exec;
use crate::mem;
use crate::ptx;
use capture::{By, Kind};
use libc::{c_char, c_int, c_uint, c_void, size_t};
use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Instant;

pub type Res = i32;
pub const OK: Res = 0;
const INVALID_VALUE: Res = 1;
const OUT_OF_MEMORY: Res = 2;
const NOT_INITIALIZED: Res = 3;
const INVALID_DEVICE: Res = 101;
const INVALID_IMAGE: Res = 200;
const INVALID_PTX: Res = 218;
const FILE_NOT_FOUND: Res = 301;
const INVALID_HANDLE: Res = 400;
const ILLEGAL_STATE: Res = 401;
const NOT_FOUND: Res = 500;
pub const ILLEGAL_ADDRESS: Res = 700;
const LAUNCH_OUT_OF_RESOURCES: Res = 701;
const NOT_SUPPORTED: Res = 801;
const CAPTURE_UNSUPPORTED: Res = 900;
const CAPTURE_INVALIDATED: Res = 901;
const CAPTURE_MERGE: Res = 902;
const CAPTURE_UNMATCHED: Res = 903;
const CAPTURE_UNJOINED: Res = 904;
const CAPTURE_ISOLATION: Res = 905;
const CAPTURE_IMPLICIT: Res = 906;
const CAPTURED_EVENT: Res = 907;
const CAPTURE_WRONG_THREAD: Res = 908;

/// Most shared memory that one block may have, as on compute capability 8.0.
const MAX_SHARED: usize = 163 * 1024;
const DEFAULT_SHARED: usize = 48 * 1024;

static ERROR: AtomicI32 = AtomicI32::new(0);
static READY: AtomicBool = AtomicBool::new(false);

/// A fault makes the context unusable, as on a device, until `cudaemu_reset`.
pub fn set_error(code: i32) {
    let _ = ERROR.compare_exchange(0, code, Relaxed, Relaxed);
    with(|c| c.faults += 1);
}
pub fn clear_error() {
    ERROR.store(0, Relaxed);
}

/// Counts the call; returns from it while the context is unusable.
macro_rules! enter {
    ($name:literal) => {{
        call!($name);
        let e = ERROR.load(Relaxed);
        if e != 0 {
            return e;
        }
        if !READY.load(Relaxed) {
            return NOT_INITIALIZED;
        }
    }};
}

/// The same for a call that a stream capture may forbid (see capture.rs).
macro_rules! enter_unless_captured {
    ($name:literal, $check:ident) => {{
        enter!($name);
        let e = capture::$check($name);
        if e != OK {
            return e;
        }
    }};
}

pub mod capture;
mod copy;
mod device;
mod errors;
mod graph;
mod launch;
mod memory;
mod module;
pub mod order;
mod stream;
