//! Calls into the emulator the way a program does: through the symbols of the shared library.
//!
//! `CUDAEMU_TEST_LIBRARY` names another library to test in its place. With NVIDIA's `libcuda.so.1`
//! the tests of the driver's rules hold the emulator's expectations against the real driver; what
//! only the emulator has (counters, faults that do not end the process) is then left out.
#![allow(dead_code, non_snake_case, clippy::too_many_arguments, clippy::missing_safety_doc)]

use libc::{c_char, c_void};
use std::ffi::{CStr, CString};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock};

pub const PTX: &str = include_str!("../kernels.ptx");

pub const OK: i32 = 0;
pub const INVALID_VALUE: i32 = 1;
pub const ILLEGAL_STATE: i32 = 401;
pub const ILLEGAL_ADDRESS: i32 = 700;
pub const UNSUPPORTED: i32 = 900;
pub const INVALIDATED: i32 = 901;
pub const MERGE: i32 = 902;
pub const UNMATCHED: i32 = 903;
pub const UNJOINED: i32 = 904;
pub const ISOLATION: i32 = 905;
pub const IMPLICIT: i32 = 906;
pub const CAPTURED_EVENT: i32 = 907;
pub const WRONG_THREAD: i32 = 908;

pub const GLOBAL: i32 = 0;
pub const THREAD_LOCAL: i32 = 1;
pub const RELAXED: i32 = 2;

fn library() -> usize {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    *LIBRARY.get_or_init(|| {
        let path = std::env::var("CUDAEMU_TEST_LIBRARY").map(PathBuf::from).unwrap_or_else(|_| {
            // target/release/deps/<this test> stands beside the library.
            std::env::current_exe().unwrap().with_file_name("libcudaemu.so")
        });
        let name = CString::new(path.to_str().unwrap()).unwrap();
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        assert!(!handle.is_null(), "{} cannot be loaded", path.display());
        handle as usize
    })
}

fn symbol(name: &str) -> Option<usize> {
    let name = CString::new(name).unwrap();
    let at = unsafe { libc::dlsym(library() as *mut c_void, name.as_ptr()) };
    (!at.is_null()).then_some(at as usize)
}

/// Whether the library under test is the emulator.
pub fn emulated() -> bool {
    symbol("cudaemu_reset").is_some()
}

#[macro_export]
macro_rules! api {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => { $(
        pub fn $name($($arg: $ty),*) -> i32 {
            let at = $crate::common::need(stringify!($name));
            let f: unsafe extern "C" fn($($ty),*) -> i32 = unsafe { std::mem::transmute(at) };
            unsafe { f($($arg),*) }
        }
    )* };
}

pub fn need(name: &str) -> usize {
    symbol(name).unwrap_or_else(|| panic!("the library has no {name}"))
}

api! {
    fn cuInit(flags: u32);
    fn cuDevicePrimaryCtxRetain(context: *mut usize, device: i32);
    fn cuCtxSetCurrent(context: usize);
    fn cuCtxSynchronize();
    fn cuModuleLoadData(module: *mut usize, image: *const c_char);
    fn cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char);
    fn cuModuleUnload(module: usize);
    fn cuLaunchKernel(
        f: usize, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: usize,
        params: *mut *mut c_void, extra: *mut *mut c_void,
    );
    fn cuMemAlloc_v2(p: *mut u64, bytes: usize);
    fn cuMemFree_v2(p: u64);
    fn cuMemAllocAsync(p: *mut u64, bytes: usize, stream: usize);
    fn cuMemFreeAsync(p: u64, stream: usize);
    fn cuMemHostAlloc(p: *mut *mut c_void, bytes: usize, flags: u32);
    fn cuMemFreeHost(p: *mut c_void);
    fn cuMemcpyHtoD_v2(d: u64, s: *const c_void, bytes: usize);
    fn cuMemcpyDtoH_v2(d: *mut c_void, s: u64, bytes: usize);
    fn cuMemcpyHtoDAsync_v2(d: u64, s: *const c_void, bytes: usize, stream: usize);
    fn cuMemcpyDtoHAsync_v2(d: *mut c_void, s: u64, bytes: usize, stream: usize);
    fn cuMemcpyDtoDAsync_v2(d: u64, s: u64, bytes: usize, stream: usize);
    fn cuMemsetD32Async(d: u64, value: u32, count: usize, stream: usize);
    fn cuMemsetD32_v2(d: u64, value: u32, count: usize);
    fn cuStreamCreate(s: *mut usize, flags: u32);
    fn cuStreamSynchronize(s: usize);
    fn cuStreamQuery(s: usize);
    fn cuStreamWaitEvent(s: usize, e: usize, flags: u32);
    fn cuStreamBeginCapture_v2(s: usize, mode: i32);
    fn cuStreamEndCapture(s: usize, graph: *mut usize);
    fn cuStreamIsCapturing(s: usize, status: *mut i32);
    fn cuStreamGetCaptureInfo_v3(
        s: usize, status: *mut i32, id: *mut u64, graph: *mut usize, nodes: *mut *const usize,
        edges: *mut *const c_void, count: *mut usize,
    );
    fn cuThreadExchangeStreamCaptureMode(mode: *mut i32);
    fn cuLaunchHostFunc(s: usize, f: unsafe extern "C" fn(*mut c_void), arg: *mut c_void);
    fn cuEventCreate(e: *mut usize, flags: u32);
    fn cuEventDestroy_v2(e: usize);
    fn cuEventRecord(e: usize, s: usize);
    fn cuEventQuery(e: usize);
    fn cuEventSynchronize(e: usize);
    fn cuGraphInstantiateWithFlags(exec: *mut usize, graph: usize, flags: u64);
    fn cuGraphLaunch(exec: usize, s: usize);
    fn cuGraphUpload(exec: usize, s: usize);
    fn cuGraphExecDestroy(exec: usize);
    fn cuGraphDestroy(graph: usize);
    fn cuGraphGetNodes(graph: usize, nodes: *mut usize, count: *mut usize);
    fn cuGraphNodeGetType(node: usize, kind: *mut i32);
}

