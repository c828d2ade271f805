//! Captured work does not run until its graph is launched, and then runs with what was captured.
mod common;
use common::*;

/// A captured graph, ready to launch.
struct Ready {
    graph: usize,
    exec: usize,
}

fn captured(s: usize, flags: u64, work: impl FnOnce()) -> Ready {
    ok(cuStreamBeginCapture_v2(s, THREAD_LOCAL));
    work();
    let graph = made(|g| cuStreamEndCapture(s, g));
    let exec = made(|e| cuGraphInstantiateWithFlags(e, graph, flags));
    Ready { graph, exec }
}

impl Ready {
    fn launch(&self, s: usize) {
        ok(cuGraphLaunch(self.exec, s));
        ok(cuStreamSynchronize(s));
    }
    fn destroy(self) {
        ok(cuGraphExecDestroy(self.exec));
        ok(cuGraphDestroy(self.graph));
    }
}

fn pinned(values: &[f32]) -> *mut f32 {
    let p = made::<usize>(|p| cuMemHostAlloc(p as *mut _, values.len() * 4, 0)) as *mut f32;
    unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), p, values.len()) };
    p
}

#[test]
fn a_kernel_runs_at_launch_with_the_arguments_of_the_capture() {
    let _session = session();
    let (s, m) = (stream(), module());
    let f = function(m, "scale_add");
    let x = upload(&[1f32, 2., 3.]);
    reset();
    let mut factor = 2f32;
    let graph = captured(s, 0, || {
        ok(launch(f, 1, 32, s, vec![x.into(), factor.into(), 1f32.into(), 3.into()]));
        factor = 100.;
        ok(launch(f, 1, 32, s, vec![x.into(), 1f32.into(), 0.5f32.into(), 3.into()]));
    });
    assert_eq!(factor, 100.);
    assert_eq!(download::<f32>(x, 3), [1., 2., 3.], "nothing runs during the capture");
    graph.launch(s);
    assert_eq!(download::<f32>(x, 3), [3.5, 5.5, 7.5]);
    graph.launch(s);
    assert_eq!(download::<f32>(x, 3), [8.5, 12.5, 16.5]);
    if emulated() {
        assert_eq!(count("launch.count"), 0, "the host launched no kernel");
        let expected =
            [("captures", 1), ("captured", 2), ("launches", 2), ("nodes", 4), ("kernels", 4)];
        for (key, value) in expected {
            assert_eq!(count(&format!("graph.{key}")), value, "{key}");
        }
        assert_eq!(count("graph.by_name.scale_add"), 4);
    }
    graph.destroy();
}

#[test]
fn copies_and_fills_are_replayed_and_pinned_memory_is_read_again() {
    let _session = session();
    let s = stream();
    let host = pinned(&[1., 2., 3., 4.]);
    let back = pinned(&[0.; 4]);
    let (a, b) = (upload(&[0f32; 4]), upload(&[0f32; 4]));
    let graph = captured(s, 0, || {
        ok(cuMemcpyHtoDAsync_v2(a, host as *const _, 16, s));
        ok(cuMemsetD32Async(a + 8, 1f32.to_bits(), 1, s));
        ok(cuMemcpyDtoDAsync_v2(b, a, 16, s));
        ok(cuMemcpyDtoHAsync_v2(back as *mut _, b, 16, s));
    });
    let seen = || unsafe { std::slice::from_raw_parts(back, 4).to_vec() };
    assert_eq!(seen(), [0.; 4]);
    graph.launch(s);
    assert_eq!(seen(), [1., 2., 1., 4.]);
    unsafe { *host = 7. };
    graph.launch(s);
    assert_eq!(seen(), [7., 2., 1., 4.]);
    if emulated() {
        assert_eq!(count("graph.copies"), 6);
        assert_eq!(count("graph.memsets"), 2);
        assert_eq!(count("graph.pageable"), 0);
    }
    graph.destroy();
    ok(cuMemFreeHost(host as *mut _));
    ok(cuMemFreeHost(back as *mut _));
}

#[test]
fn ordinary_host_memory_is_captured_too_and_counted() {
    let _session = session();
    let s = stream();
    let mut host: Box<[f32]> = Box::new([1., 2.]);
    let a = upload(&[0f32; 2]);
    let graph = captured(s, 0, || ok(cuMemcpyHtoDAsync_v2(a, host.as_ptr() as *const _, 8, s)));
    host[1] = 9.;
    graph.launch(s);
    assert_eq!(download::<f32>(a, 2), [1., 9.], "read when the graph runs");
    if emulated() {
        assert_eq!(count("graph.pageable"), 1);
    }
    graph.destroy();
}

