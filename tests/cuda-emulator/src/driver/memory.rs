//! Device memory, pools and pinned host memory.
use super::capture::GraphMemory;
use super::device::context;
use super::*;

fn alloc(p: *mut u64, size: usize, how: &str) -> Res {
    if size == 0 || p.is_null() {
        return INVALID_VALUE;
    }
    match mem::alloc(size as u64) {
        Some(a) => {
            unsafe { *p = a };
            crate::trace(|| format!("{how} {size} bytes -> {a:#x}"));
            OK
        }
        None => {
            eprintln!("cudaemu: {how} of {size} bytes: out of memory (CUDAEMU_MEMORY_MB)");
            OUT_OF_MEMORY
        }
    }
}

fn free(p: u64) -> Res {
    if p == 0 {
        return OK;
    }
    match mem::free(p) {
        Ok(()) => {
            crate::trace(|| format!("free {p:#x}"));
            OK
        }
        Err(e) => {
            eprintln!("cudaemu: free: {e}");
            INVALID_VALUE
        }
    }
}

#[no_mangle]
pub unsafe extern "C" fn cuMemAlloc_v2(p: *mut u64, n: size_t) -> Res {
    enter_unless_captured!("cuMemAlloc_v2", unsafe_call);
    alloc(p, n, "alloc")
}
#[no_mangle]
pub unsafe extern "C" fn cuMemAllocAsync(p: *mut u64, n: size_t, stream: usize) -> Res {
    enter!("cuMemAllocAsync");
    if n == 0 && !p.is_null() {
        // Unlike cuMemAlloc, the stream-ordered allocator takes zero bytes: programs that
        // make empty tensors work on devices with memory pools. Null is given and taken back.
        *p = 0;
        return OK;
    }
    alloc_in(stream, p, n, "alloc async")
}

/// Allocates at once, or as a node of the graph under capture.
unsafe fn alloc_in(stream: usize, p: *mut u64, n: size_t, how: &str) -> Res {
    match capture::capturing(stream) {
        Ok(None) => return alloc(p, n, how),
        Ok(Some(_)) => {}
        Err(code) => return code,
    }
    if n == 0 || p.is_null() {
        capture::spoil(stream);
        return INVALID_VALUE;
    }
    let Some(addr) = mem::reserve(n as u64) else {
        capture::spoil(stream);
        return OUT_OF_MEMORY;
    };
    *p = addr;
    let memory = Arc::new(GraphMemory { addr });
    let work = move |_| if mem::commit(addr) { OK } else { OUT_OF_MEMORY };
    capture::add(stream, Kind::Alloc, Some(memory), Box::new(work))
}

