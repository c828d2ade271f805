//! Exchanges between ranks: what arrives, and the waits between streams that they need.
#![allow(non_snake_case, clippy::not_unsafe_ptr_arg_deref)]
mod common;
use common::*;
use libc::c_void;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId([u8; 128]);

api! {
    fn ncclGetUniqueId(id: *mut UniqueId);
    fn ncclCommInitRank(comm: *mut usize, ranks: i32, id: UniqueId, rank: i32);
    fn ncclCommFinalize(comm: usize);
    fn ncclCommDestroy(comm: usize);
    fn ncclAllReduce(
        from: u64, to: u64, count: usize, dtype: i32, op: i32, comm: usize, stream: usize,
    );
    fn ncclBroadcast(
        from: u64, to: u64, count: usize, dtype: i32, root: i32, comm: usize, stream: usize,
    );
}

const F32: i32 = 7;
const SUM: i32 = 0;
const INVALID_USAGE: i32 = 5;
const COUNT: usize = 4;

fn unique_id() -> UniqueId {
    let mut id = UniqueId([0; 128]);
    ok(ncclGetUniqueId(&mut id));
    id
}

/// Runs `work` on so many ranks, each with a thread.
fn on_ranks(ranks: i32, work: impl Fn(i32, usize) + Sync) {
    let id = unique_id();
    std::thread::scope(|scope| {
        for rank in 0..ranks {
            let work = &work;
            scope.spawn(move || {
                use_device();
                let comm = made(|comm| ncclCommInitRank(comm, ranks, id, rank));
                work(rank, comm);
                ok(ncclCommFinalize(comm));
                ok(ncclCommDestroy(comm));
            });
        }
    });
}

/// Values that a stream writes.
fn filled(value: f32, stream: usize) -> u64 {
    let p = made(|p| cuMemAllocAsync(p, 4 * COUNT, stream));
    ok(cuMemsetD32Async(p, value.to_bits(), COUNT, stream));
    p
}

fn read(p: u64, stream: usize) -> [f32; COUNT] {
    let mut values = [0f32; COUNT];
    ok(cuMemcpyDtoHAsync_v2(values.as_mut_ptr() as *mut c_void, p, 4 * COUNT, stream));
    ok(cuStreamSynchronize(stream));
    values
}

/// Has one stream wait for another.
fn wait(waiting: usize, other: usize) {
    let event = made(|e| cuEventCreate(e, 2));
    ok(cuEventRecord(event, other));
    ok(cuStreamWaitEvent(waiting, event, 0));
    ok(cuEventDestroy_v2(event));
}

#[test]
fn sums_and_broadcasts_arrive_when_they_are_waited_for() {
    let _session = session();
    on_ranks(3, |rank, comm| {
        let (work, side) = (stream(), stream());
        let own = filled(10.0 + rank as f32, work);
        let (sum, copy) = (filled(0.0, work), filled(0.0, work));
        wait(side, work);
        ok(ncclAllReduce(own, sum, COUNT, F32, SUM, comm, side));
        ok(ncclBroadcast(own, copy, COUNT, F32, 2, comm, side));
        assert!(read(sum, work)[0].is_nan(), "nothing has waited");
        wait(work, side);
        assert_eq!(read(sum, work), [33.0; COUNT]);
        assert_eq!(read(copy, work), [12.0; COUNT]);
    });
}

#[test]
fn a_synchronised_stream_has_arrived() {
    let _session = session();
    on_ranks(2, |rank, comm| {
        let side = stream();
        let own = filled(rank as f32, side);
        let sum = filled(0.0, side);
        ok(ncclAllReduce(own, sum, COUNT, F32, SUM, comm, side));
        assert_eq!(read(sum, side), [1.0; COUNT]);
    });
}

#[test]
fn values_that_may_not_be_ready_are_refused() {
    let _session = session();
    on_ranks(1, |_, comm| {
        let (work, side) = (stream(), stream());
        let (own, sum) = (filled(1.0, work), filled(0.0, work));
        let start = || ncclAllReduce(own, sum, COUNT, F32, SUM, comm, side);
        assert_eq!(start(), INVALID_USAGE);
        wait(side, work);
        ok(start());
        // What was put into the stream since is no part of that wait.
        ok(cuMemsetD32Async(own, 0, COUNT, work));
        assert_eq!(start(), INVALID_USAGE);
        ok(cuStreamSynchronize(work));
        ok(start());
        ok(cuStreamSynchronize(side));
    });
}

#[test]
fn memory_has_to_stay_until_something_waits() {
    if !emulated() {
        return;
    }
    let _session = session();
    on_ranks(1, |_, comm| {
        let (work, side) = (stream(), stream());
        let (own, sum) = (filled(1.0, work), filled(0.0, work));
        wait(side, work);
        ok(ncclAllReduce(own, sum, COUNT, F32, SUM, comm, side));
        ok(cuMemFreeAsync(own, work));
        assert_eq!(cuStreamSynchronize(side), OK);
        assert_eq!(cuStreamSynchronize(side), ILLEGAL_ADDRESS);
        reset();
    });
}

#[test]
fn ranks_that_ask_for_different_things_are_refused() {
    let _session = session();
    let refused = std::sync::atomic::AtomicUsize::new(0);
    let meet = std::sync::Barrier::new(2);
    on_ranks(2, |rank, comm| {
        let s = stream();
        let (own, to) = (filled(1.0, s), filled(0.0, s));
        let code = match rank {
            0 => ncclAllReduce(own, to, COUNT, F32, SUM, comm, s),
            _ => ncclAllReduce(own, to, COUNT - 1, F32, SUM, comm, s),
        };
        refused.fetch_add(usize::from(code == INVALID_USAGE), std::sync::atomic::Ordering::Relaxed);
        meet.wait();
    });
    assert_eq!(refused.into_inner(), 1);
}
