//! Modules and functions.
use super::*;

pub struct Module {
    ptx: ptx::Module,
    globals: HashMap<String, u64>,
    funcs: Mutex<HashMap<String, usize>>,
}

pub struct Function {
    pub kernel: Kernel,
    module: usize,
    pub max_dynamic: AtomicUsize,
    pub unloaded: AtomicBool,
}

fn load_text(text: &str) -> Result<Module, (Res, String)> {
    let ptx = ptx::parse_module(text).map_err(|e| (INVALID_PTX, e))?;
    let mut globals = HashMap::new();
    for v in &ptx.vars {
        if v.space == ptx::Space::Shared || v.external {
            continue;
        }
        let a = mem::alloc_quiet(v.size.max(1) as u64)
            .ok_or((OUT_OF_MEMORY, "out of memory".into()))?;
        unsafe { std::ptr::write_bytes(mem::host(a), 0, v.size) };
        globals.insert(v.name.clone(), a);
    }
    for v in &ptx.vars {
        let Some(&a) = globals.get(&v.name) else { continue };
        for i in &v.init {
            match i {
                ptx::Init::Bytes(b) => unsafe {
                    std::ptr::copy_nonoverlapping(b.as_ptr(), mem::host(a), b.len().min(v.size));
                },
                ptx::Init::Addr { at, sym, add, width } => {
                    let t = globals
                        .get(sym)
                        .ok_or((INVALID_PTX, format!("address of unknown {sym}")))?;
                    let bits = (t.wrapping_add(*add as u64)).to_le_bytes();
                    if at + width > v.size {
                        return Err((
                            INVALID_PTX,
                            format!("initializer of {} is too long", v.name),
                        ));
                    }
                    unsafe {
                        std::ptr::copy_nonoverlapping(bits.as_ptr(), mem::host(a).add(*at), *width)
                    };
                }
            }
        }
    }
    Ok(Module { ptx, globals, funcs: Mutex::default() })
}

