//! Signs, bits and bytes.
use super::arith::Form;
use super::*;

fn prmt(a: u32, b: u32, c: u32, mode: u8) -> u32 {
    let bytes = (a as u64 | (b as u64) << 32).to_le_bytes();
    let sel: [u32; 4] = match mode {
        0 => std::array::from_fn(|k| c >> (4 * k) & 15),
        1 => std::array::from_fn(|k| (c & 3) + k as u32), // f4e
        2 => std::array::from_fn(|k| (c & 3).wrapping_sub(k as u32) & 7), // b4e
        3 => std::array::from_fn(|_| c & 3),              // rc8
        4 => std::array::from_fn(|k| (c & 3).max(k as u32)), // ecl
        5 => std::array::from_fn(|k| (c & 3).min(k as u32)), // ecr
        _ => std::array::from_fn(|k| (c & 1) * 2 + (k as u32 & 1)), // rc16
    };
    let mut out = 0;
    for (k, s) in sel.iter().enumerate() {
        let mut v = bytes[(s & 7) as usize];
        if s & 8 != 0 {
            v = ((v as i8) >> 7) as u8;
        }
        out |= (v as u32) << (8 * k);
    }
    out
}

#[inline(always)]
fn lop3(a: u32, b: u32, c: u32, t: u32) -> u32 {
    let mut r = 0;
    let pick = |x: u32, on: bool| if on { x } else { !x };
    for k in 0..8 {
        if t >> k & 1 == 1 {
            r |= pick(a, k & 4 != 0) & pick(b, k & 2 != 0) & pick(c, k & 1 != 0);
        }
    }
    r
}

