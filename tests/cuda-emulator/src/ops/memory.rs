//! Loads, stores and atomics.
use super::*;

trait Widen<T> {
    fn widen(self) -> T;
}
trait Narrow<T> {
    fn narrow(self) -> T;
}
macro_rules! widen {
    ($($a:ty => $($b:ty),*;)*) => { $($(
        impl Widen<$b> for $a {
            #[inline(always)]
            fn widen(self) -> $b { self as $b }
        }
    )*)* };
}
widen! {
    u8 => u16, u32, u64; i8 => u16, u32, u64;
    u16 => u16, u32, u64; i16 => u16, u32, u64;
    u32 => u32, u64; i32 => u32, u64;
    u64 => u64;
}
macro_rules! narrow {
    ($($a:ty => $($b:ty),*;)*) => { $($(
        impl Narrow<$b> for $a {
            #[inline(always)]
            fn narrow(self) -> $b { self as $b }
        }
    )*)* };
}
narrow! { u16 => u8, u16; u32 => u8, u16, u32; u64 => u8, u16, u32, u64; }

unsafe fn ld<const SP: u8, M: Copy + Widen<T>, T: Copy>(i: &Inst, w: &mut Warp, m: u32) {
    let a = w.addrs(i, 6);
    let n = i.n as usize;
    let Some(p) = w.resolve::<SP>(i, m, &a, (size_of::<M>() * n) as u64) else {
        return;
    };
    for k in 0..n {
        let d = w.rm::<T>(i.o[k]);
        if m == FULL {
            for l in 0..LANES {
                d[l] = (p[l] as *const M).add(k).read_unaligned().widen();
            }
        } else {
            let mut b = m;
            while b != 0 {
                let l = b.trailing_zeros() as usize;
                d[l] = (p[l] as *const M).add(k).read_unaligned().widen();
                b &= b - 1;
            }
        }
    }
}

/// A kernel parameter at a fixed place: the same for all lanes.
unsafe fn ld_param<M: Copy + Widen<T>, T: Copy>(i: &Inst, w: &mut Warp, m: u32) {
    let n = i.n as usize;
    let at = i.imm as usize;
    if at + n * size_of::<M>() > w.launch.params.len() {
        let text = format!(
            "kernel {}: parameter read at {at} of {} bytes",
            w.launch.kernel.name,
            w.launch.params.len()
        );
        return w.fail(700, text);
    }
    for k in 0..n {
        let v = (w.launch.params.as_ptr().add(at) as *const M).add(k).read_unaligned().widen();
        w.put(i.o[k], m, &[v; LANES]);
    }
}

unsafe fn st<const SP: u8, M: Copy, T: Copy + Narrow<M>>(i: &Inst, w: &mut Warp, m: u32) {
    let a = w.addrs(i, 6);
    let n = i.n as usize;
    let Some(p) = w.resolve::<SP>(i, m, &a, (size_of::<M>() * n) as u64) else {
        return;
    };
    for k in 0..n {
        let s = w.r::<T>(i.o[k]);
        if m == FULL {
            for l in 0..LANES {
                (p[l] as *mut M).add(k).write_unaligned(s[l].narrow());
            }
        } else {
            let mut b = m;
            while b != 0 {
                let l = b.trailing_zeros() as usize;
                (p[l] as *mut M).add(k).write_unaligned(s[l].narrow());
                b &= b - 1;
            }
        }
    }
}

macro_rules! by_space {
    ($sp:expr, $f:ident, $m:ty, $t:ty) => {
        match $sp {
            SP_GLOBAL => $f::<SP_GLOBAL, $m, $t>,
            SP_SHARED => $f::<SP_SHARED, $m, $t>,
            SP_LOCAL => $f::<SP_LOCAL, $m, $t>,
            SP_PARAM => $f::<SP_PARAM, $m, $t>,
            _ => $f::<SP_GENERIC, $m, $t>,
        }
    };
}

pub fn load(sp: u8, mw: u8, signed: bool, rw: u8, uniform: bool) -> R<H> {
    macro_rules! go {
        ($m:ty, $t:ty) => {
            if uniform {
                ld_param::<$m, $t> as H
            } else {
                by_space!(sp, ld, $m, $t) as H
            }
        };
    }
    Ok(match (mw, signed, rw) {
        (1, false, 2) => go!(u8, u16),
        (1, false, 4) => go!(u8, u32),
        (1, false, 8) => go!(u8, u64),
        (1, true, 2) => go!(i8, u16),
        (1, true, 4) => go!(i8, u32),
        (1, true, 8) => go!(i8, u64),
        (2, false, 2) | (2, true, 2) => go!(u16, u16),
        (2, false, 4) => go!(u16, u32),
        (2, false, 8) => go!(u16, u64),
        (2, true, 4) => go!(i16, u32),
        (2, true, 8) => go!(i16, u64),
        (4, _, 4) => go!(u32, u32),
        (4, false, 8) => go!(u32, u64),
        (4, true, 8) => go!(i32, u64),
        (8, _, 8) => go!(u64, u64),
        _ => return Err(format!("load of {mw} bytes into a register of {rw}")),
    })
}

pub fn store(sp: u8, mw: u8, rw: u8) -> R<H> {
    Ok(match (mw, rw) {
        (1, 2) => by_space!(sp, st, u8, u16),
        (1, 4) => by_space!(sp, st, u8, u32),
        (1, 8) => by_space!(sp, st, u8, u64),
        (2, 2) => by_space!(sp, st, u16, u16),
        (2, 4) => by_space!(sp, st, u16, u32),
        (2, 8) => by_space!(sp, st, u16, u64),
        (4, 4) => by_space!(sp, st, u32, u32),
        (4, 8) => by_space!(sp, st, u32, u64),
        (8, 8) => by_space!(sp, st, u64, u64),
        _ => return Err(format!("store of {mw} bytes from a register of {rw}")),
    })
}

