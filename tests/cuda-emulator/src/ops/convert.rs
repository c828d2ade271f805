//! Conversions between types.
use super::*;

fn is_int(t: &str) -> bool {
    matches!(t.as_bytes()[0], b'u' | b's')
        || (t.as_bytes()[0] == b'b' && t.as_bytes()[1].is_ascii_digit())
}

fn bits_of(t: &str) -> u32 {
    crate::ptx::type_size(t).unwrap_or(4) as u32 * 8
}

/// Source bits, source signed, destination bits, destination signed, packed for the handlers.
pub fn convert_bits(dt: &str, st: &str) -> i64 {
    (bits_of(st)
        | (st.starts_with('s') as u32) << 8
        | bits_of(dt) << 16
        | (dt.starts_with('s') as u32) << 24) as i64
}

trait Lane: Copy {
    fn get(self) -> u64;
    fn set(v: u64) -> Self;
}
macro_rules! lane {
    ($($t:ty),*) => { $(impl Lane for $t {
        #[inline(always)]
        fn get(self) -> u64 { self as u64 }
        #[inline(always)]
        fn set(v: u64) -> Self { v as $t }
    })* };
}
lane!(u16, u32, u64);

#[inline(always)]
fn extend(v: u64, bits: u32, signed: bool) -> u64 {
    let s = 64 - bits;
    if signed {
        ((v << s) as i64 >> s) as u64
    } else {
        v << s >> s
    }
}

unsafe fn int_int<S: Lane, D: Lane, const SAT: bool>(i: &Inst, w: &mut Warp, m: u32) {
    let k = i.imm as u32;
    let (sb, ss, db, ds) = (k & 255, k >> 8 & 1 == 1, k >> 16 & 255, k >> 24 & 1 == 1);
    let s = w.r::<S>(i.o[1]);
    let t: [D; LANES] = std::array::from_fn(|l| {
        let mut v = extend(s[l].get(), sb, ss);
        if SAT {
            let x = if ss { v as i64 as i128 } else { v as i128 };
            let (lo, hi) = if ds {
                (-(1i128 << (db - 1)), (1i128 << (db - 1)) - 1)
            } else {
                (0, (1i128 << db) - 1)
            };
            v = x.clamp(lo, hi) as u64;
        }
        D::set(extend(v, db, ds))
    });
    w.put(i.o[0], m, &t);
}

unsafe fn int_float<S: Lane, D: FromInt, const M: u8>(i: &Inst, w: &mut Warp, m: u32) {
    let k = i.imm as u32;
    let (sb, ss) = (k & 255, k >> 8 & 1 == 1);
    let s = w.r::<S>(i.o[1]);
    let t: [D; LANES] = if ss {
        std::array::from_fn(|l| D::signed::<M>(extend(s[l].get(), sb, true) as i64))
    } else {
        std::array::from_fn(|l| D::unsigned::<M>(extend(s[l].get(), sb, false)))
    };
    w.put(i.o[0], m, &t);
}

trait FromInt: Copy {
    fn signed<const M: u8>(v: i64) -> Self;
    fn unsigned<const M: u8>(v: u64) -> Self;
}
macro_rules! from_int {
    ($t:ty, $re:ident) => {
        impl FromInt for $t {
            #[inline(always)]
            fn signed<const M: u8>(v: i64) -> Self {
                let r = v as $t;
                if M == RN {
                    r
                } else {
                    $re::<M>(r, (v as i128 - r as i128) as f64)
                }
            }
            #[inline(always)]
            fn unsigned<const M: u8>(v: u64) -> Self {
                let r = v as $t;
                if M == RN {
                    r
                } else {
                    $re::<M>(r, (v as i128 - r as i128) as f64)
                }
            }
        }
    };
}
from_int!(f32, redirect32);
from_int!(f64, redirect64);
impl FromInt for f16 {
    #[inline(always)]
    fn signed<const M: u8>(v: i64) -> Self {
        to_half::<f16, M>(v as f64)
    }
    #[inline(always)]
    fn unsigned<const M: u8>(v: u64) -> Self {
        to_half::<f16, M>(v as f64)
    }
}
impl FromInt for bf16 {
    #[inline(always)]
    fn signed<const M: u8>(v: i64) -> Self {
        to_half::<bf16, M>(v as f64)
    }
    #[inline(always)]
    fn unsigned<const M: u8>(v: u64) -> Self {
        to_half::<bf16, M>(v as f64)
    }
}

