//! Handlers: what one PTX instruction does to the lanes of a warp.
use crate::exec::*;
use crate::mem;
use half::{bf16, f16};
use numbers::*;
use std::mem::size_of;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

mod arith;
mod bits;
mod calls;
mod carry;
mod convert;
mod lanes;
mod memory;
mod numbers;
mod special;

pub use arith::arith;
pub use calls::{assertfail, vprintf};
pub use carry::compare;
pub use convert::{convert, convert_bits, convert_pair};
pub use lanes::*;
pub use memory::{atomic, load, store};

type R<T> = Result<T, String>;

/// Handlers are made from closures that capture nothing, so one can be had from its type.
#[inline(always)]
fn the<F>() -> F {
    const { assert!(size_of::<F>() == 0) };
    // SAFETY: a value of no size is read from nowhere.
    unsafe { std::ptr::NonNull::<F>::dangling().as_ptr().read() }
}

pub fn m1<A: Copy, D: Copy, F: Fn(A) -> D>(_: F) -> H {
    unsafe fn run<A: Copy, D: Copy, F: Fn(A) -> D>(i: &Inst, w: &mut Warp, m: u32) {
        let f = the::<F>();
        let a = w.r::<A>(i.o[1]);
        let t: [D; LANES] = std::array::from_fn(|l| f(a[l]));
        w.put(i.o[0], m, &t);
    }
    run::<A, D, F>
}

pub fn m2<A: Copy, B: Copy, D: Copy, F: Fn(A, B) -> D>(_: F) -> H {
    unsafe fn run<A: Copy, B: Copy, D: Copy, F: Fn(A, B) -> D>(i: &Inst, w: &mut Warp, m: u32) {
        let f = the::<F>();
        let (a, b) = (w.r::<A>(i.o[1]), w.r::<B>(i.o[2]));
        let t: [D; LANES] = std::array::from_fn(|l| f(a[l], b[l]));
        w.put(i.o[0], m, &t);
    }
    run::<A, B, D, F>
}

pub fn m3<A: Copy, B: Copy, C: Copy, D: Copy, F: Fn(A, B, C) -> D>(_: F) -> H {
    unsafe fn run<A: Copy, B: Copy, C: Copy, D: Copy, F: Fn(A, B, C) -> D>(
        i: &Inst,
        w: &mut Warp,
        m: u32,
    ) {
        let f = the::<F>();
        let (a, b, c) = (w.r::<A>(i.o[1]), w.r::<B>(i.o[2]), w.r::<C>(i.o[3]));
        let t: [D; LANES] = std::array::from_fn(|l| f(a[l], b[l], c[l]));
        w.put(i.o[0], m, &t);
    }
    run::<A, B, C, D, F>
}

fn m4<A: Copy, B: Copy, C: Copy, E: Copy, D: Copy, F: Fn(A, B, C, E) -> D>(_: F) -> H {
    unsafe fn run<A: Copy, B: Copy, C: Copy, E: Copy, D: Copy, F: Fn(A, B, C, E) -> D>(
        i: &Inst,
        w: &mut Warp,
        m: u32,
    ) {
        let f = the::<F>();
        let (a, b, c, e) = (w.r::<A>(i.o[1]), w.r::<B>(i.o[2]), w.r::<C>(i.o[3]), w.r::<E>(i.o[4]));
        let t: [D; LANES] = std::array::from_fn(|l| f(a[l], b[l], c[l], e[l]));
        w.put(i.o[0], m, &t);
    }
    run::<A, B, C, E, D, F>
}

fn p1<A: Copy, F: Fn(A) -> bool>(_: F) -> H {
    unsafe fn run<A: Copy, F: Fn(A) -> bool>(i: &Inst, w: &mut Warp, m: u32) {
        let f = the::<F>();
        let a = w.r::<A>(i.o[1]);
        let mut t = 0;
        for l in 0..LANES {
            t |= (f(a[l]) as u32) << l;
        }
        w.set_pred(i.o[0], m, t);
    }
    run::<A, F>
}

fn p2<A: Copy, F: Fn(A, A) -> bool>(_: F) -> H {
    unsafe fn run<A: Copy, F: Fn(A, A) -> bool>(i: &Inst, w: &mut Warp, m: u32) {
        let f = the::<F>();
        let (a, b) = (w.r::<A>(i.o[1]), w.r::<A>(i.o[2]));
        let mut t = 0;
        for l in 0..LANES {
            t |= (f(a[l], b[l]) as u32) << l;
        }
        w.set_pred(i.o[0], m, t);
    }
    run::<A, F>
}

pub fn p3<A: Copy, F: Fn(A, A, A) -> bool>(_: F) -> H {
    unsafe fn run<A: Copy, F: Fn(A, A, A) -> bool>(i: &Inst, w: &mut Warp, m: u32) {
        let f = the::<F>();
        let (a, b, c) = (w.r::<A>(i.o[1]), w.r::<A>(i.o[2]), w.r::<A>(i.o[3]));
        let mut t = 0;
        for l in 0..LANES {
            t |= (f(a[l], b[l], c[l]) as u32) << l;
        }
        w.set_pred(i.o[0], m, t);
    }
    run::<A, F>
}

