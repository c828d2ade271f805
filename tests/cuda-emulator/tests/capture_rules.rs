//! What a stream capture forbids, and with which error.
mod common;
use common::*;

fn begin(s: usize, mode: i32) {
    ok(cuStreamBeginCapture_v2(s, mode));
}

/// Ends a capture that something has spoilt.
#[track_caller]
fn ends_with(s: usize, code: i32) {
    let mut graph = 1usize;
    assert_eq!(cuStreamEndCapture(s, &mut graph), code);
    assert_eq!(graph, 0, "no graph");
    assert_eq!(status(s), 0, "the stream is free again");
}

#[track_caller]
fn ends_well(s: usize) {
    ok(cuGraphDestroy(made(|g| cuStreamEndCapture(s, g))));
}

#[track_caller]
fn status(s: usize) -> i32 {
    made(|c| cuStreamIsCapturing(s, c))
}

#[test]
fn the_status_follows_the_capture() {
    let _session = session();
    let s = stream();
    let info = || {
        use std::ptr::null_mut as no;
        let (mut state, mut id) = (0, 0u64);
        ok(cuStreamGetCaptureInfo_v3(s, &mut state, &mut id, no(), no(), no(), no()));
        (state, id)
    };
    assert_eq!(status(s), 0);
    begin(s, GLOBAL);
    let (state, first) = info();
    assert_eq!(state, 1);
    assert_eq!(cuStreamBeginCapture_v2(s, GLOBAL), ILLEGAL_STATE, "a second capture");
    assert_eq!(cuStreamSynchronize(s), UNSUPPORTED);
    assert_eq!(info().0, 2);
    ends_with(s, INVALIDATED);
    begin(s, GLOBAL);
    let (state, second) = info();
    assert!(state == 1 && second != first, "each capture has a number of its own");
    ends_well(s);
    let mut graph = 1usize;
    assert_eq!(cuStreamEndCapture(s, &mut graph), ILLEGAL_STATE);
}

#[test]
fn the_legacy_stream_cannot_be_captured() {
    let _session = session();
    assert_eq!(cuStreamBeginCapture_v2(0, RELAXED), UNSUPPORTED);
    assert_eq!(cuStreamBeginCapture_v2(1, RELAXED), UNSUPPORTED);
}

#[test]
fn waiting_for_a_capturing_stream_spoils_it_in_every_mode() {
    let _session = session();
    let s = stream();
    for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
        for wait in [cuStreamSynchronize, cuStreamQuery] {
            begin(s, mode);
            assert_eq!(wait(s), UNSUPPORTED);
            assert_eq!(wait(s), INVALIDATED, "further use");
            ends_with(s, INVALIDATED);
        }
        begin(s, mode);
        assert_eq!(cuCtxSynchronize(), UNSUPPORTED);
        ends_with(s, INVALIDATED);
    }
}

#[test]
fn calls_that_no_stream_orders_are_refused_unless_relaxed() {
    let _session = session();
    let s = stream();
    let x = upload(&[0f32; 4]);
    let event = made(|e| cuEventCreate(e, 0));
    let text = std::ffi::CString::new(PTX).unwrap();
    type Call<'a> = (&'a str, Box<dyn Fn() -> i32 + 'a>);
    let calls: Vec<Call> = vec![
        ("alloc", Box::new(|| cuMemAlloc_v2(&mut 0, 64))),
        ("host alloc", Box::new(|| cuMemHostAlloc(&mut std::ptr::null_mut(), 64, 0))),
        ("upload", Box::new(|| cuMemcpyHtoD_v2(x, [1f32; 4].as_ptr() as *const _, 16))),
        ("download", Box::new(|| cuMemcpyDtoH_v2([0f32; 4].as_mut_ptr() as *mut _, x, 16))),
        ("fill", Box::new(|| cuMemsetD32_v2(x, 0, 4))),
        ("event query", Box::new(|| cuEventQuery(event))),
        ("event wait", Box::new(|| cuEventSynchronize(event))),
        ("load a module", Box::new(|| cuModuleLoadData(&mut 0, text.as_ptr()))),
    ];
    for (name, call) in &calls {
        for mode in [GLOBAL, THREAD_LOCAL] {
            begin(s, mode);
            assert_eq!(call(), UNSUPPORTED, "{name}");
            ends_with(s, INVALIDATED);
        }
        begin(s, RELAXED);
        assert_eq!(call(), OK, "{name}");
        ends_well(s);
    }
    // A thread may take the risk for itself.
    let mut mode = RELAXED;
    ok(cuThreadExchangeStreamCaptureMode(&mut mode));
    assert_eq!(mode, GLOBAL);
    begin(s, GLOBAL);
    ok(cuMemAlloc_v2(&mut 0, 64));
    ends_well(s);
    ok(cuThreadExchangeStreamCaptureMode(&mut mode));
    assert_eq!(mode, RELAXED);
}

#[test]
fn other_threads_are_held_to_a_global_capture_only() {
    let _session = session();
    let s = stream();
    let elsewhere = || {
        std::thread::spawn(|| {
            use_device();
            cuMemAlloc_v2(&mut 0, 64)
        })
        .join()
        .unwrap()
    };
    begin(s, GLOBAL);
    assert_eq!(elsewhere(), UNSUPPORTED);
    ends_with(s, INVALIDATED);
    for mode in [THREAD_LOCAL, RELAXED] {
        begin(s, mode);
        assert_eq!(elsewhere(), OK);
        ends_well(s);
    }
}

