//! Graphs: the nodes of a finished capture, run again at each launch.
use super::capture::{Node, Work};
use super::*;

pub struct Graph {
    nodes: Vec<Arc<Node>>,
    /// Executable graphs made from this one; a graph with memory nodes may have one at a time.
    instances: Arc<AtomicUsize>,
}

pub struct Exec {
    inner: Arc<Instance>,
}

struct Instance {
    nodes: Vec<Arc<Node>>,
    auto_free: bool,
    instances: Arc<AtomicUsize>,
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.instances.fetch_sub(1, Relaxed);
    }
}

const AUTO_FREE_ON_LAUNCH: u64 = 1;
const DEVICE_LAUNCH: u64 = 4;
const ALL_FLAGS: u64 = 15;

fn has_memory_nodes(nodes: &[Arc<Node>]) -> bool {
    nodes.iter().any(|n| matches!(n.kind, Kind::Alloc | Kind::Free))
}

impl Instance {
    /// Frees what the last launch left behind, or refuses when that is the program's to do.
    fn prepare(&self) -> Res {
        for memory in self.nodes.iter().filter_map(|n| n.memory.as_ref()) {
            if !mem::is_live(memory.addr) {
                continue;
            }
            if !self.auto_free {
                eprintln!(
                    "cudaemu: cuGraphLaunch: memory at {:#x} of the last launch was not freed, \
                     and the graph does not free it (AUTO_FREE_ON_LAUNCH)",
                    memory.addr
                );
                return INVALID_VALUE;
            }
            let _ = mem::free_quiet(memory.addr);
        }
        OK
    }

    fn run(&self) -> Res {
        for node in &self.nodes {
            let code = (node.work)(By::Replay);
            if code != OK {
                return code;
            }
            with(|c| c.graph.ran(node.kind));
        }
        OK
    }
}

#[no_mangle]
pub unsafe extern "C" fn cuStreamEndCapture(stream: usize, graph: *mut *mut Graph) -> Res {
    enter!("cuStreamEndCapture");
    if graph.is_null() {
        return INVALID_VALUE;
    }
    *graph = std::ptr::null_mut();
    match capture::end(stream) {
        Ok(nodes) => {
            crate::trace(|| format!("end capture of stream {stream:#x}, {} nodes", nodes.len()));
            *graph = Box::into_raw(Box::new(Graph { nodes, instances: Arc::default() }));
            OK
        }
        Err(code) => code,
    }
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphDestroy(graph: *mut Graph) -> Res {
    call!("cuGraphDestroy");
    if graph.is_null() {
        return INVALID_VALUE;
    }
    drop(Box::from_raw(graph));
    OK
}

/// With `nodes` null, the number of nodes; otherwise up to `count` handles.
#[no_mangle]
pub unsafe extern "C" fn cuGraphGetNodes(
    graph: *mut Graph,
    nodes: *mut *const Node,
    count: *mut size_t,
) -> Res {
    enter!("cuGraphGetNodes");
    if graph.is_null() || count.is_null() {
        return INVALID_VALUE;
    }
    let all = &(*graph).nodes;
    if nodes.is_null() {
        *count = all.len();
        return OK;
    }
    for at in 0..*count {
        *nodes.add(at) = all.get(at).map_or(std::ptr::null(), Arc::as_ptr);
    }
    *count = all.len().min(*count);
    OK
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphNodeGetType(node: *const Node, kind: *mut c_int) -> Res {
    enter!("cuGraphNodeGetType");
    if node.is_null() || kind.is_null() {
        return INVALID_VALUE;
    }
    *kind = match (*node).kind {
        Kind::Kernel | Kind::Library => 0,
        Kind::Copy => 1,
        Kind::Fill => 2,
        Kind::Host => 3,
        Kind::Graph => 4,
        Kind::Empty => 5,
        Kind::Record => 7,
        Kind::Alloc => 10,
        Kind::Free => 11,
    };
    OK
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(
    exec: *mut *mut Exec,
    graph: *mut Graph,
    flags: u64,
) -> Res {
    enter!("cuGraphInstantiateWithFlags");
    let both = AUTO_FREE_ON_LAUNCH | DEVICE_LAUNCH;
    if exec.is_null() || graph.is_null() || flags & !ALL_FLAGS != 0 || flags & both == both {
        return INVALID_VALUE;
    }
    let graph = &*graph;
    if has_memory_nodes(&graph.nodes) && graph.instances.load(Relaxed) > 0 {
        eprintln!("cudaemu: a graph with memory nodes is instantiated twice");
        return INVALID_VALUE;
    }
    graph.instances.fetch_add(1, Relaxed);
    let inner = Instance {
        nodes: graph.nodes.clone(),
        auto_free: flags & AUTO_FREE_ON_LAUNCH != 0,
        instances: graph.instances.clone(),
    };
    *exec = Box::into_raw(Box::new(Exec { inner: Arc::new(inner) }));
    OK
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphExecDestroy(exec: *mut Exec) -> Res {
    call!("cuGraphExecDestroy");
    if exec.is_null() {
        return INVALID_VALUE;
    }
    drop(Box::from_raw(exec));
    OK
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphUpload(exec: *mut Exec, stream: usize) -> Res {
    enter!("cuGraphUpload");
    if exec.is_null() {
        return INVALID_VALUE;
    }
    match capture::capturing(stream) {
        Ok(None) => OK,
        Ok(Some(_)) => {
            capture::spoil(stream);
            CAPTURE_UNSUPPORTED
        }
        Err(code) => code,
    }
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphLaunch(exec: *mut Exec, stream: usize) -> Res {
    enter!("cuGraphLaunch");
    if exec.is_null() {
        return INVALID_VALUE;
    }
    let inner = (*exec).inner.clone();
    match capture::capturing(stream) {
        Ok(None) => {
            let code = inner.prepare();
            if code != OK {
                return code;
            }
            with(|c| c.graph.launches += 1);
            crate::trace(|| format!("launch graph of {} nodes", inner.nodes.len()));
            inner.run()
        }
        Ok(Some(_)) if has_memory_nodes(&inner.nodes) => {
            eprintln!("cudaemu: cuGraphLaunch: a graph with memory nodes inside a capture");
            capture::spoil(stream);
            NOT_SUPPORTED
        }
        Ok(Some(_)) => {
            let work: Work = Box::new(move |_| inner.run());
            capture::add(stream, Kind::Graph, None, work)
        }
        Err(code) => code,
    }
}