/// What a function that returns through its first argument gives.
#[track_caller]
pub fn made<T: Default>(f: impl FnOnce(*mut T) -> i32) -> T {
    let mut out = T::default();
    ok(f(&mut out));
    out
}

#[track_caller]
pub fn ok(code: i32) {
    assert_eq!(code, OK);
}

/// One test at a time: the library has one context and one set of counters.
pub struct Session {
    _turn: MutexGuard<'static, ()>,
}

pub fn session() -> Session {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    ok(cuInit(0));
    use_device();
    reset();
    Session { _turn: turn }
}

/// Makes the device current for this thread.
pub fn use_device() {
    ok(cuCtxSetCurrent(made(|c| cuDevicePrimaryCtxRetain(c, 0))));
}

pub fn reset() {
    if let Some(at) = symbol("cudaemu_reset") {
        unsafe { std::mem::transmute::<usize, extern "C" fn()>(at)() }
    }
}

pub fn mark(label: &str) {
    let label = CString::new(label).unwrap();
    let f = need("cudaemu_mark");
    unsafe { std::mem::transmute::<usize, extern "C" fn(*const c_char)>(f)(label.as_ptr()) }
}

fn text(function: &str) -> String {
    let f: extern "C" fn(*mut c_char, usize) -> usize =
        unsafe { std::mem::transmute(need(function)) };
    let mut buffer = vec![0u8; f(std::ptr::null_mut(), 0) + 1];
    f(buffer.as_mut_ptr() as *mut c_char, buffer.len());
    CStr::from_bytes_until_nul(&buffer).unwrap().to_str().unwrap().to_owned()
}

pub fn counters() -> String {
    text("cudaemu_counters_json")
}

pub fn copies() -> String {
    text("cudaemu_copies_json")
}

/// The number at a path such as `graph.nodes`; keys are looked up at their own depth.
#[track_caller]
pub fn count(path: &str) -> u64 {
    let json = counters();
    let mut at = json.as_str();
    for key in path.split('.') {
        let want = format!("\"{key}\":");
        let (mut depth, mut found) = (0, None);
        for (i, c) in at.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                '"' if depth == 1 && at[i..].starts_with(&want) => found = Some(i + want.len()),
                _ => {}
            }
            if found.is_some() || depth == 0 {
                break;
            }
        }
        at = &at[found.unwrap_or_else(|| panic!("no {key} of {path} in {json}"))..];
    }
    at.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
}

pub fn stream() -> usize {
    const NON_BLOCKING: u32 = 1;
    made(|s| cuStreamCreate(s, NON_BLOCKING))
}

pub fn module() -> usize {
    let text = CString::new(PTX).unwrap();
    made(|m| cuModuleLoadData(m, text.as_ptr()))
}

pub fn function(module: usize, name: &str) -> usize {
    let name = CString::new(name).unwrap();
    made(|f| cuModuleGetFunction(f, module, name.as_ptr()))
}

pub fn upload<T: Copy>(values: &[T]) -> u64 {
    let bytes = std::mem::size_of_val(values);
    let p = made(|p| cuMemAlloc_v2(p, bytes));
    ok(cuMemcpyHtoD_v2(p, values.as_ptr() as *const c_void, bytes));
    p
}

pub fn download<T: Copy + Default>(p: u64, count: usize) -> Vec<T> {
    let mut out = vec![T::default(); count];
    let bytes = std::mem::size_of_val(&out[..]);
    ok(cuMemcpyDtoH_v2(out.as_mut_ptr() as *mut c_void, p, bytes));
    out
}

/// An argument of a kernel, as its bytes.
pub struct Arg(Vec<u8>);

macro_rules! args {
    ($($t:ty),*) => { $(impl From<$t> for Arg {
        fn from(v: $t) -> Arg { Arg(v.to_ne_bytes().to_vec()) }
    })* };
}
args!(u64, i64, u32, i32, f32);

/// Launches with one dimension of blocks and threads.
pub fn launch(f: usize, blocks: u32, threads: u32, s: usize, mut args: Vec<Arg>) -> i32 {
    let mut pointers: Vec<*mut c_void> =
        args.iter_mut().map(|a| a.0.as_mut_ptr() as *mut c_void).collect();
    let none = std::ptr::null_mut();
    cuLaunchKernel(f, blocks, 1, 1, threads, 1, 1, 0, s, pointers.as_mut_ptr(), none)
}