#[test]
fn memory_of_the_graph_keeps_its_address() {
    let _session = session();
    let (s, m) = (stream(), module());
    let f = function(m, "scale_add");
    let out = upload(&[0f32; 4]);
    let mut inner = 0u64;
    let graph = captured(s, 0, || {
        ok(cuMemAllocAsync(&mut inner, 16, s));
        ok(cuMemsetD32Async(inner, 2f32.to_bits(), 4, s));
        ok(launch(f, 1, 4, s, vec![inner.into(), 3f32.into(), 1f32.into(), 4.into()]));
        ok(cuMemcpyDtoDAsync_v2(out, inner, 16, s));
        ok(cuMemFreeAsync(inner, s));
    });
    for _ in 0..3 {
        ok(cuMemsetD32_v2(out, 0, 4));
        graph.launch(s);
        assert_eq!(download::<f32>(out, 4), [7.; 4]);
    }
    if emulated() {
        assert_eq!(count("graph.allocs"), 3);
        assert_eq!(count("graph.frees"), 3);
        let mut host = [0f32; 4];
        let code = cuMemcpyDtoH_v2(host.as_mut_ptr() as *mut _, inner, 16);
        assert_eq!(code, INVALID_VALUE, "freed memory of the graph cannot be read");
    }
    graph.destroy();
}

#[test]
fn memory_that_a_graph_leaves_must_be_freed_before_the_next_launch() {
    let _session = session();
    let s = stream();
    let mut inner = 0u64;
    let fill = |inner: &mut u64| {
        ok(cuMemAllocAsync(inner, 8, s));
        ok(cuMemsetD32Async(*inner, 5, 2, s));
    };
    let graph = captured(s, 0, || fill(&mut inner));
    graph.launch(s);
    assert_eq!(download::<u32>(inner, 2), [5, 5]);
    assert_eq!(cuGraphLaunch(graph.exec, s), INVALID_VALUE);
    ok(cuMemFreeAsync(inner, s));
    graph.launch(s);
    ok(cuMemFree_v2(inner));
    graph.destroy();

    const AUTO_FREE_ON_LAUNCH: u64 = 1;
    let graph = captured(s, AUTO_FREE_ON_LAUNCH, || fill(&mut inner));
    graph.launch(s);
    ok(cuMemsetD32_v2(inner, 6, 2));
    graph.launch(s);
    assert_eq!(download::<u32>(inner, 2), [5, 5]);
    // The memory outlives its graph and is the program's to free.
    graph.destroy();
    assert_eq!(download::<u32>(inner, 2), [5, 5]);
    ok(cuMemFree_v2(inner));
}

#[test]
fn a_graph_with_memory_has_one_instance_at_a_time() {
    let _session = session();
    let s = stream();
    let mut inner = 0u64;
    let graph = captured(s, 0, || {
        ok(cuMemAllocAsync(&mut inner, 8, s));
        ok(cuMemFreeAsync(inner, s));
    });
    let mut second = 0;
    assert_ne!(cuGraphInstantiateWithFlags(&mut second, graph.graph, 0), OK);
    ok(cuGraphExecDestroy(graph.exec));
    let again = made(|e| cuGraphInstantiateWithFlags(e, graph.graph, 0));
    ok(cuGraphLaunch(again, s));
    ok(cuGraphExecDestroy(again));
    ok(cuGraphDestroy(graph.graph));
}

#[test]
fn instantiation_flags_are_checked() {
    let _session = session();
    let s = stream();
    ok(cuStreamBeginCapture_v2(s, THREAD_LOCAL));
    let graph = made(|g| cuStreamEndCapture(s, g));
    let mut exec = 0;
    assert_eq!(cuGraphInstantiateWithFlags(&mut exec, graph, 1 | 4), INVALID_VALUE);
    ok(cuGraphInstantiateWithFlags(&mut exec, graph, 1 | 8));
    ok(cuGraphUpload(exec, s));
    ok(cuGraphLaunch(exec, s));
    ok(cuGraphExecDestroy(exec));
    ok(cuGraphDestroy(graph));
}

