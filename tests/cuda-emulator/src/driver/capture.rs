//! Stream capture: what each capturing stream has gathered, and which calls a capture forbids.
//!
//! The rules are those of the driver's documentation (`cuStreamBeginCapture`,
//! `cuThreadExchangeStreamCaptureMode`) and of the programming guide's "Prohibited and Unhandled
//! Operations". Where neither says what happens, the stricter answer is given.
use super::*;
use std::collections::HashSet;
use std::thread::ThreadId;

/// Whether work runs for the call that asked for it or because a graph was launched.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum By {
    Host,
    Replay,
}

/// What a graph node does; `Library` are kernels of cuBLAS and cuDNN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Kernel,
    Library,
    Copy,
    Fill,
    Host,
    Graph,
    Empty,
    Record,
    Alloc,
    Free,
}

/// The memory of an allocation node: an address range that lives as long as its graph, and holds
/// memory from the alloc node of a launch to whatever frees it.
pub struct GraphMemory {
    pub addr: u64,
}

impl Drop for GraphMemory {
    fn drop(&mut self) {
        mem::release(self.addr);
    }
}

pub type Work = Box<dyn Fn(By) -> Res + Send + Sync>;

pub struct Node {
    pub kind: Kind,
    /// Positions in the graph of the nodes that this one waits for.
    pub after: Vec<usize>,
    pub memory: Option<Arc<GraphMemory>>,
    pub work: Work,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Global,
    ThreadLocal,
    Relaxed,
}

impl Mode {
    fn of(code: c_int) -> Option<Mode> {
        [Mode::Global, Mode::ThreadLocal, Mode::Relaxed].get(usize::try_from(code).ok()?).copied()
    }
}

struct Capture {
    id: u64,
    mode: Mode,
    thread: ThreadId,
    origin: usize,
    nodes: Vec<Arc<Node>>,
    /// Graph allocations that the graph itself frees.
    freed: HashSet<u64>,
    valid: bool,
}

/// The place of a stream or event in a capture: its number, and the nodes to wait for.
#[derive(Clone)]
pub struct Point {
    pub capture: u64,
    pub after: Vec<usize>,
}

#[derive(Default)]
struct State {
    captures: Vec<Capture>,
    streams: HashMap<usize, Point>,
    non_blocking: HashSet<usize>,
    last_id: u64,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);
/// Number of captures under way: none is the usual case, and costs one load.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);
thread_local! {
    static THREAD_MODE: std::cell::Cell<Mode> = const { std::cell::Cell::new(Mode::Global) };
}

fn state<T>(f: impl FnOnce(&mut State) -> T) -> T {
    let mut guard = STATE.lock().unwrap_or_else(|e| e.into_inner());
    f(guard.get_or_insert_with(Default::default))
}

impl State {
    fn capture(&mut self, id: u64) -> Option<&mut Capture> {
        self.captures.iter_mut().find(|c| c.id == id)
    }

    fn invalidate(&mut self, which: impl Fn(&Capture) -> bool) {
        self.captures.iter_mut().filter(|c| which(c)).for_each(|c| c.valid = false);
    }

    /// Captures with a stream that the legacy stream would wait for.
    fn blocking(&self) -> Vec<u64> {
        let streams = self.streams.iter().filter(|(s, _)| !self.non_blocking.contains(s));
        streams.map(|(_, point)| point.capture).collect()
    }
}

fn is_legacy(stream: usize) -> bool {
    stream < 2
}

fn refuse(call: &str, code: Res, why: &str) -> Res {
    eprintln!("cudaemu: {call} during a stream capture: {why} (error {code})");
    code
}

pub fn stream_created(stream: usize, flags: c_uint) {
    if flags & 1 != 0 {
        state(|s| s.non_blocking.insert(stream));
    }
}