trait Cell: Copy {
    unsafe fn update(p: *mut u8, f: impl Fn(Self) -> Self) -> Self;
}
macro_rules! cell {
    ($t:ty, $a:ty) => {
        impl Cell for $t {
            #[inline(always)]
            unsafe fn update(p: *mut u8, f: impl Fn(Self) -> Self) -> Self {
                let a = &*(p as *const $a);
                let mut old = a.load(Relaxed);
                loop {
                    match a.compare_exchange_weak(old, f(old), Relaxed, Relaxed) {
                        Ok(_) => return old,
                        Err(now) => old = now,
                    }
                }
            }
        }
    };
}
cell!(u16, AtomicU16);
cell!(u32, AtomicU32);
cell!(u64, AtomicU64);

unsafe fn at<const SP: u8, U: Cell, F: Fn(U, U, U) -> U>(i: &Inst, w: &mut Warp, m: u32) {
    let f = the::<F>();
    let a = w.addrs(i, 6);
    let Some(p) = w.resolve::<SP>(i, m, &a, size_of::<U>() as u64) else {
        return;
    };
    let (x, y) = (*w.r::<U>(i.o[1]), *w.r::<U>(i.o[2]));
    let d = w.rm::<U>(i.o[0]);
    for l in 0..LANES {
        if m >> l & 1 == 1 {
            d[l] = U::update(p[l], |old| f(old, x[l], y[l]));
        }
    }
}

fn atom<U: Cell, F: Fn(U, U, U) -> U>(sp: u8, _: F) -> H {
    match sp {
        SP_GLOBAL => at::<SP_GLOBAL, U, F>,
        SP_SHARED => at::<SP_SHARED, U, F>,
        SP_LOCAL => at::<SP_LOCAL, U, F>,
        _ => at::<SP_GENERIC, U, F>,
    }
}

pub fn atomic(sp: u8, op: &str, ty: &str) -> R<H> {
    let f = f32::from_bits;
    let _ = f;
    Ok(match (op, ty) {
        ("add", "u32" | "s32" | "b32") => atom(sp, |o: u32, a, _| o.wrapping_add(a)),
        ("add", "u64" | "s64" | "b64") => atom(sp, |o: u64, a, _| o.wrapping_add(a)),
        ("add", "f32") => {
            atom(sp, |o: u32, a, _| (f32::from_bits(o) + f32::from_bits(a)).to_bits())
        }
        ("add", "f64") => {
            atom(sp, |o: u64, a, _| (f64::from_bits(o) + f64::from_bits(a)).to_bits())
        }
        ("add", "f16") => atom(sp, |o: u16, a, _| h2(f16::of(o), f16::of(a), |x, y| x + y).bits()),
        ("add", "bf16") => {
            atom(sp, |o: u16, a, _| h2(bf16::of(o), bf16::of(a), |x, y| x + y).bits())
        }
        ("add", "f16x2") => atom(sp, |o: u32, a, _| x2::<f16>(o, a, |a, b| h2(a, b, |x, y| x + y))),
        ("add", "bf16x2") => {
            atom(sp, |o: u32, a, _| x2::<bf16>(o, a, |a, b| h2(a, b, |x, y| x + y)))
        }
        ("min", "u32") => atom(sp, |o: u32, a, _| o.min(a)),
        ("max", "u32") => atom(sp, |o: u32, a, _| o.max(a)),
        ("min", "s32") => atom(sp, |o: u32, a, _| (o as i32).min(a as i32) as u32),
        ("max", "s32") => atom(sp, |o: u32, a, _| (o as i32).max(a as i32) as u32),
        ("min", "u64") => atom(sp, |o: u64, a, _| o.min(a)),
        ("max", "u64") => atom(sp, |o: u64, a, _| o.max(a)),
        ("min", "s64") => atom(sp, |o: u64, a, _| (o as i64).min(a as i64) as u64),
        ("max", "s64") => atom(sp, |o: u64, a, _| (o as i64).max(a as i64) as u64),
        ("inc", _) => atom(sp, |o: u32, a, _| if o >= a { 0 } else { o + 1 }),
        ("dec", _) => atom(sp, |o: u32, a, _| if o == 0 || o > a { a } else { o - 1 }),
        ("and", "b32" | "u32" | "s32") => atom(sp, |o: u32, a, _| o & a),
        ("or", "b32" | "u32" | "s32") => atom(sp, |o: u32, a, _| o | a),
        ("xor", "b32" | "u32" | "s32") => atom(sp, |o: u32, a, _| o ^ a),
        ("and", "b64" | "u64" | "s64") => atom(sp, |o: u64, a, _| o & a),
        ("or", "b64" | "u64" | "s64") => atom(sp, |o: u64, a, _| o | a),
        ("xor", "b64" | "u64" | "s64") => atom(sp, |o: u64, a, _| o ^ a),
        ("exch", "b32" | "u32" | "s32" | "f32") => atom(sp, |_: u32, a, _| a),
        ("exch", "b64" | "u64" | "s64" | "f64") => atom(sp, |_: u64, a, _| a),
        ("cas", "b32" | "u32" | "s32") => atom(sp, |o: u32, a, b| if o == a { b } else { o }),
        ("cas", "b64" | "u64" | "s64") => atom(sp, |o: u64, a, b| if o == a { b } else { o }),
        ("cas", "b16") => atom(sp, |o: u16, a, b| if o == a { b } else { o }),
        _ => return Err(format!("atomic {op}.{ty}")),
    })
}
