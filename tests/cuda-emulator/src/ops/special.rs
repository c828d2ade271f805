//! Roots, reciprocals and transcendental functions.
use super::arith::Form;
use super::*;

/// Opcodes of the special functions.
pub(super) fn special(f: &Form) -> Option<Arith> {
    let &Form { op, mods, ty, then, .. } = f;
    let mut dw = f.w;
    let src: Vec<&'static str> = vec![];
    let has = |m: &str| f.has(m);
    let directed = f.directed();
    let half = f.half();
    let h: H = match op {
        "rcp" => match ty {
            "f32" => m1(|a: f32| 1.0 / a),
            "f64" if has("approx") => {
                m1(|a: f64| f64::from_bits((1.0 / a).to_bits() & !0xffff_ffff))
            }
            _ => m1(|a: f64| 1.0 / a),
        },
        "sqrt" => match ty {
            "f32" if directed => rounded!(mods, sqrt32, m1, (a: f32)),
            "f64" if directed => rounded!(mods, sqrt64, m1, (a: f64)),
            "f32" => m1(|a: f32| a.sqrt()),
            _ => m1(|a: f64| a.sqrt()),
        },
        "rsqrt" => match ty {
            "f32" => m1(|a: f32| (1.0 / (a as f64).sqrt()) as f32),
            _ => m1(|a: f64| 1.0 / a.sqrt()),
        },
        "sin" => m1(|a: f32| a.sin()),
        "cos" => m1(|a: f32| a.cos()),
        "lg2" => m1(|a: f32| a.log2()),
        "ex2" => match ty {
            "f32" => m1(|a: f32| a.exp2()),
            _ if half => halves!(ty, T => m1(|a: T| h1(a, f32::exp2)))?,
            _ => halves!(ty, T => m1(|a: u32| x1::<T>(a, |v| h1(v, f32::exp2))))?,
        },
        "tanh" => match ty {
            "f32" => m1(|a: f32| a.tanh()),
            _ if half => halves!(ty, T => m1(|a: T| h1(a, f32::tanh)))?,
            _ => halves!(ty, T => m1(|a: u32| x1::<T>(a, |v| h1(v, f32::tanh))))?,
        },
        "copysign" => match ty {
            "f32" => m2(|a: f32, b: f32| b.copysign(a)),
            _ => m2(|a: f64, b: f64| b.copysign(a)),
        },
        "testp" => {
            dw = 1;
            match (mods[0], ty) {
                ("finite", "f32") => p1(|a: f32| a.is_finite()),
                ("infinite", "f32") => p1(|a: f32| a.is_infinite()),
                ("number", "f32") => p1(|a: f32| !a.is_nan()),
                ("notanumber", "f32") => p1(|a: f32| a.is_nan()),
                ("normal", "f32") => p1(|a: f32| a.is_normal()),
                ("subnormal", "f32") => p1(|a: f32| a.is_subnormal()),
                ("finite", "f64") => p1(|a: f64| a.is_finite()),
                ("infinite", "f64") => p1(|a: f64| a.is_infinite()),
                ("number", "f64") => p1(|a: f64| !a.is_nan()),
                ("notanumber", "f64") => p1(|a: f64| a.is_nan()),
                ("normal", "f64") => p1(|a: f64| a.is_normal()),
                ("subnormal", "f64") => p1(|a: f64| a.is_subnormal()),
                _ => return None,
            }
        }
        _ => return None,
    };
    Some(Arith { h, dw, src, then })
}