/// For calls that are not ordered by a stream, so that a capture would not see them.
pub fn unsafe_call(call: &str) -> Res {
    let mode = THREAD_MODE.get();
    if ACTIVE.load(Relaxed) == 0 || mode == Mode::Relaxed {
        return OK;
    }
    let me = std::thread::current().id();
    let conflicts = |c: &Capture| {
        (c.thread == me && c.mode != Mode::Relaxed)
            || (c.thread != me && c.mode == Mode::Global && mode == Mode::Global)
    };
    state(|s| {
        if !s.captures.iter().any(conflicts) {
            return OK;
        }
        s.invalidate(conflicts);
        refuse(call, CAPTURE_UNSUPPORTED, "a call that no stream orders")
    })
}

/// For calls that put work into the legacy stream and wait for it.
pub fn legacy_call(call: &str) -> Res {
    match legacy_stream(call) {
        OK => unsafe_call(call),
        error => error,
    }
}

fn legacy_stream(call: &str) -> Res {
    if ACTIVE.load(Relaxed) == 0 {
        return OK;
    }
    state(|s| {
        let blocking = s.blocking();
        if blocking.is_empty() {
            return OK;
        }
        s.invalidate(|c| blocking.contains(&c.id));
        refuse(call, CAPTURE_IMPLICIT, "the legacy stream would wait for the captured one")
    })
}

/// For calls that wait for everything in the context.
pub fn context_call(call: &str) -> Res {
    if ACTIVE.load(Relaxed) == 0 {
        return OK;
    }
    state(|s| {
        s.invalidate(|_| true);
        refuse(call, CAPTURE_UNSUPPORTED, "the context has a capturing stream")
    })
}

/// For calls that wait for a stream or ask how far it is.
pub fn stream_call(call: &str, stream: usize) -> Res {
    if ACTIVE.load(Relaxed) == 0 {
        return OK;
    }
    if is_legacy(stream) {
        return legacy_stream(call);
    }
    state(|s| {
        let Some(id) = s.streams.get(&stream).map(|p| p.capture) else { return OK };
        if s.capture(id).is_some_and(|c| !c.valid) {
            return CAPTURE_INVALIDATED;
        }
        s.invalidate(|c| c.id == id);
        refuse(call, CAPTURE_UNSUPPORTED, "nothing runs on a capturing stream")
    })
}

/// For calls on an event that need it to have been recorded for real.
pub fn event_call(call: &str, point: Option<&Point>) -> Res {
    let Some(point) = point else { return unsafe_call(call) };
    state(|s| s.invalidate(|c| c.id == point.capture));
    refuse(call, CAPTURED_EVENT, "the event was last recorded in a capture")
}

/// A call on this stream was wrong: the capture it belongs to is lost.
pub fn spoil(stream: usize) {
    if ACTIVE.load(Relaxed) > 0 {
        state(|s| {
            if let Some(id) = s.streams.get(&stream).map(|p| p.capture) {
                s.invalidate(|c| c.id == id);
            }
        });
    }
}

/// Runs work at once, or keeps it as a node when the stream is being captured.
pub fn enqueue(stream: usize, kind: Kind, work: impl Fn(By) -> Res + Send + Sync + 'static) -> Res {
    match capturing(stream) {
        Ok(None) => {
            order::put(stream);
            work(By::Host)
        }
        Ok(Some(_)) => add(stream, kind, None, Box::new(work)),
        Err(code) => code,
    }
}

/// The capture that takes what is put into this stream, or why nothing may be put into it.
pub fn capturing(stream: usize) -> Result<Option<u64>, Res> {
    if ACTIVE.load(Relaxed) == 0 {
        return Ok(None);
    }
    if is_legacy(stream) {
        return match legacy_stream("work in the legacy stream") {
            OK => Ok(None),
            code => Err(code),
        };
    }
    state(|s| match s.streams.get(&stream).map(|p| p.capture) {
        None => Ok(None),
        Some(id) if s.capture(id).is_some_and(|c| c.valid) => Ok(Some(id)),
        Some(_) => Err(CAPTURE_INVALIDATED),
    })
}

