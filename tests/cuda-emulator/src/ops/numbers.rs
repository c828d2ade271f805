//! Floating-point types, rounding and saturation.
use super::*;

pub(super) trait Num: Copy {
    fn up(self) -> f64;
    fn down(v: f64) -> Self;
}
macro_rules! num {
    ($t:ty, $up:expr, $down:expr) => {
        impl Num for $t {
            #[inline(always)]
            fn up(self) -> f64 {
                $up(self)
            }
            #[inline(always)]
            fn down(v: f64) -> Self {
                $down(v)
            }
        }
    };
}
num!(f32, |a| a as f64, |v| v as f32);
num!(f64, |a| a, |v| v);
num!(f16, |a: f16| a.to_f32() as f64, f16::from_f64);
num!(bf16, |a: bf16| a.to_f32() as f64, bf16::from_f64);

pub(super) trait Half: Copy {
    fn up32(self) -> f32;
    fn down32(v: f32) -> Self;
    fn bits(self) -> u16;
    fn of(b: u16) -> Self;
}
impl Half for f16 {
    #[inline(always)]
    fn up32(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn down32(v: f32) -> Self {
        f16::from_f32(v)
    }
    #[inline(always)]
    fn bits(self) -> u16 {
        self.to_bits()
    }
    #[inline(always)]
    fn of(b: u16) -> Self {
        f16::from_bits(b)
    }
}
impl Half for bf16 {
    #[inline(always)]
    fn up32(self) -> f32 {
        f32::from_bits((self.to_bits() as u32) << 16)
    }
    #[inline(always)]
    fn down32(v: f32) -> Self {
        bf16::from_f32(v)
    }
    #[inline(always)]
    fn bits(self) -> u16 {
        self.to_bits()
    }
    #[inline(always)]
    fn of(b: u16) -> Self {
        bf16::from_bits(b)
    }
}

#[inline(always)]
pub(super) fn h1<T: Half>(a: T, f: impl Fn(f32) -> f32) -> T {
    T::down32(f(a.up32()))
}
#[inline(always)]
pub(super) fn h2<T: Half>(a: T, b: T, f: impl Fn(f32, f32) -> f32) -> T {
    T::down32(f(a.up32(), b.up32()))
}
/// The product of two halves is exact in f32; the sum is formed in f64.
#[inline(always)]
pub(super) fn hfma<T: Half + Num>(a: T, b: T, c: T) -> T {
    T::down((a.up32() * b.up32()) as f64 + c.up())
}
#[inline(always)]
pub(super) fn x1<T: Half>(a: u32, f: impl Fn(T) -> T) -> u32 {
    f(T::of(a as u16)).bits() as u32 | (f(T::of((a >> 16) as u16)).bits() as u32) << 16
}
#[inline(always)]
pub(super) fn x2<T: Half>(a: u32, b: u32, f: impl Fn(T, T) -> T) -> u32 {
    f(T::of(a as u16), T::of(b as u16)).bits() as u32
        | (f(T::of((a >> 16) as u16), T::of((b >> 16) as u16)).bits() as u32) << 16
}
#[inline(always)]
pub(super) fn x3<T: Half>(a: u32, b: u32, c: u32, f: impl Fn(T, T, T) -> T) -> u32 {
    f(T::of(a as u16), T::of(b as u16), T::of(c as u16)).bits() as u32
        | (f(T::of((a >> 16) as u16), T::of((b >> 16) as u16), T::of((c >> 16) as u16)).bits()
            as u32)
            << 16
}

/// PTX minimum: a NaN gives way to the other operand, and -0 is below +0.
macro_rules! minmax {
    ($min:ident, $max:ident, $t:ty) => {
        #[inline(always)]
        pub(super) fn $min(a: $t, b: $t) -> $t {
            if a.is_nan() {
                b
            } else if a < b || b.is_nan() || (a == b && a.is_sign_negative()) {
                a
            } else {
                b
            }
        }
        #[inline(always)]
        pub(super) fn $max(a: $t, b: $t) -> $t {
            if a.is_nan() {
                b
            } else if a > b || b.is_nan() || (a == b && a.is_sign_positive()) {
                a
            } else {
                b
            }
        }
    };
}
minmax!(min32, max32, f32);
minmax!(min64, max64, f64);

pub(super) const RN: u8 = 0;
pub(super) const RZ: u8 = 1;
pub(super) const RM: u8 = 2;
pub(super) const RP: u8 = 3;

/// Moves a value that was rounded to nearest when `err` (exact minus rounded, or its sign)
/// shows that another rounding mode would have ended elsewhere.
macro_rules! redirect {
    ($name:ident, $t:ty) => {
        #[inline(always)]
        pub(super) fn $name<const M: u8>(r: $t, err: f64) -> $t {
            if !r.is_finite() || err == 0.0 || err.is_nan() {
                return r;
            }
            match M {
                RM if err < 0.0 => r.next_down(),
                RP if err > 0.0 => r.next_up(),
                RZ if r > 0.0 && err < 0.0 => r.next_down(),
                RZ if r < 0.0 && err > 0.0 => r.next_up(),
                _ => r,
            }
        }
    };
}
redirect!(redirect32, f32);
redirect!(redirect64, f64);

/// Sum of two f64 together with what rounding took away.
#[inline(always)]
pub(super) fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let s = a + b;
    let t = s - a;
    (s, (a - (s - t)) + (b - t))
}
#[inline(always)]
pub(super) fn round32<const M: u8>(hi: f64, lo: f64) -> f32 {
    // `hi` may lie exactly between two f32 with `lo` deciding.
    let mut r = hi as f32;
    if M == RN {
        if lo != 0.0 && r.is_finite() {
            let d = hi - r as f64;
            let (up, down) = (r.next_up() as f64, r.next_down() as f64);
            if lo > 0.0 && d > 0.0 && up - hi == d {
                r = r.next_up();
            } else if lo < 0.0 && d < 0.0 && hi - down == -d {
                r = r.next_down();
            }
        }
        return r;
    }
    let err = (hi - r as f64) + lo;
    redirect32::<M>(r, if err != 0.0 { err } else { lo })
}
#[inline(always)]
pub(super) fn add32<const M: u8>(a: f32, b: f32) -> f32 {
    let (h, l) = two_sum(a as f64, b as f64);
    round32::<M>(h, l)
}
#[inline(always)]
pub(super) fn mul32<const M: u8>(a: f32, b: f32) -> f32 {
    round32::<M>(a as f64 * b as f64, 0.0)
}
#[inline(always)]
pub(super) fn fma32<const M: u8>(a: f32, b: f32, c: f32) -> f32 {
    let (h, l) = two_sum(a as f64 * b as f64, c as f64);
    round32::<M>(h, l)
}
#[inline(always)]
pub(super) fn add64<const M: u8>(a: f64, b: f64) -> f64 {
    let (h, l) = two_sum(a, b);
    redirect64::<M>(h, l)
}
#[inline(always)]
pub(super) fn mul64<const M: u8>(a: f64, b: f64) -> f64 {
    let h = a * b;
    redirect64::<M>(h, a.mul_add(b, -h))
}
#[inline(always)]
pub(super) fn fma64<const M: u8>(a: f64, b: f64, c: f64) -> f64 {
    let r = a.mul_add(b, c);
    let p = a * b;
    let e = a.mul_add(b, -p);
    let (s, t) = two_sum(p, c);
    redirect64::<M>(r, (s - r) + (t + e))
}
#[inline(always)]
pub(super) fn div32<const M: u8>(a: f32, b: f32) -> f32 {
    let q = a as f64 / b as f64;
    round32::<M>(q, -q.mul_add(b as f64, -(a as f64)) / b as f64)
}
#[inline(always)]
pub(super) fn div64<const M: u8>(a: f64, b: f64) -> f64 {
    let q = a / b;
    redirect64::<M>(q, -q.mul_add(b, -a) / b)
}
#[inline(always)]
pub(super) fn sqrt32<const M: u8>(a: f32) -> f32 {
    let q = (a as f64).sqrt();
    round32::<M>(q, -q.mul_add(q, -(a as f64)))
}
#[inline(always)]
pub(super) fn sqrt64<const M: u8>(a: f64) -> f64 {
    let q = a.sqrt();
    redirect64::<M>(q, -q.mul_add(q, -a))
}
#[inline(always)]
pub(super) fn sat32(a: f32) -> f32 {
    if a > 0.0 {
        a.min(1.0)
    } else {
        0.0
    }
}
#[inline(always)]
pub(super) fn sat64(a: f64) -> f64 {
    if a > 0.0 {
        a.min(1.0)
    } else {
        0.0
    }
}

