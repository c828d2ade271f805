//! What a program asked of the device, counted.
use crate::driver::capture::{By, Kind};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::Mutex;

pub struct ApiCounter {
    name: &'static str,
    n: AtomicU64,
    known: AtomicBool,
}

static APIS: Mutex<Vec<&'static ApiCounter>> = Mutex::new(vec![]);

impl ApiCounter {
    pub const fn new(name: &'static str) -> Self {
        ApiCounter { name, n: AtomicU64::new(0), known: AtomicBool::new(false) }
    }
    pub fn hit(&'static self) {
        self.n.fetch_add(1, Relaxed);
        if !self.known.swap(true, Relaxed) {
            APIS.lock().unwrap().push(self);
        }
    }
}

#[derive(Clone, Default, PartialEq)]
pub struct Copy {
    pub sync: u64,
    pub asyn: u64,
    /// Copies whose host side is not pinned: these never overlap with other work.
    pub pageable: u64,
    pub bytes: u64,
}

impl Copy {
    fn add(&mut self, bytes: u64, asyn: bool) {
        if asyn {
            self.asyn += 1;
        } else {
            self.sync += 1;
        }
        self.bytes += bytes;
    }
}

#[derive(Clone, Default)]
pub struct Counters {
    pub h2d: Copy,
    pub d2h: Copy,
    pub d2d: Copy,
    pub memset: Copy,
    pub stream_sync: u64,
    pub context_sync: u64,
    pub event_sync: u64,
    /// Calls that wait although they are not named so: see `implicit_sync`.
    pub implicit_sync: u64,
    pub event_record: u64,
    pub stream_wait_event: u64,
    pub allocs: u64,
    pub alloc_bytes: u64,
    pub frees: u64,
    pub launches: u64,
    pub threads: u64,
    pub warp_steps: u64,
    pub kernel_ns: u64,
    pub gemms: u64,
    pub gemm_ns: u64,
    pub gemm_flops: u64,
    pub random: u64,
    pub modules: u64,
    pub faults: u64,
    pub convs: u64,
    pub conv_ns: u64,
    pub conv_flops: u64,
    pub graph: GraphCounts,
    /// What each kernel was launched for and took.
    pub kernels: BTreeMap<&'static str, KernelCounts>,
    pub apis: BTreeMap<String, u64>,
}

/// Stream capture and graphs. What a graph replays counts here and not as the host's calls.
#[derive(Clone, Copy, Default)]
pub struct GraphCounts {
    pub captures: u64,
    /// Nodes that captures gathered.
    pub captured: u64,
    /// Captured copies whose host side is ordinary memory, read or written again at each launch.
    pub pageable: u64,
    pub launches: u64,
    /// Nodes that launches ran, in all and by kind.
    pub nodes: u64,
    pub kernels: u64,
    pub library: u64,
    pub copies: u64,
    pub fills: u64,
    pub allocs: u64,
    pub frees: u64,
}

impl GraphCounts {
    pub fn ran(&mut self, kind: Kind) {
        self.nodes += 1;
        match kind {
            Kind::Kernel => self.kernels += 1,
            Kind::Library => self.library += 1,
            Kind::Copy => self.copies += 1,
            Kind::Fill => self.fills += 1,
            Kind::Alloc => self.allocs += 1,
            Kind::Free => self.frees += 1,
            Kind::Host | Kind::Graph | Kind::Empty | Kind::Record => {}
        }
    }
}

#[derive(Clone, Copy, Default)]
pub struct KernelCounts {
    pub launches: u64,
    pub replays: u64,
    pub ns: u64,
}

/// One copy, for `cudaemu_copies_json`.
pub struct CopyEvent {
    pub bytes: u64,
    pub asyn: bool,
    pub pageable: bool,
}

struct LoggedCopy {
    direction: &'static str,
    event: CopyEvent,
    /// Launches between the last mark and this copy, and the last of them.
    launches: u64,
    kernel: &'static str,
}

/// The copies since the last mark.
#[derive(Default)]
struct CopyLog {
    copies: Vec<LoggedCopy>,
    left_out: u64,
    launches: u64,
    kernel: &'static str,
}

const LONGEST_LOG: usize = 10_000;
static LOG: Mutex<Option<CopyLog>> = Mutex::new(None);

fn log<T>(f: impl FnOnce(&mut CopyLog) -> T) -> T {
    let mut g = LOG.lock().unwrap_or_else(|e| e.into_inner());
    f(g.get_or_insert_with(Default::default))
}

/// Counts a copy of the host's and notes it.
pub fn copied(direction: &'static str, event: CopyEvent) {
    with(|c| {
        let count = match direction {
            "h2d" => &mut c.h2d,
            "d2h" => &mut c.d2h,
            _ => &mut c.d2d,
        };
        count.add(event.bytes, event.asyn);
        count.pageable += event.pageable as u64;
    });
    log(|l| {
        if l.copies.len() == LONGEST_LOG {
            l.left_out += 1;
            return;
        }
        let (launches, kernel) = (l.launches, l.kernel);
        l.copies.push(LoggedCopy { direction, event, launches, kernel });
    });
}