/// Opcodes that look at signs, bits and bytes.
pub(super) fn bits(f: &Form) -> Option<Arith> {
    let &Form { op, mods, ty, w, then, .. } = f;
    let mut dw = f.w;
    let mut src: Vec<&'static str> = vec![];
    let has = |m: &str| f.has(m);
    let h: H = match op {
        "abs" => match ty {
            "f32" => m1(|a: f32| a.abs()),
            "f64" => m1(|a: f64| a.abs()),
            "f16" | "bf16" => m1(|a: u16| a & 0x7fff),
            "f16x2" | "bf16x2" => m1(|a: u32| a & 0x7fff_7fff),
            "s16" => m1(|a: i16| a.wrapping_abs()),
            "s32" => m1(|a: i32| a.wrapping_abs()),
            "s64" => m1(|a: i64| a.wrapping_abs()),
            _ => return None,
        },
        "neg" => match ty {
            "f32" => m1(|a: f32| -a),
            "f64" => m1(|a: f64| -a),
            "f16" | "bf16" => m1(|a: u16| a ^ 0x8000),
            "f16x2" | "bf16x2" => m1(|a: u32| a ^ 0x8000_8000),
            "s16" => m1(|a: i16| a.wrapping_neg()),
            "s32" => m1(|a: i32| a.wrapping_neg()),
            "s64" => m1(|a: i64| a.wrapping_neg()),
            _ => return None,
        },
        "not" if ty == "pred" => not_pred,
        "and" if ty == "pred" => q2(|a, b| a & b),
        "or" if ty == "pred" => q2(|a, b| a | b),
        "xor" if ty == "pred" => q2(|a, b| a ^ b),
        "not" => ints!(ty, T => m1(|a: T| !a))?,
        "and" => ints!(ty, T => m2(|a: T, b: T| a & b))?,
        "or" => ints!(ty, T => m2(|a: T, b: T| a | b))?,
        "xor" => ints!(ty, T => m2(|a: T, b: T| a ^ b))?,
        "cnot" => ints!(ty, T => m1(|a: T| (a == 0) as T))?,
        "shl" => {
            src = vec![same(ty)?, "u32"];
            match w {
                2 => m2(|a: u16, b: u32| if b > 15 { 0 } else { a << b }),
                4 => m2(|a: u32, b: u32| if b > 31 { 0 } else { a << b }),
                _ => m2(|a: u64, b: u32| if b > 63 { 0 } else { a << b }),
            }
        }
        "shr" => {
            src = vec![same(ty)?, "u32"];
            match ty {
                "s16" => m2(|a: i16, b: u32| a >> b.min(15)),
                "s32" => m2(|a: i32, b: u32| a >> b.min(31)),
                "s64" => m2(|a: i64, b: u32| a >> b.min(63)),
                "u16" | "b16" => m2(|a: u16, b: u32| if b > 15 { 0 } else { a >> b }),
                "u32" | "b32" => m2(|a: u32, b: u32| if b > 31 { 0 } else { a >> b }),
                "u64" | "b64" => m2(|a: u64, b: u32| if b > 63 { 0 } else { a >> b }),
                _ => return None,
            }
        }
        "shf" => {
            // Funnel shift: the 64-bit value b:a.
            match (has("l"), has("wrap")) {
                (true, true) => m3(|a: u32, b: u32, c: u32| {
                    ((a as u64 | (b as u64) << 32) << (c & 31) >> 32) as u32
                }),
                (true, false) => m3(|a: u32, b: u32, c: u32| {
                    ((a as u64 | (b as u64) << 32) << c.min(32) >> 32) as u32
                }),
                (false, true) => {
                    m3(|a: u32, b: u32, c: u32| ((a as u64 | (b as u64) << 32) >> (c & 31)) as u32)
                }
                (false, false) => {
                    m3(|a: u32, b: u32, c: u32| ((a as u64 | (b as u64) << 32) >> c.min(32)) as u32)
                }
            }
        }
        "popc" => {
            dw = 4;
            if w == 8 {
                m1(|a: u64| a.count_ones())
            } else {
                m1(|a: u32| a.count_ones())
            }
        }
        "clz" => {
            dw = 4;
            if w == 8 {
                m1(|a: u64| a.leading_zeros())
            } else {
                m1(|a: u32| a.leading_zeros())
            }
        }
        "brev" => {
            if w == 8 {
                m1(|a: u64| a.reverse_bits())
            } else {
                m1(|a: u32| a.reverse_bits())
            }
        }
        "bfind" => {
            dw = 4;
            if has("shiftamt") {
                match ty {
                    "u32" => m1(|a: u32| if a == 0 { !0 } else { a.leading_zeros() }),
                    "u64" => m1(|a: u64| if a == 0 { !0 } else { a.leading_zeros() }),
                    _ => return None,
                }
            } else {
                match ty {
                    "u32" => m1(|a: u32| if a == 0 { !0u32 } else { 31 - a.leading_zeros() }),
                    "u64" => m1(|a: u64| if a == 0 { !0u32 } else { 63 - a.leading_zeros() }),
                    "s32" => m1(|a: i32| {
                        let v = (if a < 0 { !a } else { a }) as u32;
                        if v == 0 {
                            !0u32
                        } else {
                            31 - v.leading_zeros()
                        }
                    }),
                    "s64" => m1(|a: i64| {
                        let v = (if a < 0 { !a } else { a }) as u64;
                        if v == 0 {
                            !0u32
                        } else {
                            63 - v.leading_zeros()
                        }
                    }),
                    _ => return None,
                }
            }
        }
        "bfe" => {
            src = vec![same(ty)?, "u32", "u32"];
            match ty {
                "u32" => m3(|a: u32, p: u32, n: u32| {
                    let (p, n) = (p & 255, n & 255);
                    if n == 0 || p > 31 {
                        0
                    } else {
                        let v = a >> p;
                        if n > 31 {
                            v
                        } else {
                            v & ((1 << n) - 1)
                        }
                    }
                }),
                "u64" => m3(|a: u64, p: u32, n: u32| {
                    let (p, n) = (p & 255, n & 255);
                    if n == 0 || p > 63 {
                        0
                    } else {
                        let v = a >> p;
                        if n > 63 {
                            v
                        } else {
                            v & ((1 << n) - 1)
                        }
                    }
                }),
                "s32" => m3(|a: i32, p: u32, n: u32| bfe_signed(a as i64, p, n, 32) as i32),
                "s64" => m3(|a: i64, p: u32, n: u32| bfe_signed(a, p, n, 64)),
                _ => return None,
            }
        }
        "bfi" => {
            src = vec![same(ty)?, same(ty)?, "u32", "u32"];
            if w == 8 {
                m4(|a: u64, b: u64, p: u32, n: u32| bfi(a, b, p, n, 64))
            } else {
                m4(|a: u32, b: u32, p: u32, n: u32| bfi(a as u64, b as u64, p, n, 32) as u32)
            }
        }
        "prmt" => {
            if has("f4e") {
                m3(|a: u32, b: u32, c: u32| prmt(a, b, c, 1))
            } else if has("b4e") {
                m3(|a: u32, b: u32, c: u32| prmt(a, b, c, 2))
            } else if has("rc8") {
                m3(|a: u32, b: u32, c: u32| prmt(a, b, c, 3))
            } else if has("ecl") {
                m3(|a: u32, b: u32, c: u32| prmt(a, b, c, 4))
            } else if has("ecr") {
                m3(|a: u32, b: u32, c: u32| prmt(a, b, c, 5))
            } else if has("rc16") {
                m3(|a: u32, b: u32, c: u32| prmt(a, b, c, 6))
            } else {
                m3(|a: u32, b: u32, c: u32| prmt(a, b, c, 0))
            }
        }
        "lop3" => m4(|a: u32, b: u32, c: u32, t: u32| lop3(a, b, c, t)),
        "dp4a" => match (mods[0], ty) {
            // dp4a.atype.btype d, a, b, c
            ("s32", "s32") => m3(|a: u32, b: u32, c: u32| dot(a, b, c, true, true)),
            ("u32", "u32") => m3(|a: u32, b: u32, c: u32| dot(a, b, c, false, false)),
            ("u32", "s32") => m3(|a: u32, b: u32, c: u32| dot(a, b, c, false, true)),
            _ => m3(|a: u32, b: u32, c: u32| dot(a, b, c, true, false)),
        },
        _ => return None,
    };
    Some(Arith { h, dw, src, then })
}

