//! Copies and fills.
use super::*;

#[derive(Clone, Copy, PartialEq)]
enum Dir {
    H2D,
    D2H,
    D2D,
}

impl Dir {
    fn name(self) -> &'static str {
        match self {
            Dir::H2D => "h2d",
            Dir::D2H => "d2h",
            Dir::D2D => "d2d",
        }
    }
}

#[derive(Clone, Copy)]
struct Copy {
    dir: Dir,
    dst: u64,
    src: u64,
    bytes: usize,
    asyn: bool,
}

impl Copy {
    /// What is wrong with one of the two addresses.
    fn fault(&self) -> Option<String> {
        let sides = [
            ("source", self.src, self.dir != Dir::H2D),
            ("destination", self.dst, self.dir != Dir::D2H),
        ];
        sides.into_iter().find_map(|(side, at, device)| {
            let why = if device {
                mem::lookup(at, self.bytes as u64).err()?
            } else if at == 0 || mem::is_device(at) {
                "not a host address".into()
            } else {
                return None;
            };
            Some(format!(
                "cudaemu: {} copy of {} bytes: {side} {at:#x}: {why}",
                self.dir.name(),
                self.bytes
            ))
        })
    }

    fn pageable(&self) -> bool {
        match self.dir {
            Dir::H2D => !mem::is_pinned(self.src as usize, self.bytes),
            Dir::D2H => !mem::is_pinned(self.dst as usize, self.bytes),
            Dir::D2D => false,
        }
    }

    fn run(&self, by: By) -> Res {
        let Copy { dir, dst, src, bytes, asyn } = *self;
        if let Some(text) = self.fault() {
            eprintln!("{text}");
            if by == By::Replay {
                set_error(ILLEGAL_ADDRESS);
                return ILLEGAL_ADDRESS;
            }
            with(|c| c.faults += 1);
            return INVALID_VALUE;
        }
        let (d, s) = match dir {
            Dir::H2D => (mem::host(dst), src as *const u8),
            Dir::D2H => (dst as *mut u8, mem::host(src) as *const u8),
            Dir::D2D => (mem::host(dst), mem::host(src) as *const u8),
        };
        // SAFETY: device ranges were looked up; the host's side is the program's promise.
        unsafe { std::ptr::copy(s, d, bytes) };
        if by == By::Replay {
            return OK;
        }
        let pageable = self.pageable();
        counters::copied(dir.name(), counters::CopyEvent { bytes: bytes as u64, asyn, pageable });
        if !asyn {
            counters::implicit_sync("plain copy");
        } else if dir == Dir::D2H && pageable {
            counters::implicit_sync("copy to ordinary host memory");
        }
        OK
    }
}

unsafe fn copy(dir: Dir, dst: u64, src: u64, bytes: usize, stream: Option<usize>) -> Res {
    let copy = Copy { dir, dst, src, bytes, asyn: stream.is_some() };
    crate::trace(|| {
        let mode = if copy.asyn { "async" } else { "sync" };
        format!("{} {bytes} bytes {mode} {src:#x} -> {dst:#x}", dir.name())
    });
    if bytes == 0 {
        return OK;
    }
    let Some(stream) = stream else { return copy.run(By::Host) };
    // A captured copy reads or writes host memory when the graph runs. Pinned or not, that memory
    // has to be there still; ordinary memory is counted, since it is often a temporary's.
    if matches!(capture::capturing(stream), Ok(Some(_))) && copy.pageable() {
        with(|c| c.graph.pageable += 1);
    }
    capture::enqueue(stream, Kind::Copy, move |by| copy.run(by))
}