/// Adds a node behind what this stream has captured so far.
pub fn add(stream: usize, kind: Kind, memory: Option<Arc<GraphMemory>>, work: Work) -> Res {
    let added = state(|s| {
        let point = s.streams.get(&stream).cloned()?;
        let capture = s.capture(point.capture)?;
        let at = capture.nodes.len();
        capture.nodes.push(Arc::new(Node { kind, after: point.after, memory, work }));
        s.streams.insert(stream, Point { capture: point.capture, after: vec![at] });
        Some(())
    });
    if added.is_none() {
        return ILLEGAL_STATE;
    }
    with(|c| c.graph.captured += 1);
    crate::trace(|| format!("captured {kind:?}"));
    OK
}

/// Notes that the graph under capture frees this allocation; false if it does so already.
pub fn frees(stream: usize, addr: u64) -> bool {
    state(|s| {
        let Some(id) = s.streams.get(&stream).map(|p| p.capture) else { return false };
        s.capture(id).is_some_and(|c| c.freed.insert(addr))
    })
}

/// Where a stream is in its capture, for an event recorded in it.
pub fn point(stream: usize) -> Option<Point> {
    if ACTIVE.load(Relaxed) == 0 {
        return None;
    }
    state(|s| s.streams.get(&stream).cloned())
}

/// Makes a stream wait for an event: within a capture that is an edge or a fork.
/// `point` is where the event was captured; None for an event recorded for real.
pub fn wait(stream: usize, point: Option<&Point>) -> Res {
    let call = "cuStreamWaitEvent";
    let here = match capturing(stream) {
        Ok(here) => here,
        Err(code) => return code,
    };
    match (here, point) {
        (None, None) => OK,
        (Some(_), None) => {
            spoil(stream);
            refuse(call, CAPTURE_ISOLATION, "the event was recorded outside the capture")
        }
        (here, Some(point)) => state(|s| {
            if s.capture(point.capture).is_none() {
                return refuse(call, CAPTURED_EVENT, "the event's capture has ended");
            }
            if here.is_some_and(|id| id != point.capture) {
                s.invalidate(|c| c.id == point.capture || Some(c.id) == here);
                return refuse(call, CAPTURE_MERGE, "the event belongs to another capture");
            }
            let own = s
                .streams
                .entry(stream)
                .or_insert_with(|| Point { capture: point.capture, after: vec![] });
            for at in &point.after {
                if !own.after.contains(at) {
                    own.after.push(*at);
                }
            }
            OK
        }),
    }
}

/// The captured nodes, or the error that ends the capture. The stream is free again either way,
/// except when the wrong thread or stream asks.
pub fn end(stream: usize) -> Result<Vec<Arc<Node>>, Res> {
    state(|s| {
        let Some(point) = s.streams.get(&stream).cloned() else { return Err(ILLEGAL_STATE) };
        let Some(at) = s.captures.iter().position(|c| c.id == point.capture) else {
            return Err(ILLEGAL_STATE);
        };
        let capture = &mut s.captures[at];
        if capture.origin != stream {
            capture.valid = false;
            return Err(CAPTURE_UNMATCHED);
        }
        if capture.mode != Mode::Relaxed && capture.thread != std::thread::current().id() {
            return Err(CAPTURE_WRONG_THREAD);
        }
        let capture = s.captures.swap_remove(at);
        s.streams.retain(|_, p| p.capture != capture.id);
        ACTIVE.store(s.captures.len(), Relaxed);
        if !capture.valid {
            return Err(CAPTURE_INVALIDATED);
        }
        if !all_joined(&capture.nodes, point.after) {
            return Err(refuse(
                "cuStreamEndCapture",
                CAPTURE_UNJOINED,
                "a forked stream was not joined",
            ));
        }
        Ok(capture.nodes)
    })
}

/// Whether each node comes before one of `ends`.
fn all_joined(nodes: &[Arc<Node>], ends: Vec<usize>) -> bool {
    let mut seen = vec![false; nodes.len()];
    let mut open = ends;
    while let Some(at) = open.pop() {
        if !std::mem::replace(&mut seen[at], true) {
            open.extend(&nodes[at].after);
        }
    }
    seen.into_iter().all(|s| s)
}

