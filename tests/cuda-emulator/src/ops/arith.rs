//! Addition, multiplication, division and their like.
use super::carry::{carry, mad_carry};
use super::*;

/// An opcode on its way to a handler.
pub(super) struct Form<'a> {
    pub op: &'a str,
    pub mods: &'a [&'a str],
    pub ty: &'a str,
    /// Width of the type in bytes.
    pub w: u8,
    pub then: Option<H>,
}

impl Form<'_> {
    pub fn has(&self, m: &str) -> bool {
        self.mods.contains(&m)
    }
    pub fn directed(&self) -> bool {
        self.has("rz") || self.has("rm") || self.has("rp")
    }
    pub fn half(&self) -> bool {
        self.ty == "f16" || self.ty == "bf16"
    }
    pub fn pairs(&self) -> bool {
        self.ty == "f16x2" || self.ty == "bf16x2"
    }
}

/// What an arithmetic opcode does; None when it is not known.
pub fn arith(op: &str, mods: &[&str], ty: &str) -> Option<Arith> {
    let has = |m: &str| mods.contains(&m);
    let w = crate::compile::width(ty).ok()?;
    let mut then = None;
    if has("sat") && ty == "f32" {
        then = Some(m1(sat32));
    } else if has("sat") && ty == "f64" {
        then = Some(m1(sat64));
    } else if has("sat") && ty == "s32" {
        return Some(Arith {
            h: match op {
                "add" => m2(|a: i32, b: i32| a.saturating_add(b)),
                "sub" => m2(|a: i32, b: i32| a.saturating_sub(b)),
                _ => return None,
            },
            dw: w,
            src: vec![],
            then,
        });
    } else if has("sat") {
        match ty {
            "f16" => then = Some(m1(|a: f16| h1(a, sat32))),
            "bf16" => then = Some(m1(|a: bf16| h1(a, sat32))),
            "f16x2" => then = Some(m1(|a: u32| x1::<f16>(a, |x| h1(x, sat32)))),
            _ => return None,
        }
    }
    if has("relu") {
        match ty {
            "f16" => {
                then = Some(m1(|a: f16| h1(a, |x| if x > 0.0 || x.is_nan() { x } else { 0.0 })))
            }
            "f16x2" => {
                then = Some(m1(|a: u32| {
                    x1::<f16>(a, |v| h1(v, |x| if x > 0.0 || x.is_nan() { x } else { 0.0 }))
                }))
            }
            _ => return None,
        }
    }
    let form = Form { op, mods, ty, w, then };
    sums(&form).or_else(|| bits::bits(&form)).or_else(|| special::special(&form))
}