fn same(ty: &str) -> Option<&'static str> {
    Some(match ty {
        "b16" => "b16",
        "u16" => "u16",
        "s16" => "s16",
        "b32" => "b32",
        "u32" => "u32",
        "s32" => "s32",
        "b64" => "b64",
        "u64" => "u64",
        "s64" => "s64",
        _ => return None,
    })
}

#[inline(always)]
fn dot(a: u32, b: u32, c: u32, sa: bool, sb: bool) -> u32 {
    let mut r = c as i32;
    for k in 0..4 {
        let (x, y) = ((a >> (8 * k)) as u8, (b >> (8 * k)) as u8);
        let x = if sa { x as i8 as i32 } else { x as i32 };
        let y = if sb { y as i8 as i32 } else { y as i32 };
        r = r.wrapping_add(x * y);
    }
    r as u32
}

#[inline(always)]
fn bfe_signed(a: i64, p: u32, n: u32, bits: u32) -> i64 {
    let (p, n) = (p & 255, n & 255);
    if n == 0 {
        return 0;
    }
    let p1 = p.min(bits - 1);
    let v = a >> p1;
    let avail = bits - p1;
    if n >= avail {
        return v;
    }
    v << (64 - n) >> (64 - n)
}

#[inline(always)]
fn bfi(a: u64, b: u64, p: u32, n: u32, bits: u32) -> u64 {
    let (p, n) = (p & 255, n & 255);
    if n == 0 || p >= bits {
        return b;
    }
    let m = if n >= 64 { !0 } else { (1u64 << n) - 1 } << p;
    (b & !m) | (a << p & m)
}