/// What a program may ask about a stream's capture.
struct Info {
    /// 0 none, 1 active, 2 invalidated.
    status: c_int,
    id: u64,
}

fn info(stream: usize) -> Result<Info, Res> {
    if ACTIVE.load(Relaxed) == 0 {
        return Ok(Info { status: 0, id: 0 });
    }
    state(|s| {
        if is_legacy(stream) && !s.blocking().is_empty() {
            return Err(CAPTURE_IMPLICIT);
        }
        Ok(match s.streams.get(&stream).map(|p| p.capture) {
            None => Info { status: 0, id: 0 },
            Some(id) => {
                let valid = s.capture(id).is_some_and(|c| c.valid);
                Info { status: if valid { 1 } else { 2 }, id }
            }
        })
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuStreamBeginCapture_v2(stream: usize, mode: c_int) -> Res {
    enter!("cuStreamBeginCapture_v2");
    let Some(mode) = Mode::of(mode) else { return INVALID_VALUE };
    if is_legacy(stream) {
        return refuse("cuStreamBeginCapture", CAPTURE_UNSUPPORTED, "the legacy stream has none");
    }
    let begun = state(|s| {
        if s.streams.contains_key(&stream) {
            return false;
        }
        s.last_id += 1;
        let id = s.last_id;
        s.captures.push(Capture {
            id,
            mode,
            thread: std::thread::current().id(),
            origin: stream,
            nodes: vec![],
            freed: HashSet::new(),
            valid: true,
        });
        s.streams.insert(stream, Point { capture: id, after: vec![] });
        ACTIVE.store(s.captures.len(), Relaxed);
        true
    });
    if !begun {
        return ILLEGAL_STATE;
    }
    with(|c| c.graph.captures += 1);
    crate::trace(|| format!("begin capture of stream {stream:#x}"));
    OK
}

#[no_mangle]
pub unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) -> Res {
    enter!("cuThreadExchangeStreamCaptureMode");
    if mode.is_null() {
        return INVALID_VALUE;
    }
    let Some(next) = Mode::of(*mode) else { return INVALID_VALUE };
    *mode = THREAD_MODE.replace(next) as c_int;
    OK
}

#[no_mangle]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: usize, status: *mut c_int) -> Res {
    enter!("cuStreamIsCapturing");
    if status.is_null() {
        return INVALID_VALUE;
    }
    match info(stream) {
        Ok(i) => *status = i.status,
        Err(code) => return code,
    }
    OK
}

/// Status and number of the capture; the graph under construction and its nodes have no handles
/// here, so asking for them is not supported.
#[no_mangle]
pub unsafe extern "C" fn cuStreamGetCaptureInfo_v2(
    stream: usize,
    status: *mut c_int,
    id: *mut u64,
    graph: *mut usize,
    nodes: *mut *const usize,
    count: *mut size_t,
) -> Res {
    cuStreamGetCaptureInfo_v3(stream, status, id, graph, nodes, std::ptr::null_mut(), count)
}

#[no_mangle]
pub unsafe extern "C" fn cuStreamGetCaptureInfo_v3(
    stream: usize,
    status: *mut c_int,
    id: *mut u64,
    graph: *mut usize,
    nodes: *mut *const usize,
    edges: *mut *const c_void,
    count: *mut size_t,
) -> Res {
    enter!("cuStreamGetCaptureInfo");
    if status.is_null() {
        return INVALID_VALUE;
    }
    if !graph.is_null() || !nodes.is_null() || !edges.is_null() {
        crate::not_emulated("cuStreamGetCaptureInfo of the graph and its nodes");
        return NOT_SUPPORTED;
    }
    let info = match info(stream) {
        Ok(info) => info,
        Err(code) => return code,
    };
    *status = info.status;
    if !id.is_null() {
        *id = info.id;
    }
    if !count.is_null() {
        *count = point(stream).map_or(0, |p| p.after.len());
    }
    OK
}