unsafe fn load(m: *mut *mut Module, text: &[u8]) -> Res {
    let text = match std::str::from_utf8(text) {
        Ok(t) if t.contains(".version") => t,
        _ => {
            eprintln!("cudaemu: a module is not PTX text; only PTX is emulated");
            return INVALID_IMAGE;
        }
    };
    match load_text(text) {
        Ok(x) => {
            with(|c| c.modules += 1);
            crate::trace(|| format!("module with {} functions", x.ptx.order.len()));
            *m = Box::into_raw(Box::new(x));
            OK
        }
        Err((code, e)) => {
            eprintln!("cudaemu: module: {e}");
            code
        }
    }
}
#[no_mangle]
pub unsafe extern "C" fn cuModuleLoadData(m: *mut *mut Module, image: *const c_char) -> Res {
    enter_unless_captured!("cuModuleLoadData", unsafe_call);
    if image.is_null() {
        return INVALID_VALUE;
    }
    load(m, CStr::from_ptr(image).to_bytes())
}
#[no_mangle]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    m: *mut *mut Module,
    image: *const c_char,
    _: c_uint,
    _: *mut c_int,
    _: *mut *mut c_void,
) -> Res {
    enter_unless_captured!("cuModuleLoadDataEx", unsafe_call);
    if image.is_null() {
        return INVALID_VALUE;
    }
    load(m, CStr::from_ptr(image).to_bytes())
}
#[no_mangle]
pub unsafe extern "C" fn cuModuleLoad(m: *mut *mut Module, path: *const c_char) -> Res {
    enter_unless_captured!("cuModuleLoad", unsafe_call);
    if path.is_null() {
        return INVALID_VALUE;
    }
    match std::fs::read(CStr::from_ptr(path).to_string_lossy().as_ref()) {
        Ok(t) => load(m, &t),
        Err(_) => FILE_NOT_FOUND,
    }
}
#[no_mangle]
pub unsafe extern "C" fn cuModuleUnload(m: *mut Module) -> Res {
    call!("cuModuleUnload");
    let e = capture::unsafe_call("cuModuleUnload");
    if e != OK {
        return e;
    }
    if m.is_null() {
        return INVALID_HANDLE;
    }
    let m = Box::from_raw(m);
    // Functions stay around, so that a late launch is an error and not a crash.
    for f in m.funcs.lock().unwrap().values() {
        (*(*f as *const Function)).unloaded.store(true, Relaxed);
    }
    for a in m.globals.values() {
        let _ = mem::free_quiet(*a);
    }
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuModuleGetFunction(
    f: *mut *const Function,
    m: *mut Module,
    name: *const c_char,
) -> Res {
    enter!("cuModuleGetFunction");
    if m.is_null() || name.is_null() {
        return INVALID_HANDLE;
    }
    let name = CStr::from_ptr(name).to_string_lossy().into_owned();
    let mut funcs = (*m).funcs.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(&p) = funcs.get(&name) {
        *f = p as *const Function;
        return OK;
    }
    if !(*m).ptx.funcs.get(&name).is_some_and(|f| f.entry) {
        return NOT_FOUND;
    }
    match compile::compile(&(*m).ptx, &name, &(*m).globals) {
        Ok(kernel) => {
            let p = Box::into_raw(Box::new(Function {
                kernel,
                module: m as usize,
                max_dynamic: AtomicUsize::new(DEFAULT_SHARED),
                unloaded: AtomicBool::new(false),
            }));
            funcs.insert(name, p as usize);
            *f = p;
            OK
        }
        Err(e) => {
            eprintln!("cudaemu: kernel {name}: {e}");
            INVALID_PTX
        }
    }
}
#[no_mangle]
pub unsafe extern "C" fn cuModuleGetGlobal_v2(
    p: *mut u64,
    n: *mut size_t,
    m: *mut Module,
    name: *const c_char,
) -> Res {
    enter!("cuModuleGetGlobal_v2");
    if m.is_null() || name.is_null() {
        return INVALID_HANDLE;
    }
    let name = CStr::from_ptr(name).to_string_lossy();
    let (Some(a), Some(v)) =
        ((*m).globals.get(&*name), (*m).ptx.vars.iter().find(|v| v.name == *name))
    else {
        return NOT_FOUND;
    };
    if !p.is_null() {
        *p = *a;
    }
    if !n.is_null() {
        *n = v.size;
    }
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuModuleGetLoadingMode(mode: *mut c_int) -> Res {
    *mode = 1;
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuFuncGetModule(m: *mut usize, f: *const Function) -> Res {
    *m = (*f).module;
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuFuncGetAttribute(v: *mut c_int, attr: c_int, f: *const Function) -> Res {
    if f.is_null() {
        return INVALID_HANDLE;
    }
    let k = &(*f).kernel;
    *v = match attr {
        0 => k.max_threads.unwrap_or(1024) as c_int,
        1 => k.shared_size as c_int,
        2 => 0,
        3 => k.local_size as c_int,
        4 => k.regs.clamp(8, 64) as c_int,
        5 | 6 => 80,
        7 => 0,
        8 => (*f).max_dynamic.load(Relaxed) as c_int,
        9 => -1,
        _ => 0,
    };
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuFuncSetAttribute(f: *const Function, attr: c_int, v: c_int) -> Res {
    if f.is_null() {
        return INVALID_HANDLE;
    }
    if attr == 8 {
        if v < 0 || v as usize + (*f).kernel.shared_size > MAX_SHARED {
            return INVALID_VALUE;
        }
        (*f).max_dynamic.store(v as usize, Relaxed);
    }
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuFuncSetCacheConfig(_: *const Function, _: c_int) -> Res {
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    n: *mut c_int,
    f: *const Function,
    block: c_int,
    dynamic: size_t,
) -> Res {
    if block <= 0 {
        return INVALID_VALUE;
    }
    let shared = (*f).kernel.shared_size + dynamic;
    let by_shared = (164usize * 1024).checked_div(shared).unwrap_or(32);
    *n = (2048 / block as usize).min(32).min(by_shared) as c_int;
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    n: *mut c_int,
    f: *const Function,
    block: c_int,
    dynamic: size_t,
    _: c_uint,
) -> Res {
    cuOccupancyMaxActiveBlocksPerMultiprocessor(n, f, block, dynamic)
}
#[no_mangle]
pub unsafe extern "C" fn cuOccupancyMaxPotentialBlockSize(
    grid: *mut c_int,
    block: *mut c_int,
    f: *const Function,
    _: *const c_void,
    _: size_t,
    limit: c_int,
) -> Res {
    let mut b = (*f).kernel.max_threads.unwrap_or(1024).min(1024) as c_int;
    if limit > 0 {
        b = b.min(limit);
    }
    *block = b;
    *grid = 16 * (2048 / b.max(1)).min(32);
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    grid: *mut c_int,
    block: *mut c_int,
    f: *const Function,
    cb: *const c_void,
    dynamic: size_t,
    limit: c_int,
    _: c_uint,
) -> Res {
    cuOccupancyMaxPotentialBlockSize(grid, block, f, cb, dynamic, limit)
}
#[no_mangle]
pub unsafe extern "C" fn cuOccupancyAvailableDynamicSMemPerBlock(
    n: *mut size_t,
    f: *const Function,
    blocks: c_int,
    _: c_int,
) -> Res {
    *n = (164 * 1024 / blocks.max(1) as usize)
        .saturating_sub((*f).kernel.shared_size)
        .min(MAX_SHARED);
    OK
}
