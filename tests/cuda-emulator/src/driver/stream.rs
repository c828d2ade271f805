//! Streams and events.
use super::capture::Point;
use super::device::context;
use super::*;

static NEXT_STREAM: AtomicUsize = AtomicUsize::new(0x5742_0000);

#[no_mangle]
pub unsafe extern "C" fn cuStreamCreate(s: *mut usize, flags: c_uint) -> Res {
    enter!("cuStreamCreate");
    *s = NEXT_STREAM.fetch_add(16, Relaxed);
    capture::stream_created(*s, flags);
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuStreamCreateWithPriority(s: *mut usize, f: c_uint, _: c_int) -> Res {
    cuStreamCreate(s, f)
}
#[no_mangle]
pub unsafe extern "C" fn cuStreamDestroy_v2(_: usize) -> Res {
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuStreamSynchronize(s: usize) -> Res {
    enter!("cuStreamSynchronize");
    let e = capture::stream_call("cuStreamSynchronize", s);
    if e != OK {
        return e;
    }
    order::wait(order::HOST, &order::mark(s));
    with(|c| c.stream_sync += 1);
    crate::trace(|| format!("sync stream {s:#x}"));
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuStreamQuery(s: usize) -> Res {
    enter!("cuStreamQuery");
    capture::stream_call("cuStreamQuery", s)
}
/// Flag 1: an event of the world outside the capture, which becomes a node.
#[no_mangle]
pub unsafe extern "C" fn cuStreamWaitEvent(s: usize, e: *mut Event, flags: c_uint) -> Res {
    enter!("cuStreamWaitEvent");
    if e.is_null() {
        return INVALID_HANDLE;
    }
    let point = (*e).point();
    if flags & 1 != 0 {
        return capture::enqueue(s, Kind::Empty, |_| OK);
    }
    // An event that was never recorded stands for no work at all.
    if point.is_some() || (*e).at.load(Relaxed) != 0 {
        let code = capture::wait(s, point.as_ref());
        if code != OK {
            return code;
        }
    }
    if let Some(mark) = (*e).mark() {
        order::wait(s, &mark);
    }
    with(|c| c.stream_wait_event += 1);
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuStreamGetCtx(_: usize, c: *mut usize) -> Res {
    *c = context();
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuStreamGetFlags(_: usize, f: *mut c_uint) -> Res {
    *f = 0;
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuStreamGetPriority(_: usize, f: *mut c_int) -> Res {
    *f = 0;
    OK
}

type HostFunction = unsafe extern "C" fn(*mut c_void);

#[no_mangle]
pub unsafe extern "C" fn cuLaunchHostFunc(
    s: usize,
    f: Option<HostFunction>,
    arg: *mut c_void,
) -> Res {
    enter!("cuLaunchHostFunc");
    let Some(f) = f else { return INVALID_VALUE };
    let arg = arg as usize;
    capture::enqueue(s, Kind::Host, move |_| {
        f(arg as *mut c_void);
        OK
    })
}
#[no_mangle]
pub unsafe extern "C" fn cuStreamAddCallback(
    s: usize,
    f: Option<unsafe extern "C" fn(usize, Res, *mut c_void)>,
    arg: *mut c_void,
    _: c_uint,
) -> Res {
    enter!("cuStreamAddCallback");
    let Some(f) = f else { return INVALID_VALUE };
    let e = capture::stream_call("cuStreamAddCallback", s);
    if e != OK {
        return e;
    }
    f(s, OK, arg);
    OK
}

pub struct Event {
    at: AtomicU64,
    /// Where it was recorded, if that was in a capture.
    point: Mutex<Option<Point>>,
    /// Where it was recorded otherwise.
    mark: Mutex<Option<order::Mark>>,
}

impl Event {
    fn point(&self) -> Option<Point> {
        self.point.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    fn mark(&self) -> Option<order::Mark> {
        self.mark.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }
}

fn now_ns() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64 + 1
}

#[no_mangle]
pub unsafe extern "C" fn cuEventCreate(e: *mut *mut Event, _: c_uint) -> Res {
    enter!("cuEventCreate");
    *e = Box::into_raw(Box::new(Event {
        at: AtomicU64::new(0),
        point: Mutex::default(),
        mark: Mutex::default(),
    }));
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuEventDestroy_v2(e: *mut Event) -> Res {
    if e.is_null() {
        return INVALID_HANDLE;
    }
    drop(Box::from_raw(e));
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuEventRecord(e: *mut Event, stream: usize) -> Res {
    cuEventRecordWithFlags(e, stream, 0)
}
/// Flag 1: recorded for the world outside the capture, each time the graph runs.
#[no_mangle]
pub unsafe extern "C" fn cuEventRecordWithFlags(
    e: *mut Event,
    stream: usize,
    flags: c_uint,
) -> Res {
    enter!("cuEventRecord");
    if e.is_null() {
        return INVALID_HANDLE;
    }
    let captured = match capture::capturing(stream) {
        Ok(captured) => captured.is_some(),
        Err(code) => return code,
    };
    if captured && flags & 1 != 0 {
        let event = e as usize;
        return capture::enqueue(stream, Kind::Record, move |_| {
            (*(event as *mut Event)).at.store(now_ns(), Relaxed);
            OK
        });
    }
    *(*e).point.lock().unwrap_or_else(|e| e.into_inner()) = capture::point(stream);
    *(*e).mark.lock().unwrap_or_else(|e| e.into_inner()) = (!captured).then(|| order::mark(stream));
    if !captured {
        (*e).at.store(now_ns(), Relaxed);
        with(|c| c.event_record += 1);
    }
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuEventQuery(e: *mut Event) -> Res {
    enter!("cuEventQuery");
    if e.is_null() {
        return INVALID_HANDLE;
    }
    capture::event_call("cuEventQuery", (*e).point().as_ref())
}
#[no_mangle]
pub unsafe extern "C" fn cuEventSynchronize(e: *mut Event) -> Res {
    enter!("cuEventSynchronize");
    if e.is_null() {
        return INVALID_HANDLE;
    }
    let code = capture::event_call("cuEventSynchronize", (*e).point().as_ref());
    if code != OK {
        return code;
    }
    if let Some(mark) = (*e).mark() {
        order::wait(order::HOST, &mark);
    }
    with(|c| c.event_sync += 1);
    crate::trace(|| "sync event".into());
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuEventElapsedTime(ms: *mut f32, a: *mut Event, b: *mut Event) -> Res {
    enter!("cuEventElapsedTime");
    if a.is_null() || b.is_null() {
        return INVALID_HANDLE;
    }
    if (*a).point().is_some() || (*b).point().is_some() {
        return CAPTURED_EVENT;
    }
    let (x, y) = ((*a).at.load(Relaxed), (*b).at.load(Relaxed));
    if x == 0 || y == 0 {
        return INVALID_HANDLE;
    }
    *ms = (y as f64 - x as f64) as f32 / 1e6;
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cuEventElapsedTime_v2(ms: *mut f32, a: *mut Event, b: *mut Event) -> Res {
    cuEventElapsedTime(ms, a, b)
}