/// Frees at once, or as a node of the graph under capture; there only memory of graphs can be.
unsafe fn free_in(stream: usize, p: u64) -> Res {
    match capture::capturing(stream) {
        _ if p == 0 => return OK,
        Ok(None) => {
            order::catch_up(stream);
            return free(p);
        }
        Ok(Some(_)) => {}
        Err(code) => return code,
    }
    if !mem::is_graph_memory(p) || !capture::frees(stream, p) {
        eprintln!(
            "cudaemu: cuMemFreeAsync during a stream capture: {p:#x} is not memory of a graph, \
             or the graph frees it already"
        );
        capture::spoil(stream);
        return INVALID_VALUE;
    }
    let work = move |_| match mem::free_quiet(p) {
        Ok(()) => OK,
        Err(e) => {
            eprintln!("cudaemu: free node: {e}");
            INVALID_VALUE
        }
    };
    capture::add(stream, Kind::Free, None, Box::new(work))
}
#[no_mangle]
pub unsafe extern "C" fn cuMemAllocFromPoolAsync(
    p: *mut u64,
    n: size_t,
    _: usize,
    stream: usize,
) -> Res {
    enter!("cuMemAllocFromPoolAsync");
    alloc_in(stream, p, n, "alloc from pool")
}
// Memory is given back even after a fault: what a program does while it unwinds is not
// what went wrong.
#[no_mangle]
pub unsafe extern "C" fn cuMemFree_v2(p: u64) -> Res {
    call!("cuMemFree_v2");
    if p == 0 {
        return OK;
    }
    let e = capture::unsafe_call("cuMemFree");
    if e != OK {
        return e;
    }
    counters::implicit_sync("cuMemFree");
    free(p)
}
#[no_mangle]
pub unsafe extern "C" fn cuMemFreeAsync(p: u64, stream: usize) -> Res {
    call!("cuMemFreeAsync");
    free_in(stream, p)
}
#[no_mangle]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut size_t, total: *mut size_t) -> Res {
    let all = crate::config().memory;
    *total = all as usize;
    *free = all.saturating_sub(mem::usage().1) as usize;
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuMemGetAddressRange_v2(base: *mut u64, size: *mut size_t, p: u64) -> Res {
    let Some((b, n)) = mem::range_of(p) else { return NOT_FOUND };
    if !base.is_null() {
        *base = b;
    }
    if !size.is_null() {
        *size = n as usize;
    }
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuMemHostAlloc(p: *mut *mut c_void, n: size_t, _: c_uint) -> Res {
    enter_unless_captured!("cuMemHostAlloc", unsafe_call);
    let mut out = std::ptr::null_mut();
    if n == 0 || libc::posix_memalign(&mut out, 4096, n) != 0 {
        return OUT_OF_MEMORY;
    }
    mem::add_pinned(out as usize, n);
    crate::trace(|| format!("host alloc {n} bytes"));
    *p = out;
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuMemAllocHost_v2(p: *mut *mut c_void, n: size_t) -> Res {
    cuMemHostAlloc(p, n, 0)
}
#[no_mangle]
pub unsafe extern "C" fn cuMemFreeHost(p: *mut c_void) -> Res {
    call!("cuMemFreeHost");
    let e = capture::unsafe_call("cuMemFreeHost");
    if e != OK {
        return e;
    }
    if !mem::remove_pinned(p as usize) {
        return INVALID_VALUE;
    }
    libc::free(p);
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuMemHostRegister_v2(p: *mut c_void, n: size_t, _: c_uint) -> Res {
    let e = capture::unsafe_call("cuMemHostRegister");
    if e != OK {
        return e;
    }
    mem::add_pinned(p as usize, n);
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuMemHostUnregister(p: *mut c_void) -> Res {
    if mem::remove_pinned(p as usize) {
        OK
    } else {
        INVALID_VALUE
    }
}
#[no_mangle]
pub unsafe extern "C" fn cuMemHostGetFlags(f: *mut c_uint, _: *mut c_void) -> Res {
    *f = 0;
    OK
}

#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetDefaultMemPool(p: *mut usize, _: c_int) -> Res {
    *p = context() + 1;
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetMemPool(p: *mut usize, _: c_int) -> Res {
    *p = context() + 1;
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuDeviceSetMemPool(_: c_int, _: usize) -> Res {
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuMemPoolCreate(p: *mut usize, _: *const c_void) -> Res {
    *p = context() + 2;
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuMemPoolDestroy(_: usize) -> Res {
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuMemPoolTrimTo(_: usize, _: size_t) -> Res {
    OK
}
static THRESHOLD: AtomicU64 = AtomicU64::new(0);
#[no_mangle]
pub unsafe extern "C" fn cuMemPoolSetAttribute(_: usize, attr: c_int, v: *const c_void) -> Res {
    if attr == 4 {
        THRESHOLD.store(*(v as *const u64), Relaxed);
    }
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuMemPoolGetAttribute(_: usize, attr: c_int, v: *mut c_void) -> Res {
    let (_, used, peak) = mem::usage();
    match attr {
        1..=3 => *(v as *mut c_int) = 1,
        4 => *(v as *mut u64) = THRESHOLD.load(Relaxed),
        5 | 7 => *(v as *mut u64) = used,
        6 | 8 => *(v as *mut u64) = peak,
        _ => return INVALID_VALUE,
    }
    OK
}
