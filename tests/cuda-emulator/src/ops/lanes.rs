//! Barriers with a result, shuffles, votes, matches and reductions across lanes.
use super::*;

pub unsafe fn bar_red(i: &Inst, w: &mut Warp, m: u32) {
    let p = w.pred(i.o[1]);
    let b = &mut *w.blk;
    b.bar_count += (p & m).count_ones();
    b.bar_and &= p & m == m;
    b.bar_or |= p & m != 0;
    w.bar_dest.push((i.n, i.o[0], m));
}

pub unsafe fn shfl(i: &Inst, w: &mut Warp, m: u32) {
    let a = *w.r::<u32>(i.o[1]);
    let (b, c) = (*w.r::<u32>(i.o[2]), *w.r::<u32>(i.o[3]));
    let mut out = [0u32; LANES];
    let mut ok = 0u32;
    for l in 0..LANES as u32 {
        let k = l as usize;
        let bv = b[k] & 31;
        let clamp = c[k] & 31;
        let seg = c[k] >> 8 & 31;
        let max = (l & seg) | (clamp & !seg);
        let min = l & seg;
        let (j, p) = match i.n {
            0 => {
                let j = l as i32 - bv as i32;
                (j, j >= max as i32)
            }
            1 => ((l + bv) as i32, l + bv <= max),
            2 => ((l ^ bv) as i32, l ^ bv <= max),
            _ => {
                let j = min | (bv & !seg);
                (j as i32, j <= max)
            }
        };
        let from = if p { j as usize & 31 } else { k };
        ok |= (p as u32) << l;
        out[k] = a[from];
    }
    w.put(i.o[0], m, &out);
    w.set_pred(i.o[4], m, ok);
}

pub unsafe fn vote_ballot(i: &Inst, w: &mut Warp, m: u32) {
    let v = w.pred(i.o[1]) & m;
    w.put(i.o[0], m, &[v; LANES]);
}
pub unsafe fn vote_any(i: &Inst, w: &mut Warp, m: u32) {
    let v = w.pred(i.o[1]) & m != 0;
    w.set_pred(i.o[0], m, if v { FULL } else { 0 });
}
pub unsafe fn vote_all(i: &Inst, w: &mut Warp, m: u32) {
    let v = w.pred(i.o[1]) & m == m;
    w.set_pred(i.o[0], m, if v { FULL } else { 0 });
}
pub unsafe fn vote_uni(i: &Inst, w: &mut Warp, m: u32) {
    let p = w.pred(i.o[1]) & m;
    w.set_pred(i.o[0], m, if p == 0 || p == m { FULL } else { 0 });
}
pub unsafe fn activemask(i: &Inst, w: &mut Warp, m: u32) {
    w.put(i.o[0], m, &[m; LANES]);
}

pub unsafe fn match_sync<T: Copy + PartialEq>(i: &Inst, w: &mut Warp, m: u32) {
    let a = *w.r::<T>(i.o[1]);
    let mut out = [0u32; LANES];
    for l in 0..LANES {
        for k in 0..LANES {
            if m >> k & 1 == 1 && a[k] == a[l] {
                out[l] |= 1 << k;
            }
        }
    }
    if i.n == 1 {
        let all = out[m.trailing_zeros() as usize] == m;
        w.put(i.o[0], m, &[if all { m } else { 0 }; LANES]);
        w.set_pred(i.o[2], m, if all { FULL } else { 0 });
    } else {
        w.put(i.o[0], m, &out);
    }
}

fn fold<T: Copy, F: Fn(T, T) -> T>(_: F) -> H {
    unsafe fn run<T: Copy, F: Fn(T, T) -> T>(i: &Inst, w: &mut Warp, m: u32) {
        let f = the::<F>();
        let a = *w.r::<T>(i.o[1]);
        let first = m.trailing_zeros() as usize;
        let mut v = a[first];
        for l in first + 1..LANES {
            if m >> l & 1 == 1 {
                v = f(v, a[l]);
            }
        }
        w.put(i.o[0], m, &[v; LANES]);
    }
    run::<T, F>
}

pub fn redux(op: &str, ty: &str) -> R<H> {
    Ok(match (op, ty) {
        ("add", _) => fold(|a: u32, b: u32| a.wrapping_add(b)),
        ("min", "s32") => fold(|a: i32, b: i32| a.min(b)),
        ("max", "s32") => fold(|a: i32, b: i32| a.max(b)),
        ("min", _) => fold(|a: u32, b: u32| a.min(b)),
        ("max", _) => fold(|a: u32, b: u32| a.max(b)),
        ("and", _) => fold(|a: u32, b: u32| a & b),
        ("or", _) => fold(|a: u32, b: u32| a | b),
        ("xor", _) => fold(|a: u32, b: u32| a ^ b),
        _ => return Err(format!("redux.{op}")),
    })
}