/// Sums, products, quotients, minima.
fn sums(f: &Form) -> Option<Arith> {
    let &Form { op, mods, ty, w, then, .. } = f;
    let mut dw = f.w;
    let mut src: Vec<&'static str> = vec![];
    let has = |m: &str| f.has(m);
    let directed = f.directed();
    let half = f.half();
    let pairs = f.pairs();
    let h: H = match op {
        "add" | "addc" | "sub" | "subc" if op.len() == 4 || has("cc") => {
            let chained = op.len() == 4;
            let sub = op.starts_with("sub");
            return Some(Arith { h: carry(sub, chained, has("cc"), w)?, dw, src, then });
        }
        "add" => match ty {
            "f32" if directed => rounded!(mods, add32, m2, (a: f32, b: f32)),
            "f64" if directed => rounded!(mods, add64, m2, (a: f64, b: f64)),
            "f32" => m2(|a: f32, b: f32| a + b),
            "f64" => m2(|a: f64, b: f64| a + b),
            _ if half => halves!(ty, T => m2(|a: T, b: T| h2(a, b, |x, y| x + y)))?,
            _ if pairs => {
                halves!(ty, T => m2(|a: u32, b: u32| x2::<T>(a, b, |a, b| h2(a, b, |x, y| x + y))))?
            }
            _ => ints!(ty, T => m2(|a: T, b: T| a.wrapping_add(b)))?,
        },
        "sub" => match ty {
            "f32" if directed => {
                if has("rz") {
                    m2(|a: f32, b: f32| add32::<RZ>(a, -b))
                } else if has("rm") {
                    m2(|a: f32, b: f32| add32::<RM>(a, -b))
                } else {
                    m2(|a: f32, b: f32| add32::<RP>(a, -b))
                }
            }
            "f64" if directed => {
                if has("rz") {
                    m2(|a: f64, b: f64| add64::<RZ>(a, -b))
                } else if has("rm") {
                    m2(|a: f64, b: f64| add64::<RM>(a, -b))
                } else {
                    m2(|a: f64, b: f64| add64::<RP>(a, -b))
                }
            }
            "f32" => m2(|a: f32, b: f32| a - b),
            "f64" => m2(|a: f64, b: f64| a - b),
            _ if half => halves!(ty, T => m2(|a: T, b: T| h2(a, b, |x, y| x - y)))?,
            _ if pairs => {
                halves!(ty, T => m2(|a: u32, b: u32| x2::<T>(a, b, |a, b| h2(a, b, |x, y| x - y))))?
            }
            _ => ints!(ty, T => m2(|a: T, b: T| a.wrapping_sub(b)))?,
        },
        "mul" | "mul24" => match ty {
            "f32" if directed => rounded!(mods, mul32, m2, (a: f32, b: f32)),
            "f64" if directed => rounded!(mods, mul64, m2, (a: f64, b: f64)),
            "f32" => m2(|a: f32, b: f32| a * b),
            "f64" => m2(|a: f64, b: f64| a * b),
            _ if half => halves!(ty, T => m2(|a: T, b: T| h2(a, b, |x, y| x * y)))?,
            _ if pairs => {
                halves!(ty, T => m2(|a: u32, b: u32| x2::<T>(a, b, |a, b| h2(a, b, |x, y| x * y))))?
            }
            _ if has("wide") => {
                dw = w * 2;
                match ty {
                    "u16" => m2(|a: u16, b: u16| a as u32 * b as u32),
                    "s16" => m2(|a: i16, b: i16| a as i32 * b as i32),
                    "u32" => m2(|a: u32, b: u32| a as u64 * b as u64),
                    "s32" => m2(|a: i32, b: i32| a as i64 * b as i64),
                    _ => return None,
                }
            }
            _ if op == "mul24" => match ty {
                "u32" if has("lo") => {
                    m2(|a: u32, b: u32| (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff))
                }
                "s32" if has("lo") => m2(|a: i32, b: i32| (a << 8 >> 8).wrapping_mul(b << 8 >> 8)),
                _ => return None,
            },
            _ if has("hi") => match ty {
                "u16" => m2(|a: u16, b: u16| ((a as u32 * b as u32) >> 16) as u16),
                "s16" => m2(|a: i16, b: i16| ((a as i32 * b as i32) >> 16) as i16),
                "u32" => m2(|a: u32, b: u32| ((a as u64 * b as u64) >> 32) as u32),
                "s32" => m2(|a: i32, b: i32| ((a as i64 * b as i64) >> 32) as i32),
                "u64" => m2(|a: u64, b: u64| ((a as u128 * b as u128) >> 64) as u64),
                "s64" => m2(|a: i64, b: i64| ((a as i128 * b as i128) >> 64) as i64),
                _ => return None,
            },
            _ => ints!(ty, T => m2(|a: T, b: T| a.wrapping_mul(b)))?,
        },
        "mad" | "fma" | "mad24" | "madc" => match ty {
            "f32" if directed => rounded!(mods, fma32, m3, (a: f32, b: f32, c: f32)),
            "f64" if directed => rounded!(mods, fma64, m3, (a: f64, b: f64, c: f64)),
            "f32" => m3(|a: f32, b: f32, c: f32| a.mul_add(b, c)),
            "f64" => m3(|a: f64, b: f64, c: f64| a.mul_add(b, c)),
            _ if half => halves!(ty, T => m3(|a: T, b: T, c: T| hfma(a, b, c)))?,
            _ if pairs => halves!(ty, T => m3(|a: u32, b: u32, c: u32| x3::<T>(a, b, c, hfma)))?,
            _ if has("cc") || op == "madc" => {
                return Some(Arith {
                    h: mad_carry(has("hi"), op == "madc", has("cc"), w)?,
                    dw,
                    src,
                    then,
                })
            }
            _ if has("wide") => {
                dw = w * 2;
                let t: &'static str = match ty {
                    "u16" => "u32",
                    "s16" => "s32",
                    "u32" => "u64",
                    _ => "s64",
                };
                let s: &'static str = match ty {
                    "u16" => "u16",
                    "s16" => "s16",
                    "u32" => "u32",
                    _ => "s32",
                };
                src = vec![s, s, t];
                match ty {
                    "u16" => m3(|a: u16, b: u16, c: u32| (a as u32 * b as u32).wrapping_add(c)),
                    "s16" => m3(|a: i16, b: i16, c: i32| (a as i32 * b as i32).wrapping_add(c)),
                    "u32" => m3(|a: u32, b: u32, c: u64| (a as u64 * b as u64).wrapping_add(c)),
                    "s32" => m3(|a: i32, b: i32, c: i64| (a as i64 * b as i64).wrapping_add(c)),
                    _ => return None,
                }
            }
            _ if op == "mad24" => return None,
            _ if has("hi") => match ty {
                "u32" => m3(|a: u32, b: u32, c: u32| {
                    (((a as u64 * b as u64) >> 32) as u32).wrapping_add(c)
                }),
                "s32" => m3(|a: i32, b: i32, c: i32| {
                    (((a as i64 * b as i64) >> 32) as i32).wrapping_add(c)
                }),
                "u64" => m3(|a: u64, b: u64, c: u64| {
                    (((a as u128 * b as u128) >> 64) as u64).wrapping_add(c)
                }),
                "s64" => m3(|a: i64, b: i64, c: i64| {
                    (((a as i128 * b as i128) >> 64) as i64).wrapping_add(c)
                }),
                _ => return None,
            },
            _ => ints!(ty, T => m3(|a: T, b: T, c: T| a.wrapping_mul(b).wrapping_add(c)))?,
        },
        "div" => match ty {
            "f32" if directed => rounded!(mods, div32, m2, (a: f32, b: f32)),
            "f64" if directed => rounded!(mods, div64, m2, (a: f64, b: f64)),
            "f32" => m2(|a: f32, b: f32| a / b),
            "f64" => m2(|a: f64, b: f64| a / b),
            _ => ints!(ty, T => m2(|a: T, b: T| if b == 0 { !0 } else { a.wrapping_div(b) }))?,
        },
        "rem" => ints!(ty, T => m2(|a: T, b: T| if b == 0 { a } else { a.wrapping_rem(b) }))?,
        "sad" => {
            ints!(ty, T => m3(|a: T, b: T, c: T| c.wrapping_add(if a < b { b.wrapping_sub(a) } else { a.wrapping_sub(b) })))?
        }
        "min" | "max" => {
            let nan = has("NaN");
            let min = op == "min";
            match (ty, nan, min) {
                ("f32", false, true) => m2(min32),
                ("f32", false, false) => m2(max32),
                ("f32", true, true) => {
                    m2(
                        |a: f32, b: f32| {
                            if a.is_nan() || b.is_nan() {
                                f32::NAN
                            } else {
                                min32(a, b)
                            }
                        },
                    )
                }
                ("f32", true, false) => {
                    m2(
                        |a: f32, b: f32| {
                            if a.is_nan() || b.is_nan() {
                                f32::NAN
                            } else {
                                max32(a, b)
                            }
                        },
                    )
                }
                ("f64", _, true) => m2(min64),
                ("f64", _, false) => m2(max64),
                _ if half || pairs => {
                    // NaN handling is done in f32; results are one of the operands.
                    match (half, nan, min) {
                        (true, false, true) => halves!(ty, T => m2(|a: T, b: T| h2(a, b, min32)))?,
                        (true, false, false) => halves!(ty, T => m2(|a: T, b: T| h2(a, b, max32)))?,
                        (true, true, true) => {
                            halves!(ty, T => m2(|a: T, b: T| h2(a, b, |x, y| if x.is_nan() || y.is_nan() { f32::NAN } else { min32(x, y) })))?
                        }
                        (true, true, false) => {
                            halves!(ty, T => m2(|a: T, b: T| h2(a, b, |x, y| if x.is_nan() || y.is_nan() { f32::NAN } else { max32(x, y) })))?
                        }
                        (false, false, true) => {
                            halves!(ty, T => m2(|a: u32, b: u32| x2::<T>(a, b, |a, b| h2(a, b, min32))))?
                        }
                        (false, false, false) => {
                            halves!(ty, T => m2(|a: u32, b: u32| x2::<T>(a, b, |a, b| h2(a, b, max32))))?
                        }
                        _ => return None,
                    }
                }
                (_, _, true) => ints!(ty, T => m2(|a: T, b: T| a.min(b)))?,
                (_, _, false) => ints!(ty, T => m2(|a: T, b: T| a.max(b)))?,
            }
        }
        _ => return None,
    };
    Some(Arith { h, dw, src, then })
}
