//! NCCL among threads of one process: sums and broadcasts of f32, on whatever device each rank has.
//!
//! As on GPUs, an exchange runs beside the work of other streams: what arrives is unset (NaN) until
//! something waits for it, and memory must stay until then. A rank's stream has to have waited for
//! everything that the rank's thread put into other streams before; NCCL asks that of the memory
//! that it is given only. Work is done when it is waited for, which blocks the host until all ranks
//! have come so far.
mod meeting;

use crate::counters;
use crate::driver::{capture, order};
use crate::mem;
use libc::c_int;
use meeting::{Meeting, Round};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

const OK: c_int = 0;
const INVALID_ARGUMENT: c_int = 4;
const INVALID_USAGE: c_int = 5;

const FLOAT32: c_int = 7;
const SUM: c_int = 0;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId([u8; 128]);

pub struct Comm {
    meeting: Arc<Meeting>,
    rank: usize,
    /// Exchanges so far.
    rounds: AtomicU64,
}

/// Says why a call is refused.
fn refuse(call: &str, code: c_int, why: &str) -> c_int {
    eprintln!("cudaemu: {call}: {why} (error {code})");
    counters::with(|c| c.faults += 1);
    code
}

#[no_mangle]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> c_int {
    call!("ncclGetUniqueId");
    static LAST: AtomicU64 = AtomicU64::new(0);
    let mut bytes = [0; 128];
    bytes[..8].copy_from_slice(&(LAST.fetch_add(1, Relaxed) + 1).to_le_bytes());
    *id = UniqueId(bytes);
    OK
}
/// Returns when all ranks have called it.
#[no_mangle]
pub unsafe extern "C" fn ncclCommInitRank(
    comm: *mut *mut Comm,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
) -> c_int {
    call!("ncclCommInitRank");
    if comm.is_null() || rank < 0 || rank >= ranks {
        return refuse("ncclCommInitRank", INVALID_ARGUMENT, "no such rank");
    }
    let meeting = Meeting::join(id.0, ranks as usize);
    *comm =
        Box::into_raw(Box::new(Comm { meeting, rank: rank as usize, rounds: AtomicU64::new(0) }));
    OK
}
#[no_mangle]
pub unsafe extern "C" fn ncclCommFinalize(comm: *mut Comm) -> c_int {
    call!("ncclCommFinalize");
    if comm.is_null() {
        return INVALID_ARGUMENT;
    }
    OK
}
#[no_mangle]
pub unsafe extern "C" fn ncclCommDestroy(comm: *mut Comm) -> c_int {
    call!("ncclCommDestroy");
    if comm.is_null() {
        return INVALID_ARGUMENT;
    }
    drop(Box::from_raw(comm));
    OK
}

/// What a rank asks for.
struct Exchange {
    call: &'static str,
    from: u64,
    to: u64,
    count: usize,
    stream: usize,
    round: Round,
}

#[no_mangle]
pub unsafe extern "C" fn ncclAllReduce(
    from: u64,
    to: u64,
    count: usize,
    dtype: c_int,
    op: c_int,
    comm: *mut Comm,
    stream: usize,
) -> c_int {
    call!("ncclAllReduce");
    if dtype != FLOAT32 || op != SUM {
        return refuse("ncclAllReduce", INVALID_ARGUMENT, "only sums of f32 are emulated");
    }
    start(comm, Exchange { call: "ncclAllReduce", from, to, count, stream, round: Round::Sum })
}
#[no_mangle]
pub unsafe extern "C" fn ncclBroadcast(
    from: u64,
    to: u64,
    count: usize,
    dtype: c_int,
    root: c_int,
    comm: *mut Comm,
    stream: usize,
) -> c_int {
    call!("ncclBroadcast");
    if dtype != FLOAT32 {
        return refuse("ncclBroadcast", INVALID_ARGUMENT, "only f32 is emulated");
    }
    let round = Round::From(root as usize);
    start(comm, Exchange { call: "ncclBroadcast", from, to, count, stream, round })
}

unsafe fn start(comm: *mut Comm, exchange: Exchange) -> c_int {
    let Exchange { call, from, to, count, stream, round } = exchange;
    if comm.is_null() {
        return INVALID_ARGUMENT;
    }
    if !matches!(capture::capturing(stream), Ok(None)) {
        return refuse(call, INVALID_USAGE, "exchanges in a capture are not emulated");
    }
    for address in [from, to] {
        if let Err(problem) = mem::lookup(address, 4 * count as u64) {
            return refuse(call, INVALID_ARGUMENT, &problem);
        }
    }
    if let Some(other) = order::unordered(stream) {
        let why = format!("its stream {stream:#x} has not waited for stream {other:#x}");
        return refuse(call, INVALID_USAGE, &why);
    }
    let comm = &*comm;
    let number = comm.rounds.fetch_add(1, Relaxed);
    let given = std::slice::from_raw_parts(mem::host(from) as *const f32, count).to_vec();
    if let Err(problem) = comm.meeting.bring(number, comm.rank, round, given) {
        return refuse(call, INVALID_USAGE, &problem);
    }
    if to != from {
        std::ptr::write_bytes(mem::host(to), 0xff, 4 * count);
    }
    crate::trace(|| format!("{call} {count} values in stream {stream:#x}"));
    let meeting = comm.meeting.clone();
    order::hold(stream, move || {
        let arrived = meeting.take(number);
        for address in [from, to] {
            if let Err(problem) = mem::lookup(address, 4 * count as u64) {
                let why = format!("memory was given back before anything waited for it: {problem}");
                refuse(call, INVALID_USAGE, &why);
                crate::driver::set_error(crate::driver::ILLEGAL_ADDRESS);
                return;
            }
        }
        std::ptr::copy_nonoverlapping(arrived.as_ptr(), mem::host(to) as *mut f32, count);
    });
    OK
}