macro_rules! rounded {
    ($mods:expr, $f:ident, $m:ident, ($($a:ident : $t:ty),*)) => {
        if $mods.contains(&"rz") {
            $m(|$($a: $t),*| $f::<RZ>($($a),*))
        } else if $mods.contains(&"rm") {
            $m(|$($a: $t),*| $f::<RM>($($a),*))
        } else {
            $m(|$($a: $t),*| $f::<RP>($($a),*))
        }
    };
}

macro_rules! ints {
    ($ty:expr, $T:ident => $e:expr) => {
        match $ty {
            "u16" | "b16" => {
                type $T = u16;
                Some($e)
            }
            "s16" => {
                type $T = i16;
                Some($e)
            }
            "u32" | "b32" => {
                type $T = u32;
                Some($e)
            }
            "s32" => {
                type $T = i32;
                Some($e)
            }
            "u64" | "b64" => {
                type $T = u64;
                Some($e)
            }
            "s64" => {
                type $T = i64;
                Some($e)
            }
            _ => None,
        }
    };
}
macro_rules! halves {
    ($ty:expr, $T:ident => $e:expr) => {
        match $ty {
            "f16" | "f16x2" => {
                type $T = f16;
                Some($e)
            }
            "bf16" | "bf16x2" => {
                type $T = bf16;
                Some($e)
            }
            _ => None,
        }
    };
}

pub(super) use {halves, ints, rounded};