/// A half from an f64 with a rounding mode.
#[inline(always)]
fn to_half<T: Half + Num, const M: u8>(v: f64) -> T {
    let r = T::down(v);
    if M == RN || v.is_nan() {
        return r;
    }
    let back = r.up();
    if back == v {
        return r;
    }
    let up = |r: T| {
        let b = r.bits();
        T::of(if b == 0x8000 {
            1
        } else if b & 0x8000 == 0 {
            b + 1
        } else {
            b - 1
        })
    };
    let down = |r: T| {
        let b = r.bits();
        T::of(if b == 0 {
            0x8001
        } else if b & 0x8000 == 0 {
            b - 1
        } else {
            b + 1
        })
    };
    match M {
        RM if back > v => down(r),
        RP if back < v => up(r),
        RZ if v > 0.0 && back > v => down(r),
        RZ if v < 0.0 && back < v => up(r),
        _ => r,
    }
}

const TO_NEAR: u8 = 0;
const TO_ZERO: u8 = 1;
const TO_DOWN: u8 = 2;
const TO_UP: u8 = 3;
const AS_IS: u8 = 4;

#[inline(always)]
fn integral<const M: u8>(v: f64) -> f64 {
    match M {
        TO_NEAR => v.round_ties_even(),
        TO_ZERO => v.trunc(),
        TO_DOWN => v.floor(),
        TO_UP => v.ceil(),
        _ => v,
    }
}

unsafe fn float_int<S: Num, D: Lane, const M: u8>(i: &Inst, w: &mut Warp, m: u32) {
    let k = i.imm as u32;
    let (db, ds) = (k >> 16 & 255, k >> 24 & 1 == 1);
    let s = w.r::<S>(i.o[1]);
    let t: [D; LANES] = match (ds, db) {
        (true, 64) => std::array::from_fn(|l| D::set(integral::<M>(s[l].up()) as i64 as u64)),
        (false, 64) => std::array::from_fn(|l| D::set(integral::<M>(s[l].up()) as u64)),
        (true, 32) => {
            std::array::from_fn(|l| D::set(integral::<M>(s[l].up()) as i32 as i64 as u64))
        }
        (false, 32) => std::array::from_fn(|l| D::set(integral::<M>(s[l].up()) as u32 as u64)),
        (true, 16) => {
            std::array::from_fn(|l| D::set(integral::<M>(s[l].up()) as i16 as i64 as u64))
        }
        (false, 16) => std::array::from_fn(|l| D::set(integral::<M>(s[l].up()) as u16 as u64)),
        (true, _) => std::array::from_fn(|l| D::set(integral::<M>(s[l].up()) as i8 as i64 as u64)),
        (false, _) => std::array::from_fn(|l| D::set(integral::<M>(s[l].up()) as u8 as u64)),
    };
    w.put(i.o[0], m, &t);
}

fn float_float<S: Num, D: Num>(rnd: &str, sat: bool) -> R<H> {
    unsafe fn run<S: Num, D: Num, const M: u8, const SAT: bool>(i: &Inst, w: &mut Warp, m: u32) {
        let s = w.r::<S>(i.o[1]);
        let t: [D; LANES] = std::array::from_fn(|l| {
            let mut v = integral::<M>(s[l].up());
            if SAT {
                v = sat64(v);
            }
            D::down(v)
        });
        w.put(i.o[0], m, &t);
    }
    Ok(match (rnd, sat) {
        ("rni", false) => run::<S, D, TO_NEAR, false>,
        ("rzi", false) => run::<S, D, TO_ZERO, false>,
        ("rmi", false) => run::<S, D, TO_DOWN, false>,
        ("rpi", false) => run::<S, D, TO_UP, false>,
        ("rn" | "", false) => run::<S, D, AS_IS, false>,
        ("rn" | "", true) => run::<S, D, AS_IS, true>,
        _ => return Err(format!("float conversion with {rnd}")),
    })
}