pub fn filled(bytes: u64, asyn: bool) {
    with(|c| c.memset.add(bytes, asyn));
}

/// What one launch took.
pub struct Launched {
    pub threads: u64,
    pub warp_steps: u64,
    pub ns: u64,
}

pub fn launched(kernel: &'static str, by: By, took: Launched) {
    with(|c| {
        c.threads += took.threads;
        c.warp_steps += took.warp_steps;
        c.kernel_ns += took.ns;
        let k = c.kernels.entry(kernel).or_default();
        k.ns += took.ns;
        match by {
            By::Host => {
                c.launches += 1;
                k.launches += 1;
            }
            By::Replay => k.replays += 1,
        }
    });
    log(|l| {
        l.launches += 1;
        l.kernel = kernel;
    });
}

/// Counts a call that makes the host wait for the device: a plain (not async) copy or free,
/// or an async copy to the host whose target is ordinary memory, where the driver waits.
pub fn implicit_sync(why: &str) {
    with(|c| c.implicit_sync += 1);
    crate::trace(|| format!("implicit sync: {why}"));
}

static NOW: Mutex<Option<Counters>> = Mutex::new(None);
/// Finished stretches: label, counts since the mark before, counts since the start.
static MARKS: Mutex<Vec<String>> = Mutex::new(vec![]);
static LAST: Mutex<Option<Counters>> = Mutex::new(None);

pub fn with<T>(f: impl FnOnce(&mut Counters) -> T) -> T {
    let mut g = NOW.lock().unwrap_or_else(|e| e.into_inner());
    f(g.get_or_insert_with(Default::default))
}

fn snapshot() -> Counters {
    let mut c = with(|c| c.clone());
    for a in APIS.lock().unwrap().iter() {
        c.apis.insert(a.name.to_string(), a.n.load(Relaxed));
    }
    c
}

fn minus(a: &Counters, b: &Counters) -> Counters {
    let copy = |x: &Copy, y: &Copy| Copy {
        sync: x.sync - y.sync,
        asyn: x.asyn - y.asyn,
        pageable: x.pageable - y.pageable,
        bytes: x.bytes - y.bytes,
    };
    let map = |x: &BTreeMap<String, u64>, y: &BTreeMap<String, u64>| {
        x.iter()
            .map(|(k, v)| (k.clone(), v - y.get(k).copied().unwrap_or(0)))
            .filter(|(_, v)| *v > 0)
            .collect()
    };
    Counters {
        h2d: copy(&a.h2d, &b.h2d),
        d2h: copy(&a.d2h, &b.d2h),
        d2d: copy(&a.d2d, &b.d2d),
        memset: copy(&a.memset, &b.memset),
        stream_sync: a.stream_sync - b.stream_sync,
        context_sync: a.context_sync - b.context_sync,
        event_sync: a.event_sync - b.event_sync,
        implicit_sync: a.implicit_sync - b.implicit_sync,
        event_record: a.event_record - b.event_record,
        stream_wait_event: a.stream_wait_event - b.stream_wait_event,
        allocs: a.allocs - b.allocs,
        alloc_bytes: a.alloc_bytes - b.alloc_bytes,
        frees: a.frees - b.frees,
        launches: a.launches - b.launches,
        threads: a.threads - b.threads,
        warp_steps: a.warp_steps - b.warp_steps,
        kernel_ns: a.kernel_ns - b.kernel_ns,
        gemms: a.gemms - b.gemms,
        gemm_ns: a.gemm_ns - b.gemm_ns,
        gemm_flops: a.gemm_flops - b.gemm_flops,
        random: a.random - b.random,
        modules: a.modules - b.modules,
        faults: a.faults - b.faults,
        convs: a.convs - b.convs,
        conv_ns: a.conv_ns - b.conv_ns,
        conv_flops: a.conv_flops - b.conv_flops,
        graph: GraphCounts {
            captures: a.graph.captures - b.graph.captures,
            captured: a.graph.captured - b.graph.captured,
            pageable: a.graph.pageable - b.graph.pageable,
            launches: a.graph.launches - b.graph.launches,
            nodes: a.graph.nodes - b.graph.nodes,
            kernels: a.graph.kernels - b.graph.kernels,
            library: a.graph.library - b.graph.library,
            copies: a.graph.copies - b.graph.copies,
            fills: a.graph.fills - b.graph.fills,
            allocs: a.graph.allocs - b.graph.allocs,
            frees: a.graph.frees - b.graph.frees,
        },
        kernels: a
            .kernels
            .iter()
            .map(|(k, v)| {
                let o = b.kernels.get(k).copied().unwrap_or_default();
                let (launches, replays) = (v.launches - o.launches, v.replays - o.replays);
                (*k, KernelCounts { launches, replays, ns: v.ns - o.ns })
            })
            .filter(|(_, v)| v.launches + v.replays > 0)
            .collect(),
        apis: map(&a.apis, &b.apis),
    }
}

mod report;
pub use report::start;