#[test]
fn nodes_have_types() {
    let _session = session();
    let (s, m) = (stream(), module());
    let f = function(m, "scale_add");
    let x = upload(&[1f32; 4]);
    let mut inner = 0u64;
    let graph = captured(s, 0, || {
        ok(launch(f, 1, 4, s, vec![x.into(), 1f32.into(), 0f32.into(), 4.into()]));
        ok(cuMemAllocAsync(&mut inner, 16, s));
        ok(cuMemcpyDtoDAsync_v2(inner, x, 16, s));
        ok(cuMemsetD32Async(inner, 0, 2, s));
        ok(cuMemFreeAsync(inner, s));
    });
    let mut nodes = [0usize; 8];
    let mut length = 0;
    ok(cuGraphGetNodes(graph.graph, std::ptr::null_mut(), &mut length));
    assert_eq!(length, 5);
    length = 8;
    ok(cuGraphGetNodes(graph.graph, nodes.as_mut_ptr(), &mut length));
    let mut types: Vec<i32> =
        nodes[..length].iter().map(|&n| made(|k| cuGraphNodeGetType(n, k))).collect();
    types.sort();
    assert_eq!(types, [0, 1, 2, 10, 11]);
    graph.destroy();
}

#[test]
fn a_fork_joined_by_events_belongs_to_the_graph() {
    let _session = session();
    let (s, side, m) = (stream(), stream(), module());
    let f = function(m, "scale_add");
    let x = upload(&[1f32, 1.]);
    let (fork, join) = (made(|e| cuEventCreate(e, 2)), made(|e| cuEventCreate(e, 2)));
    let graph = captured(s, 0, || {
        ok(launch(f, 1, 1, s, vec![x.into(), 2f32.into(), 0f32.into(), 1.into()]));
        ok(cuEventRecord(fork, s));
        ok(cuStreamWaitEvent(side, fork, 0));
        assert_eq!(made(|c| cuStreamIsCapturing(side, c)), 1);
        ok(launch(f, 1, 1, side, vec![x.into(), 1f32.into(), 3f32.into(), 1.into()]));
        ok(cuEventRecord(join, side));
        ok(cuStreamWaitEvent(s, join, 0));
        ok(launch(f, 1, 1, s, vec![x.into(), 10f32.into(), 0f32.into(), 1.into()]));
    });
    assert_eq!(made(|c| cuStreamIsCapturing(side, c)), 0);
    graph.launch(s);
    assert_eq!(download::<f32>(x, 2), [50., 1.]);
    graph.destroy();
}

#[test]
fn a_graph_launched_into_a_capture_is_a_node() {
    let _session = session();
    let (s, m) = (stream(), module());
    let f = function(m, "scale_add");
    let x = upload(&[1f32]);
    let inner = captured(s, 0, || {
        ok(launch(f, 1, 1, s, vec![x.into(), 2f32.into(), 0f32.into(), 1.into()]));
    });
    let outer = captured(s, 0, || {
        ok(cuGraphLaunch(inner.exec, s));
        ok(cuGraphLaunch(inner.exec, s));
    });
    assert_eq!(download::<f32>(x, 1), [1.]);
    outer.launch(s);
    assert_eq!(download::<f32>(x, 1), [4.]);
    outer.destroy();
    inner.destroy();
}

#[test]
fn a_host_function_runs_at_each_launch() {
    unsafe extern "C" fn count_up(arg: *mut libc::c_void) {
        *(arg as *mut u32) += 1;
    }
    let _session = session();
    let s = stream();
    let mut calls = Box::new(0u32);
    let at = &mut *calls as *mut u32;
    let graph = captured(s, 0, || ok(cuLaunchHostFunc(s, count_up, at as *mut _)));
    assert_eq!(unsafe { at.read_volatile() }, 0);
    graph.launch(s);
    graph.launch(s);
    assert_eq!(unsafe { at.read_volatile() }, 2);
    graph.destroy();
}

#[test]
fn accesses_are_checked_when_a_graph_runs() {
    let _session = session();
    if !emulated() {
        return; // A fault ends the context of a real device.
    }
    let (s, m) = (stream(), module());
    let f = function(m, "read_at");
    let (x, out) = (upload(&[1f32; 100]), upload(&[0f32; 32]));
    let good = captured(s, 0, || ok(launch(f, 1, 32, s, vec![x.into(), out.into(), 99i64.into()])));
    let bad = captured(s, 0, || ok(launch(f, 1, 32, s, vec![x.into(), out.into(), 100i64.into()])));
    good.launch(s);
    assert_eq!(cuGraphLaunch(bad.exec, s), ILLEGAL_ADDRESS);
    assert_eq!(cuStreamSynchronize(s), ILLEGAL_ADDRESS, "the error stays");
    reset();
    ok(cuMemFree_v2(x));
    assert_eq!(cuGraphLaunch(good.exec, s), ILLEGAL_ADDRESS, "memory freed after the capture");
    reset();
    good.destroy();
    bad.destroy();
}