#[no_mangle]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(d: u64, s: u64, n: size_t) -> Res {
    enter_unless_captured!("cuMemcpyHtoD_v2", legacy_call);
    copy(Dir::H2D, d, s, n, None)
}
#[no_mangle]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(d: u64, s: u64, n: size_t, stream: usize) -> Res {
    enter!("cuMemcpyHtoDAsync_v2");
    copy(Dir::H2D, d, s, n, Some(stream))
}
#[no_mangle]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(d: u64, s: u64, n: size_t) -> Res {
    enter_unless_captured!("cuMemcpyDtoH_v2", legacy_call);
    copy(Dir::D2H, d, s, n, None)
}
#[no_mangle]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(d: u64, s: u64, n: size_t, stream: usize) -> Res {
    enter!("cuMemcpyDtoHAsync_v2");
    copy(Dir::D2H, d, s, n, Some(stream))
}
#[no_mangle]
pub unsafe extern "C" fn cuMemcpyDtoD_v2(d: u64, s: u64, n: size_t) -> Res {
    enter_unless_captured!("cuMemcpyDtoD_v2", legacy_call);
    copy(Dir::D2D, d, s, n, None)
}
#[no_mangle]
pub unsafe extern "C" fn cuMemcpyDtoDAsync_v2(d: u64, s: u64, n: size_t, stream: usize) -> Res {
    enter!("cuMemcpyDtoDAsync_v2");
    copy(Dir::D2D, d, s, n, Some(stream))
}
#[no_mangle]
pub unsafe extern "C" fn cuMemcpyPeerAsync(
    d: u64,
    _: usize,
    s: u64,
    _: usize,
    n: size_t,
    stream: usize,
) -> Res {
    enter!("cuMemcpyPeerAsync");
    copy(Dir::D2D, d, s, n, Some(stream))
}
unsafe fn copy_any(d: u64, s: u64, n: usize, stream: Option<usize>) -> Res {
    match (mem::is_device(d), mem::is_device(s)) {
        (true, true) => copy(Dir::D2D, d, s, n, stream),
        (true, false) => copy(Dir::H2D, d, s, n, stream),
        (false, true) => copy(Dir::D2H, d, s, n, stream),
        _ => {
            std::ptr::copy(s as *const u8, d as *mut u8, n);
            OK
        }
    }
}
#[no_mangle]
pub unsafe extern "C" fn cuMemcpy(d: u64, s: u64, n: size_t) -> Res {
    enter_unless_captured!("cuMemcpy", legacy_call);
    copy_any(d, s, n, None)
}
#[no_mangle]
pub unsafe extern "C" fn cuMemcpyAsync(d: u64, s: u64, n: size_t, stream: usize) -> Res {
    enter!("cuMemcpyAsync");
    copy_any(d, s, n, Some(stream))
}

/// Fills memory at once, or in a stream.
fn set<T: std::marker::Copy + Send + Sync + 'static>(
    d: u64,
    v: T,
    n: usize,
    stream: Option<usize>,
) -> Res {
    let width = std::mem::size_of::<T>();
    let bytes = n * width;
    crate::trace(|| format!("memset {bytes} bytes at {d:#x}"));
    if n == 0 {
        return OK;
    }
    if !d.is_multiple_of(width as u64) {
        return INVALID_VALUE;
    }
    let asyn = stream.is_some();
    let work = move |by| {
        if let Err(e) = mem::lookup(d, bytes as u64) {
            eprintln!("cudaemu: memset of {bytes} bytes at {d:#x}: {e}");
            if by == By::Replay {
                set_error(ILLEGAL_ADDRESS);
                return ILLEGAL_ADDRESS;
            }
            with(|c| c.faults += 1);
            return INVALID_VALUE;
        }
        // SAFETY: the range was looked up and is aligned.
        unsafe { std::slice::from_raw_parts_mut(mem::host(d) as *mut T, n).fill(v) };
        if by == By::Host {
            counters::filled(bytes as u64, asyn);
        }
        OK
    };
    match stream {
        Some(stream) => capture::enqueue(stream, Kind::Fill, work),
        None => work(By::Host),
    }
}
#[no_mangle]
pub unsafe extern "C" fn cuMemsetD8_v2(d: u64, v: u8, n: size_t) -> Res {
    enter_unless_captured!("cuMemsetD8_v2", legacy_call);
    set(d, v, n, None)
}
#[no_mangle]
pub unsafe extern "C" fn cuMemsetD8Async(d: u64, v: u8, n: size_t, stream: usize) -> Res {
    enter!("cuMemsetD8Async");
    set(d, v, n, Some(stream))
}
#[no_mangle]
pub unsafe extern "C" fn cuMemsetD16_v2(d: u64, v: u16, n: size_t) -> Res {
    enter_unless_captured!("cuMemsetD16_v2", legacy_call);
    set(d, v, n, None)
}
#[no_mangle]
pub unsafe extern "C" fn cuMemsetD16Async(d: u64, v: u16, n: size_t, stream: usize) -> Res {
    enter!("cuMemsetD16Async");
    set(d, v, n, Some(stream))
}
#[no_mangle]
pub unsafe extern "C" fn cuMemsetD32_v2(d: u64, v: u32, n: size_t) -> Res {
    enter_unless_captured!("cuMemsetD32_v2", legacy_call);
    set(d, v, n, None)
}
#[no_mangle]
pub unsafe extern "C" fn cuMemsetD32Async(d: u64, v: u32, n: size_t, stream: usize) -> Res {
    enter!("cuMemsetD32Async");
    set(d, v, n, Some(stream))
}
