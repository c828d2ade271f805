//! The counts and the list of copies that tests assert on.
mod common;
use common::*;

#[test]
fn each_copy_is_listed_with_the_launch_before_it() {
    let _session = session();
    let (s, m) = (stream(), module());
    let f = function(m, "scale_add");
    let x = upload(&[1f32; 8]);
    mark("setup");
    assert_eq!(copies(), "[]", "a mark begins a new list");
    let host = [2f32; 4];
    ok(cuMemcpyHtoDAsync_v2(x, host.as_ptr() as *const _, 16, s));
    ok(launch(f, 1, 8, s, vec![x.into(), 1f32.into(), 1f32.into(), 8.into()]));
    ok(launch(f, 1, 8, s, vec![x.into(), 1f32.into(), 1f32.into(), 8.into()]));
    ok(cuMemcpyHtoD_v2(x + 16, host.as_ptr() as *const _, 8));
    assert_eq!(download::<f32>(x, 8), [4., 4., 4., 4., 2., 2., 3., 3.]);
    let listed = [
        ("h2d", 16, true, 0, ""),
        ("h2d", 8, false, 2, "scale_add"),
        ("d2h", 32, false, 2, "scale_add"),
    ];
    let want: Vec<String> = listed
        .iter()
        .map(|(direction, bytes, asynchronous, before, after)| {
            format!(
                "{{\"direction\":\"{direction}\",\"bytes\":{bytes},\"async\":{asynchronous},\
                 \"pageable\":true,\"launches_before\":{before},\"after\":\"{after}\"}}"
            )
        })
        .collect();
    assert_eq!(copies(), format!("[{}]", want.join(",")));
    reset();
    assert_eq!(copies(), "[]");
}

#[test]
fn counts_are_exact() {
    let _session = session();
    let (s, m) = (stream(), module());
    let f = function(m, "scale_add");
    reset();
    let x = made(|p| cuMemAllocAsync(p, 64, s));
    ok(cuMemsetD32Async(x, 0, 16, s));
    ok(launch(f, 1, 16, s, vec![x.into(), 1f32.into(), 1f32.into(), 16.into()]));
    let mut host = [0f32; 16];
    ok(cuMemcpyDtoHAsync_v2(host.as_mut_ptr() as *mut _, x, 64, s));
    ok(cuStreamSynchronize(s));
    ok(cuMemFreeAsync(x, s));
    assert_eq!(host, [1.; 16]);
    for (path, want) in [
        ("h2d.count", 0),
        ("d2h.count", 1),
        ("d2h.bytes", 64),
        ("d2h.pageable", 1),
        ("memset.count", 1),
        ("launch.count", 1),
        ("launch.by_name.scale_add", 1),
        ("alloc.count", 1),
        ("alloc.free", 1),
        // The copy into ordinary memory waits, and then the program does.
        ("sync.count", 2),
        ("sync.stream", 1),
        ("sync.implicit", 1),
        ("graph.launches", 0),
        ("faults", 0),
    ] {
        assert_eq!(count(path), want, "{path}");
    }
}

#[test]
fn unset_memory_reads_as_nan_each_time() {
    let _session = session();
    for bytes in [64usize, 100_000] {
        for _ in 0..3 {
            let x = made(|p| cuMemAllocAsync(p, bytes, 0));
            assert!(download::<f32>(x, bytes / 4).iter().all(|v| v.is_nan()));
            ok(cuMemsetD32_v2(x, 0, bytes / 4));
            ok(cuMemFreeAsync(x, 0));
        }
    }
}
