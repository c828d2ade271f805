//! Start-up, the one device and its context.
use super::*;

#[no_mangle]
pub extern "C" fn cuInit(flags: c_uint) -> Res {
    call!("cuInit");
    if flags != 0 {
        return INVALID_VALUE;
    }
    counters::start();
    READY.store(true, Relaxed);
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuDriverGetVersion(v: *mut c_int) -> Res {
    *v = 13000;
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetCount(n: *mut c_int) -> Res {
    *n = 1;
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuDeviceGet(d: *mut c_int, ordinal: c_int) -> Res {
    if ordinal != 0 {
        return INVALID_DEVICE;
    }
    *d = 0;
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, _: c_int) -> Res {
    let text = b"CUDA emulator (CPU)";
    if len <= 0 {
        return INVALID_VALUE;
    }
    let n = text.len().min(len as usize - 1);
    std::ptr::copy_nonoverlapping(text.as_ptr(), name as *mut u8, n);
    *name.add(n) = 0;
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetUuid(u: *mut [u8; 16], _: c_int) -> Res {
    *u = *b"cudaemu-device-0";
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(u: *mut [u8; 16], d: c_int) -> Res {
    cuDeviceGetUuid(u, d)
}
#[no_mangle]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(n: *mut size_t, _: c_int) -> Res {
    *n = crate::config().memory as usize;
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(s: *mut c_char, len: c_int, _: c_int) -> Res {
    let text = b"0000:00:00.0";
    if len as usize <= text.len() {
        return INVALID_VALUE;
    }
    std::ptr::copy_nonoverlapping(text.as_ptr(), s as *mut u8, text.len());
    *s.add(text.len()) = 0;
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetAttribute(v: *mut c_int, attr: c_int, dev: c_int) -> Res {
    if dev != 0 {
        return INVALID_DEVICE;
    }
    *v = match attr {
        1 => 1024,                  // threads per block
        2 | 3 => 1024,              // block x, y
        4 => 64,                    // block z
        5 => i32::MAX,              // grid x
        6 | 7 => 65535,             // grid y, z
        8 => DEFAULT_SHARED as i32, // shared memory per block
        9 => 65536,                 // constant memory
        10 => 32,                   // warp size
        11 => i32::MAX,             // pitch
        12 => 65536,                // registers per block
        13 => 1_000_000,            // clock, kHz
        14 => 512,                  // texture alignment
        15 => 1,                    // copy and compute overlap
        16 => 16,                   // multiprocessors
        17 => 0,                    // run time limit
        18 => 0,                    // integrated
        19 => 1,                    // host memory can be mapped
        31 => 1,                    // concurrent kernels
        32 => 0,                    // ECC
        33 | 34 | 50 => 0,          // PCI numbers
        36 => 1_000_000,            // memory clock
        37 => 256,                  // memory bus
        38 => 4 << 20,              // L2
        39 => 2048,                 // threads per multiprocessor
        40 => 1,                    // copy engines
        41 => 1,                    // unified addressing
        75 => 8,                    // compute capability
        76 => 0,
        78 => 1,                 // stream priorities
        81 => 164 * 1024,        // shared memory per multiprocessor
        82 => 65536,             // registers per multiprocessor
        83 => 0,                 // managed memory
        97 => MAX_SHARED as i32, // shared memory per block, on request
        106 => 32,               // blocks per multiprocessor
        115 => 1,                // memory pools
        _ => 0,
    };
    OK
}

static CONTEXT: u8 = 0;
static RETAINED: AtomicUsize = AtomicUsize::new(0);
thread_local! {
    static CURRENT: std::cell::RefCell<Vec<usize>> = const { std::cell::RefCell::new(vec![]) };
}
pub fn context() -> usize {
    &CONTEXT as *const u8 as usize
}

#[no_mangle]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(c: *mut usize, dev: c_int) -> Res {
    call!("cuDevicePrimaryCtxRetain");
    if !READY.load(Relaxed) {
        return NOT_INITIALIZED;
    }
    if dev != 0 {
        return INVALID_DEVICE;
    }
    RETAINED.fetch_add(1, Relaxed);
    *c = context();
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(_: c_int) -> Res {
    RETAINED.fetch_sub(1, Relaxed);
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuDevicePrimaryCtxReset_v2(_: c_int) -> Res {
    clear_error();
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    _: c_int,
    flags: *mut c_uint,
    active: *mut c_int,
) -> Res {
    *flags = 0;
    *active = (RETAINED.load(Relaxed) > 0) as c_int;
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuDevicePrimaryCtxSetFlags_v2(_: c_int, _: c_uint) -> Res {
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuCtxGetCurrent(c: *mut usize) -> Res {
    *c = CURRENT.with(|s| s.borrow().last().copied().unwrap_or(0));
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuCtxSetCurrent(c: usize) -> Res {
    CURRENT.with(|s| {
        let mut s = s.borrow_mut();
        s.pop();
        if c != 0 {
            s.push(c);
        }
    });
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuCtxPushCurrent_v2(c: usize) -> Res {
    CURRENT.with(|s| s.borrow_mut().push(c));
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(c: *mut usize) -> Res {
    let old = CURRENT.with(|s| s.borrow_mut().pop().unwrap_or(0));
    if !c.is_null() {
        *c = old;
    }
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuCtxCreate_v2(c: *mut usize, _: c_uint, dev: c_int) -> Res {
    let r = cuDevicePrimaryCtxRetain(c, dev);
    if r == OK {
        CURRENT.with(|s| s.borrow_mut().push(context()));
    }
    r
}
#[no_mangle]
pub unsafe extern "C" fn cuCtxCreate_v4(
    c: *mut usize,
    _: *const c_void,
    flags: c_uint,
    dev: c_int,
) -> Res {
    cuCtxCreate_v2(c, flags, dev)
}
#[no_mangle]
pub unsafe extern "C" fn cuCtxDestroy_v2(_: usize) -> Res {
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuCtxGetDevice(d: *mut c_int) -> Res {
    *d = 0;
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuCtxGetFlags(f: *mut c_uint) -> Res {
    *f = 0;
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuCtxSetFlags(_: c_uint) -> Res {
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuCtxGetApiVersion(_: usize, v: *mut c_uint) -> Res {
    *v = 13000;
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuCtxGetLimit(v: *mut size_t, _: c_int) -> Res {
    *v = 1 << 20;
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuCtxSetLimit(_: c_int, _: size_t) -> Res {
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuCtxGetCacheConfig(v: *mut c_int) -> Res {
    *v = 0;
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuCtxSetCacheConfig(_: c_int) -> Res {
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(lo: *mut c_int, hi: *mut c_int) -> Res {
    if !lo.is_null() {
        *lo = 0;
    }
    if !hi.is_null() {
        *hi = -5;
    }
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuCtxSynchronize() -> Res {
    enter_unless_captured!("cuCtxSynchronize", context_call);
    with(|c| c.context_sync += 1);
    crate::trace(|| "sync context".into());
    OK
}