#[test]
fn the_thread_that_began_ends_it() {
    let _session = session();
    let s = stream();
    let elsewhere = move || {
        std::thread::spawn(move || {
            use_device();
            let mut graph = 0usize;
            (cuStreamEndCapture(s, &mut graph), graph)
        })
        .join()
        .unwrap()
    };
    begin(s, THREAD_LOCAL);
    assert_eq!(elsewhere().0, WRONG_THREAD);
    let mut graph = 0usize;
    cuStreamEndCapture(s, &mut graph);
    begin(s, RELAXED);
    let (code, graph) = elsewhere();
    ok(code);
    ok(cuGraphDestroy(graph));
}

#[test]
fn the_legacy_stream_and_a_blocking_capture_exclude_each_other() {
    let _session = session();
    let blocking = made(|s| cuStreamCreate(s, 0));
    let x = upload(&[0f32; 4]);
    begin(blocking, RELAXED);
    assert_eq!(cuStreamIsCapturing(0, &mut 0), IMPLICIT, "asking does no harm");
    assert_eq!(status(blocking), 1);
    assert_eq!(cuMemsetD32Async(x, 0, 4, 0), IMPLICIT);
    ends_with(blocking, INVALIDATED);
    begin(blocking, RELAXED);
    assert_eq!(cuMemcpyHtoD_v2(x, [1f32; 4].as_ptr() as *const _, 16), IMPLICIT);
    ends_with(blocking, INVALIDATED);
    // A stream made non-blocking has nothing to do with the legacy stream.
    let s = stream();
    begin(s, RELAXED);
    ok(cuMemsetD32Async(x, 0, 4, 0));
    ok(cuStreamSynchronize(0));
    ends_well(s);
}

#[test]
fn events_do_not_cross_the_border_of_a_capture() {
    let _session = session();
    let (s, other) = (stream(), stream());
    let event = made(|e| cuEventCreate(e, 0));
    ok(cuEventRecord(event, other));
    begin(s, THREAD_LOCAL);
    assert_eq!(cuStreamWaitEvent(s, event, 0), ISOLATION);
    ends_with(s, INVALIDATED);

    begin(s, RELAXED);
    ok(cuEventRecord(event, s));
    assert_eq!(cuEventQuery(event), CAPTURED_EVENT);
    ends_with(s, INVALIDATED);
    begin(s, RELAXED);
    ok(cuEventRecord(event, s));
    assert_eq!(cuEventSynchronize(event), CAPTURED_EVENT);
    ends_with(s, INVALIDATED);
    ok(cuEventRecord(event, s));
    ok(cuEventSynchronize(event));
}

#[test]
fn forks_have_to_be_joined_and_captures_not_merged() {
    let _session = session();
    let (s, side) = (stream(), stream());
    let event = made(|e| cuEventCreate(e, 0));
    let x = upload(&[0f32; 4]);
    begin(s, THREAD_LOCAL);
    ok(cuEventRecord(event, s));
    ok(cuStreamWaitEvent(side, event, 0));
    ok(cuMemsetD32Async(x, 0, 4, side));
    ends_with(s, UNJOINED);
    assert_eq!(status(side), 0);

    begin(s, THREAD_LOCAL);
    begin(side, THREAD_LOCAL);
    ok(cuEventRecord(event, s));
    assert_eq!(cuStreamWaitEvent(side, event, 0), MERGE);
    ends_with(s, INVALIDATED);
    ends_with(side, INVALIDATED);

    begin(s, THREAD_LOCAL);
    ok(cuEventRecord(event, s));
    ok(cuStreamWaitEvent(side, event, 0));
    let mut graph = 1usize;
    assert_eq!(cuStreamEndCapture(side, &mut graph), UNMATCHED);
    ends_with(s, INVALIDATED);
}

#[test]
fn only_memory_of_graphs_is_freed_in_a_capture_and_once() {
    let _session = session();
    let s = stream();
    let outside = made(|p| cuMemAllocAsync(p, 64, s));
    begin(s, THREAD_LOCAL);
    assert_eq!(cuMemFreeAsync(outside, s), INVALID_VALUE);
    cuStreamEndCapture(s, &mut 0);
    begin(s, THREAD_LOCAL);
    let inner = made(|p| cuMemAllocAsync(p, 64, s));
    ok(cuMemFreeAsync(inner, s));
    assert_eq!(cuMemFreeAsync(inner, s), INVALID_VALUE);
    cuStreamEndCapture(s, &mut 0);
    ok(cuMemFreeAsync(outside, s));
}

#[test]
fn a_launch_that_is_refused_spoils_the_capture() {
    let _session = session();
    let (s, m) = (stream(), module());
    let f = function(m, "scale_add");
    let x = upload(&[0f32; 4]);
    begin(s, THREAD_LOCAL);
    let code = launch(f, 1, 2048, s, vec![x.into(), 1f32.into(), 0f32.into(), 4.into()]);
    assert_eq!(code, INVALID_VALUE);
    ends_with(s, INVALIDATED);
}