pub fn convert(dt: &str, st: &str, dw: u8, sw: u8, rnd: &str, sat: bool) -> R<H> {
    macro_rules! by_s {
        ($f:ident $(, $x:tt)*) => {
            match sw {
                2 => by_sd!($f, u16 $(, $x)*),
                4 => by_sd!($f, u32 $(, $x)*),
                _ => by_sd!($f, u64 $(, $x)*),
            }
        };
    }
    macro_rules! by_sd {
        ($f:ident, $s:ty $(, $x:tt)*) => {
            match dw {
                2 => $f::<$s, u16 $(, $x)*>,
                4 => $f::<$s, u32 $(, $x)*>,
                _ => $f::<$s, u64 $(, $x)*>,
            }
        };
    }
    let out: H = match (is_int(dt), is_int(st)) {
        (true, true) => {
            if sat {
                by_s!(int_int, true)
            } else {
                by_s!(int_int, false)
            }
        }
        (false, true) => {
            macro_rules! to {
                ($d:ty) => {
                    match (sw, rnd) {
                        (2, "rn" | "") => int_float::<u16, $d, RN> as H,
                        (4, "rn" | "") => int_float::<u32, $d, RN>,
                        (8, "rn" | "") => int_float::<u64, $d, RN>,
                        (2, "rz") => int_float::<u16, $d, RZ>,
                        (4, "rz") => int_float::<u32, $d, RZ>,
                        (8, "rz") => int_float::<u64, $d, RZ>,
                        (2, "rm") => int_float::<u16, $d, RM>,
                        (4, "rm") => int_float::<u32, $d, RM>,
                        (8, "rm") => int_float::<u64, $d, RM>,
                        (2, "rp") => int_float::<u16, $d, RP>,
                        (4, "rp") => int_float::<u32, $d, RP>,
                        (8, "rp") => int_float::<u64, $d, RP>,
                        _ => return Err(format!("cvt.{rnd}.{dt}.{st}")),
                    }
                };
            }
            match dt {
                "f32" => to!(f32),
                "f64" => to!(f64),
                "f16" => to!(f16),
                "bf16" => to!(bf16),
                _ => return Err(format!("cvt.{rnd}.{dt}.{st}")),
            }
        }
        (true, false) => {
            macro_rules! from {
                ($s:ty) => {
                    match rnd {
                        "rni" => by_sd!(float_int, $s, TO_NEAR) as H,
                        "rzi" | "" => by_sd!(float_int, $s, TO_ZERO),
                        "rmi" => by_sd!(float_int, $s, TO_DOWN),
                        "rpi" => by_sd!(float_int, $s, TO_UP),
                        _ => return Err(format!("cvt.{rnd}.{dt}.{st}")),
                    }
                };
            }
            match st {
                "f32" => from!(f32),
                "f64" => from!(f64),
                "f16" => from!(f16),
                "bf16" => from!(bf16),
                _ => return Err(format!("cvt.{rnd}.{dt}.{st}")),
            }
        }
        (false, false) => match (dt, st, rnd, sat) {
            ("f16", "f32", "rn" | "", false) => m1(|a: f32| f16::from_f32(a)),
            ("f32", "f16", "", false) => m1(|a: f16| a.to_f32()),
            ("bf16", "f32", "rn" | "", false) => m1(|a: f32| bf16::from_f32(a)),
            ("f32", "bf16", "", false) => m1(|a: bf16| a.up32()),
            ("f16", "f32", "rz", false) => m1(|a: f32| to_half::<f16, RZ>(a as f64)),
            ("f16", "f32", "rm", false) => m1(|a: f32| to_half::<f16, RM>(a as f64)),
            ("f16", "f32", "rp", false) => m1(|a: f32| to_half::<f16, RP>(a as f64)),
            ("bf16", "f32", "rz", false) => m1(|a: f32| to_half::<bf16, RZ>(a as f64)),
            ("f32", "f64", "rz", false) => m1(|a: f64| round32::<RZ>(a, 0.0)),
            ("f32", "f64", "rm", false) => m1(|a: f64| round32::<RM>(a, 0.0)),
            ("f32", "f64", "rp", false) => m1(|a: f64| round32::<RP>(a, 0.0)),
            ("f32", "f32", _, _) => float_float::<f32, f32>(rnd, sat)?,
            ("f64", "f64", _, _) => float_float::<f64, f64>(rnd, sat)?,
            ("f16", "f16", _, _) => float_float::<f16, f16>(rnd, sat)?,
            ("bf16", "bf16", _, _) => float_float::<bf16, bf16>(rnd, sat)?,
            ("f32", "f64", _, _) => float_float::<f64, f32>(rnd, sat)?,
            ("f64", "f32", _, _) => float_float::<f32, f64>(rnd, sat)?,
            ("f16", "f64", _, _) => float_float::<f64, f16>(rnd, sat)?,
            ("f64", "f16", _, _) => float_float::<f16, f64>(rnd, sat)?,
            ("bf16", "f64", _, _) => float_float::<f64, bf16>(rnd, sat)?,
            ("f64", "bf16", _, _) => float_float::<bf16, f64>(rnd, sat)?,
            ("bf16", "f16", _, _) => float_float::<f16, bf16>(rnd, sat)?,
            ("f16", "bf16", _, _) => float_float::<bf16, f16>(rnd, sat)?,
            ("f16", "f32", _, _) => float_float::<f32, f16>(rnd, sat)?,
            ("f32", "f16", _, _) => float_float::<f16, f32>(rnd, sat)?,
            _ => return Err(format!("cvt.{rnd}.{dt}.{st}")),
        },
    };
    Ok(out)
}

/// The first source goes into the upper half.
pub fn convert_pair(dt: &str, relu: bool) -> R<H> {
    Ok(match (dt, relu) {
        ("f16x2", false) => m2(|a: f32, b: f32| {
            (f16::from_f32(a).to_bits() as u32) << 16 | f16::from_f32(b).to_bits() as u32
        }),
        ("bf16x2", false) => m2(|a: f32, b: f32| {
            (bf16::from_f32(a).to_bits() as u32) << 16 | bf16::from_f32(b).to_bits() as u32
        }),
        _ => return Err(format!("cvt to {dt}")),
    })
}
