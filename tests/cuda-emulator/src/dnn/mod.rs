//! cuDNN: convolutions forward and backward on the CPU, with the library's restrictions.
//!
//! Statuses are those of cuDNN 9. What the documentation restricts is refused here too, so that a
//! program that runs under the emulator asks nothing of cuDNN that it does not promise.
use crate::driver;
use crate::element::Ty;
use libc::{c_char, c_int, size_t};

mod algorithms;
mod backward;
mod compute;
mod descriptors;
mod forward;
mod problem;

pub type Status = c_int;
const SUCCESS: Status = 0;
const BAD_PARAM: Status = 2000;
const NULL_POINTER: Status = 2002;
const NOT_SUPPORTED: Status = 3000;
const EXECUTION_FAILED: Status = 5000;

/// 9.2.1: the headers that cudarc 0.19 binds.
const VERSION: size_t = 90_201;

pub struct Handle {
    pub stream: usize,
}

/// What a call did not like; the words go to stderr.
#[derive(Debug)]
struct Refusal {
    status: Status,
    why: String,
}

type Checked<T> = Result<T, Refusal>;

fn bad<T>(why: impl Into<String>) -> Checked<T> {
    Err(Refusal { status: BAD_PARAM, why: why.into() })
}

fn unsupported<T>(why: impl Into<String>) -> Checked<T> {
    Err(Refusal { status: NOT_SUPPORTED, why: why.into() })
}

/// A handle or descriptor, which must not be null.
unsafe fn given<'a, T>(p: *const T, what: &str) -> Checked<&'a T> {
    match p.as_ref() {
        Some(v) => Ok(v),
        None => Err(Refusal { status: NULL_POINTER, why: format!("{what} is null") }),
    }
}

fn status(call: &str, result: Checked<()>) -> Status {
    match result {
        Ok(()) => SUCCESS,
        Err(refusal) => {
            eprintln!("cudaemu: {call}: {} (status {})", refusal.why, refusal.status);
            refusal.status
        }
    }
}

/// The type behind a `cudnnDataType_t`.
fn type_of(code: c_int) -> Checked<Ty> {
    Ok(match code {
        0 => Ty::F32,
        1 => Ty::F64,
        2 => Ty::F16,
        9 => Ty::BF16,
        _ => return unsupported(format!("data type {code} is not emulated")),
    })
}

#[no_mangle]
pub extern "C" fn cudnnGetVersion() -> size_t {
    VERSION
}
#[no_mangle]
pub extern "C" fn cudnnGetCudartVersion() -> size_t {
    13_000
}
#[no_mangle]
pub extern "C" fn cudnnGetMaxDeviceVersion() -> size_t {
    1210
}
#[no_mangle]
pub extern "C" fn cudnnOpsVersionCheck() -> Status {
    SUCCESS
}
#[no_mangle]
pub extern "C" fn cudnnCnnVersionCheck() -> Status {
    SUCCESS
}
#[no_mangle]
pub extern "C" fn cudnnAdvVersionCheck() -> Status {
    SUCCESS
}
#[no_mangle]
pub unsafe extern "C" fn cudnnGetProperty(which: c_int, value: *mut c_int) -> Status {
    *value = match which {
        0 => VERSION as c_int / 10_000,
        1 => VERSION as c_int / 100 % 100,
        2 => VERSION as c_int % 100,
        _ => return BAD_PARAM,
    };
    SUCCESS
}

#[no_mangle]
pub extern "C" fn cudnnGetErrorString(status: Status) -> *const c_char {
    match status {
        SUCCESS => c"CUDNN_STATUS_SUCCESS",
        BAD_PARAM => c"CUDNN_STATUS_BAD_PARAM",
        NULL_POINTER => c"CUDNN_STATUS_BAD_PARAM_NULL_POINTER",
        NOT_SUPPORTED => c"CUDNN_STATUS_NOT_SUPPORTED",
        EXECUTION_FAILED => c"CUDNN_STATUS_EXECUTION_FAILED",
        _ => c"CUDNN_UNKNOWN_STATUS",
    }
    .as_ptr()
}

#[no_mangle]
pub unsafe extern "C" fn cudnnCreate(h: *mut *mut Handle) -> Status {
    call!("cudnnCreate");
    // It allocates on the device.
    if driver::capture::unsafe_call("cudnnCreate") != driver::OK {
        return EXECUTION_FAILED;
    }
    *h = Box::into_raw(Box::new(Handle { stream: 0 }));
    SUCCESS
}
#[no_mangle]
pub unsafe extern "C" fn cudnnDestroy(h: *mut Handle) -> Status {
    call!("cudnnDestroy");
    if !h.is_null() {
        drop(Box::from_raw(h));
    }
    SUCCESS
}
#[no_mangle]
pub unsafe extern "C" fn cudnnSetStream(h: *mut Handle, stream: usize) -> Status {
    call!("cudnnSetStream");
    if h.is_null() {
        return NULL_POINTER;
    }
    (*h).stream = stream;
    SUCCESS
}
#[no_mangle]
pub unsafe extern "C" fn cudnnGetStream(h: *mut Handle, stream: *mut usize) -> Status {
    if h.is_null() || stream.is_null() {
        return NULL_POINTER;
    }
    *stream = (*h).stream;
    SUCCESS
}
