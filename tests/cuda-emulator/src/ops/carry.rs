//! Sums with a carry, and comparisons.
use super::*;

pub(super) fn carry(sub: bool, chained: bool, set: bool, w: u8) -> Option<H> {
    unsafe fn run<const SUB: bool, const CH: bool, const SET: bool, const WIDE: bool>(
        i: &Inst,
        w: &mut Warp,
        m: u32,
    ) {
        let mut cc = w.carry;
        let get = |w: &Warp, o: u32, l: usize| {
            if WIDE {
                w.r::<u64>(o)[l]
            } else {
                w.r::<u32>(o)[l] as u64
            }
        };
        for l in 0..LANES {
            if m >> l & 1 == 0 {
                continue;
            }
            let (a, b) = (get(w, i.o[1], l) as u128, get(w, i.o[2], l) as u128);
            let c = if CH { (cc >> l & 1) as u128 } else { 0 };
            let bits = if WIDE { 64 } else { 32 };
            let (v, out) = if SUB {
                let v = a.wrapping_sub(b).wrapping_sub(c);
                (v, a < b + c)
            } else {
                let v = a + b + c;
                (v, v >> bits & 1 == 1)
            };
            if WIDE {
                w.rm::<u64>(i.o[0])[l] = v as u64;
            } else {
                w.rm::<u32>(i.o[0])[l] = v as u32;
            }
            if SET {
                cc = cc & !(1 << l) | (out as u32) << l;
            }
        }
        w.carry = cc;
    }
    macro_rules! pick {
        ($wide:literal) => {
            match (sub, chained, set) {
                (false, false, _) => run::<false, false, true, $wide>,
                (false, true, false) => run::<false, true, false, $wide>,
                (false, true, true) => run::<false, true, true, $wide>,
                (true, false, _) => run::<true, false, true, $wide>,
                (true, true, false) => run::<true, true, false, $wide>,
                (true, true, true) => run::<true, true, true, $wide>,
            }
        };
    }
    Some(match w {
        4 => pick!(false),
        8 => pick!(true),
        _ => return None,
    })
}

/// Unsigned mad.{lo,hi}.cc and madc, which make up wide products.
pub(super) fn mad_carry(hi: bool, chained: bool, set: bool, w: u8) -> Option<H> {
    unsafe fn run<const HI: bool, const CH: bool, const SET: bool, const WIDE: bool>(
        i: &Inst,
        w: &mut Warp,
        m: u32,
    ) {
        let mut cc = w.carry;
        let get = |w: &Warp, o: u32, l: usize| {
            if WIDE {
                w.r::<u64>(o)[l]
            } else {
                w.r::<u32>(o)[l] as u64
            }
        };
        let bits = if WIDE { 64 } else { 32 };
        for l in 0..LANES {
            if m >> l & 1 == 0 {
                continue;
            }
            let p = get(w, i.o[1], l) as u128 * get(w, i.o[2], l) as u128;
            let part = if HI {
                p >> bits
            } else if WIDE {
                p as u64 as u128
            } else {
                p as u32 as u128
            };
            let v = part + get(w, i.o[3], l) as u128 + if CH { (cc >> l & 1) as u128 } else { 0 };
            if WIDE {
                w.rm::<u64>(i.o[0])[l] = v as u64;
            } else {
                w.rm::<u32>(i.o[0])[l] = v as u32;
            }
            if SET {
                cc = cc & !(1 << l) | ((v >> bits & 1) as u32) << l;
            }
        }
        w.carry = cc;
    }
    macro_rules! pick {
        ($wide:literal) => {
            match (hi, chained, set) {
                (false, false, _) => run::<false, false, true, $wide>,
                (false, true, false) => run::<false, true, false, $wide>,
                (false, true, true) => run::<false, true, true, $wide>,
                (true, false, _) => run::<true, false, true, $wide>,
                (true, true, false) => run::<true, true, false, $wide>,
                (true, true, true) => run::<true, true, true, $wide>,
            }
        };
    }
    Some(match w {
        4 => pick!(false),
        8 => pick!(true),
        _ => return None,
    })
}

/// A comparison that yields a predicate. The unordered forms (`ltu` and so on) hold when
/// an operand is NaN; `lo`, `ls`, `hi`, `hs` are unsigned integer comparisons.
pub fn compare(cmp: &str, ty: &str) -> R<H> {
    macro_rules! int_cmp {
        ($T:ty) => {
            match cmp {
                "eq" => Some(p2(|a: $T, b: $T| a == b)),
                "ne" => Some(p2(|a: $T, b: $T| a != b)),
                "lt" | "lo" => Some(p2(|a: $T, b: $T| a < b)),
                "le" | "ls" => Some(p2(|a: $T, b: $T| a <= b)),
                "gt" | "hi" => Some(p2(|a: $T, b: $T| a > b)),
                "ge" | "hs" => Some(p2(|a: $T, b: $T| a >= b)),
                _ => None,
            }
        };
    }
    macro_rules! float_cmp {
        ($T:ty) => {
            match cmp {
                "eq" => Some(p2(|a: $T, b: $T| a == b)),
                "ne" => Some(p2(|a: $T, b: $T| a < b || a > b)),
                "lt" => Some(p2(|a: $T, b: $T| a < b)),
                "le" => Some(p2(|a: $T, b: $T| a <= b)),
                "gt" => Some(p2(|a: $T, b: $T| a > b)),
                "ge" => Some(p2(|a: $T, b: $T| a >= b)),
                "equ" => Some(p2(|a: $T, b: $T| !(a < b || a > b))),
                "neu" => Some(p2(|a: $T, b: $T| a != b)),
                "ltu" => Some(p2(|a: $T, b: $T| !(a >= b))),
                "leu" => Some(p2(|a: $T, b: $T| !(a > b))),
                "gtu" => Some(p2(|a: $T, b: $T| !(a <= b))),
                "geu" => Some(p2(|a: $T, b: $T| !(a < b))),
                "num" => Some(p2(|a: $T, b: $T| a == a && b == b)),
                "nan" => Some(p2(|a: $T, b: $T| a != a || b != b)),
                _ => None,
            }
        };
    }
    let h = match ty {
        "u16" | "b16" => int_cmp!(u16),
        "s16" => int_cmp!(i16),
        "u32" | "b32" => int_cmp!(u32),
        "s32" => int_cmp!(i32),
        "u64" | "b64" => int_cmp!(u64),
        "s64" => int_cmp!(i64),
        "f32" => float_cmp!(f32),
        "f64" => float_cmp!(f64),
        "f16" => float_cmp!(f16),
        "bf16" => float_cmp!(bf16),
        _ => None,
    };
    h.ok_or_else(|| format!("comparison {cmp}.{ty}"))
}
