//! Kernel launches.
use super::module::Function;
use super::*;

unsafe fn gather(
    k: &Kernel,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<Vec<u8>, Res> {
    let mut buf = vec![0u8; k.param_bytes];
    if !extra.is_null() {
        // Pairs of a key and a value: 1 = buffer, 2 = pointer to its size, 0 = end.
        let (mut p, mut n) = (std::ptr::null::<u8>(), 0usize);
        let mut at = extra;
        loop {
            match *at as usize {
                0 => break,
                1 => p = *at.add(1) as *const u8,
                2 => n = *(*at.add(1) as *const usize),
                _ => return Err(INVALID_VALUE),
            }
            at = at.add(2);
        }
        if p.is_null() || n < k.param_bytes {
            return Err(INVALID_VALUE);
        }
        std::ptr::copy_nonoverlapping(p, buf.as_mut_ptr(), k.param_bytes);
        return Ok(buf);
    }
    if k.params.is_empty() {
        return Ok(buf);
    }
    if params.is_null() {
        return Err(INVALID_VALUE);
    }
    for (i, p) in k.params.iter().enumerate() {
        let from = *params.add(i) as *const u8;
        if from.is_null() {
            return Err(INVALID_VALUE);
        }
        std::ptr::copy_nonoverlapping(from, buf.as_mut_ptr().add(p.offset), p.size);
    }
    Ok(buf)
}

/// The shape of a launch.
#[derive(Clone, Copy)]
struct Shape {
    grid: [u32; 3],
    block: [u32; 3],
    dynamic: usize,
}

impl Shape {
    fn threads(&self) -> u64 {
        self.block.iter().map(|&v| v as u64).product()
    }
    fn blocks(&self) -> u64 {
        self.grid.iter().map(|&v| v as u64).product()
    }

    /// Why a function cannot be launched like this.
    fn fault(&self, f: &Function) -> Option<(Res, String)> {
        let (threads, k) = (self.threads(), &f.kernel);
        if threads == 0 || self.blocks() == 0 {
            return Some((INVALID_VALUE, "a dimension is zero".into()));
        }
        if threads > 1024 || self.block[2] > 64 {
            return Some((INVALID_VALUE, "too many threads in a block".into()));
        }
        if self.grid[0] > i32::MAX as u32 || self.grid[1] > 65535 || self.grid[2] > 65535 {
            return Some((INVALID_VALUE, "the grid is too large".into()));
        }
        if let Some(most) = k.max_threads.filter(|&most| threads > most as u64) {
            return Some((LAUNCH_OUT_OF_RESOURCES, format!("the kernel allows {most} threads")));
        }
        if self.dynamic + k.shared_size > f.max_dynamic.load(Relaxed).max(DEFAULT_SHARED) {
            let why = "too much shared memory (CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)";
            return Some((INVALID_VALUE, why.into()));
        }
        None
    }
}

unsafe fn launch(
    f: *const Function,
    shape: Shape,
    stream: usize,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Res {
    if f.is_null() {
        return INVALID_HANDLE;
    }
    // Functions are never freed (see cuModuleUnload), so a graph may hold on to one.
    let f: &'static Function = &*f;
    let bad = match shape.fault(f) {
        Some(bad) => Err(bad),
        None => gather(&f.kernel, params, extra).map_err(|e| (e, "parameters are missing".into())),
    };
    match bad {
        Ok(buf) => capture::enqueue(stream, Kind::Kernel, move |by| run(f, shape, &buf, by)),
        Err((code, why)) => {
            eprintln!(
                "cudaemu: launch of {} with grid {:?}, block {:?}, {} bytes of shared memory: {why}",
                f.kernel.name, shape.grid, shape.block, shape.dynamic
            );
            with(|c| c.faults += 1);
            capture::spoil(stream);
            code
        }
    }
}

fn run(f: &'static Function, shape: Shape, params: &[u8], by: By) -> Res {
    let k = &f.kernel;
    if f.unloaded.load(Relaxed) {
        eprintln!("cudaemu: launch of {} whose module is gone", k.name);
        return INVALID_HANDLE;
    }
    let Shape { grid, block, dynamic } = shape;
    crate::trace(|| format!("launch {} grid {grid:?} block {block:?} shared {dynamic}", k.name));
    let l = exec::Launch {
        kernel: k,
        params,
        grid,
        block,
        dyn_shared: dynamic,
        next: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        fault: Mutex::new(None),
        steps: AtomicU64::new(0),
    };
    let t0 = Instant::now();
    let fault = exec::launch(&l);
    counters::launched(
        &k.name,
        by,
        counters::Launched {
            threads: shape.threads() * shape.blocks(),
            warp_steps: l.steps.load(Relaxed),
            ns: t0.elapsed().as_nanos() as u64,
        },
    );
    if let Some(x) = fault {
        eprintln!("cudaemu: {}", x.text);
        set_error(x.code);
        return x.code;
    }
    OK
}

#[no_mangle]
pub unsafe extern "C" fn cuLaunchKernel(
    f: *const Function,
    gx: c_uint,
    gy: c_uint,
    gz: c_uint,
    bx: c_uint,
    by: c_uint,
    bz: c_uint,
    dynamic: c_uint,
    stream: usize,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Res {
    enter!("cuLaunchKernel");
    let shape = Shape { grid: [gx, gy, gz], block: [bx, by, bz], dynamic: dynamic as usize };
    launch(f, shape, stream, params, extra)
}

#[repr(C)]
pub struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    dynamic: c_uint,
    stream: usize,
    attrs: *const c_void,
    n_attrs: c_uint,
}
#[no_mangle]
pub unsafe extern "C" fn cuLaunchKernelEx(
    c: *const LaunchConfig,
    f: *const Function,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Res {
    enter!("cuLaunchKernelEx");
    let c = &*c;
    let shape = Shape { grid: c.grid, block: c.block, dynamic: c.dynamic as usize };
    launch(f, shape, c.stream, params, extra)
}