/// Predicate logic works on whole lane masks.
fn q2<F: Fn(u32, u32) -> u32>(_: F) -> H {
    unsafe fn run<F: Fn(u32, u32) -> u32>(i: &Inst, w: &mut Warp, m: u32) {
        let f = the::<F>();
        let v = f(w.pred(i.o[1]), w.pred(i.o[2]));
        w.set_pred(i.o[0], m, v);
    }
    run::<F>
}

pub unsafe fn nop(_: &Inst, _: &mut Warp, _: u32) {}

pub unsafe fn trap(_: &Inst, w: &mut Warp, _: u32) {
    let text = format!("kernel {}: trap", w.launch.kernel.name);
    w.fail(719, text);
}

pub unsafe fn mov_pred(i: &Inst, w: &mut Warp, m: u32) {
    let v = w.pred(i.o[1]);
    w.set_pred(i.o[0], m, v);
}

pub unsafe fn not_pred(i: &Inst, w: &mut Warp, m: u32) {
    let v = !w.pred(i.o[1]);
    w.set_pred(i.o[0], m, v);
}

/// p = t (op) c, q = !t (op) c
pub unsafe fn pred_combine(i: &Inst, w: &mut Warp, m: u32) {
    let (t, c) = (w.pred(i.o[1]), w.pred(i.o[2]));
    let f = |t: u32| match i.n {
        1 => t & c,
        2 => t | c,
        _ => t ^ c,
    };
    w.set_pred(i.o[0], m, f(t));
    w.set_pred(i.o[3], m, f(!t));
}

pub fn mov(w: u8) -> H {
    match w {
        1 => mov_pred,
        2 => m1(|a: u16| a),
        4 => m1(|a: u32| a),
        _ => m1(|a: u64| a),
    }
}

pub fn selp(w: u8) -> H {
    unsafe fn run<T: Copy>(i: &Inst, w: &mut Warp, m: u32) {
        let (a, b, p) = (w.r::<T>(i.o[1]), w.r::<T>(i.o[2]), w.pred(i.o[3]));
        let t: [T; LANES] = std::array::from_fn(|l| if p >> l & 1 == 1 { a[l] } else { b[l] });
        w.put(i.o[0], m, &t);
    }
    unsafe fn pred(i: &Inst, w: &mut Warp, m: u32) {
        let (a, b, p) = (w.pred(i.o[1]), w.pred(i.o[2]), w.pred(i.o[3]));
        w.set_pred(i.o[0], m, (a & p) | (b & !p));
    }
    match w {
        1 => pred,
        2 => run::<u16>,
        4 => run::<u32>,
        _ => run::<u64>,
    }
}

pub fn pack(n: usize, w: u8) -> R<H> {
    Ok(match (n, w) {
        (2, 2) => |i, wp, m| unsafe {
            let (a, b) = (wp.r::<u16>(i.o[2]), wp.r::<u16>(i.o[3]));
            let t: [u32; LANES] = std::array::from_fn(|l| a[l] as u32 | (b[l] as u32) << 16);
            wp.put(i.o[0], m, &t)
        },
        (2, 4) => |i, wp, m| unsafe {
            let (a, b) = (wp.r::<u32>(i.o[2]), wp.r::<u32>(i.o[3]));
            let t: [u64; LANES] = std::array::from_fn(|l| a[l] as u64 | (b[l] as u64) << 32);
            wp.put(i.o[0], m, &t)
        },
        (4, 2) => |i, wp, m| unsafe {
            let (a, b) = (wp.r::<u16>(i.o[2]), wp.r::<u16>(i.o[3]));
            let (c, d) = (wp.r::<u16>(i.o[4]), wp.r::<u16>(i.o[5]));
            let t: [u64; LANES] = std::array::from_fn(|l| {
                a[l] as u64 | (b[l] as u64) << 16 | (c[l] as u64) << 32 | (d[l] as u64) << 48
            });
            wp.put(i.o[0], m, &t)
        },
        _ => return Err(format!("packing {n} registers of {w} bytes")),
    })
}

pub fn unpack(n: usize, w: u8) -> R<H> {
    Ok(match (n, w) {
        (2, 2) => |i, wp, m| unsafe {
            let s = *wp.r::<u32>(i.o[1]);
            wp.put(i.o[2], m, &s.map(|v| v as u16));
            wp.put(i.o[3], m, &s.map(|v| (v >> 16) as u16));
        },
        (2, 4) => |i, wp, m| unsafe {
            let s = *wp.r::<u64>(i.o[1]);
            wp.put(i.o[2], m, &s.map(|v| v as u32));
            wp.put(i.o[3], m, &s.map(|v| (v >> 32) as u32));
        },
        (4, 2) => |i, wp, m| unsafe {
            let s = *wp.r::<u64>(i.o[1]);
            for k in 0..4 {
                wp.put(i.o[2 + k], m, &s.map(|v| (v >> (16 * k)) as u16));
            }
        },
        _ => return Err(format!("unpacking into {n} registers of {w} bytes")),
    })
}

pub struct Arith {
    pub h: H,
    /// Width of the destination in bytes.
    pub dw: u8,
    /// Types of the sources where they differ from the opcode's own.
    pub src: Vec<&'static str>,
    pub then: Option<H>,
}
