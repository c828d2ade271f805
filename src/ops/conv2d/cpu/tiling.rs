//! Winograd's minimal filtering: `M` outputs of a filter with 3 taps from `N = M + 2` products instead of `3·M`.
//!
//! A filter is a product of polynomials. It is evaluated at `N − 1` points and at infinity, multiplied there, and
//! interpolated (Toom and Cook): `outputs = Aᵀ · (G·weights ⊙ Bᵀ·inputs)`. With points `0, ±p₁, ±p₂, …, ∞`:
//!
//! - row `p` of `Bᵀ` holds the coefficients of `Π (x − q)` over the other finite points `q`, the last row that over all;
//! - row `p` of `G` is `(1, p, p²) / Π (p − q)`, the last row `(0, 0, 1)`;
//! - column `p` of `Aᵀ` is `(1, p, p², …)`, the last column `(0, …, 0, 1)`.
//!
//! The points decide about rounding errors. The usual ones, 0, ±1 and ±2, make results of 256 channels differ from
//! the exact sum by up to 1.0e-5 of the largest output; ±5/8 and ±3/2 by 2.1e-6. With 6 outputs, ±1/2, ±1 and ±2 lead to
//! 4e-6 to 1.7e-5.
//!
//! Each pair of points `±p` shares the even and the odd part of its polynomials, which halves the arithmetic.
//!
//! References: Lavin and Gray 2016, "Fast Algorithms for Convolutional Neural Networks"; Barabasz et al. 2020, "Error
//! Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks".

use crate::ops::support::cpu::simd::Simd;

/// A choice of points: tiles of `M`×`M` outputs from `N`×`N` inputs.
pub(super) trait Tiling<const N: usize, const M: usize>: Copy + Send + Sync {
    /// The finite points, in the order in which the transforms below have them.
    fn points(self) -> [f64; N];

    /// `Bᵀ · inputs`.
    fn transform_input<S: Simd>(self, simd: S, inputs: [S::Vector; N]) -> [S::Vector; N];

    /// `Aᵀ · products`.
    fn transform_output<S: Simd>(self, simd: S, products: [S::Vector; N]) -> [S::Vector; M];

    /// `A · gradients`: the adjoint of [`Self::transform_output`].
    fn spread_output<S: Simd>(self, simd: S, gradients: [S::Vector; M]) -> [S::Vector; N];

    /// `G`.
    fn weight_transform(self) -> [[f64; 3]; N] {
        let points = self.points();
        std::array::from_fn(|i| {
            if i == N - 1 {
                return [0.0, 0.0, 1.0];
            }
            let p = points[i];
            let others = (0..N - 1).filter(|j| *j != i);
            let scale = others.map(|j| p - points[j]).product::<f64>();
            [1.0 / scale, p / scale, p * p / scale]
        })
    }

    /// A left inverse of `G`, from the values at 0, at the first pair of points and at infinity.
    fn weight_restoration(self) -> [[f64; N]; 3] {
        let matrix = self.weight_transform();
        let p = self.points()[1];
        let mut inverse = [[0.0; N]; 3];
        inverse[0][0] = 1.0 / matrix[0][0];
        inverse[1][1] = 0.5 / (p * matrix[1][0]);
        inverse[1][2] = -0.5 / (p * matrix[2][0]);
        inverse[2][N - 1] = 1.0;
        inverse
    }
}

/// Tiles of 4×4 outputs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tiles4;

impl Tiles4 {
    const P: f64 = 0.625;
    const Q: f64 = 1.5;
}

impl Tiling<6, 4> for Tiles4 {
    fn points(self) -> [f64; 6] {
        [0.0, Self::P, -Self::P, Self::Q, -Self::Q, f64::INFINITY]
    }

    #[inline(always)]
    fn transform_input<S: Simd>(self, simd: S, d: [S::Vector; 6]) -> [S::Vector; 6] {
        let (pp, qq) = (Self::P * Self::P, Self::Q * Self::Q);
        let all = [pp * qq, -(pp + qq)];
        let zero = polynomial2(simd, all, [d[0], d[2], d[4]]);
        let infinity = polynomial2(simd, all, [d[1], d[3], d[5]]);
        let p = plus_minus(
            simd,
            polynomial1(simd, -qq, [d[2], d[4]]),
            polynomial1(simd, -qq, [d[1], d[3]]),
            Self::P,
        );
        let q = plus_minus(
            simd,
            polynomial1(simd, -pp, [d[2], d[4]]),
            polynomial1(simd, -pp, [d[1], d[3]]),
            Self::Q,
        );
        [zero, p[0], p[1], q[0], q[1], infinity]
    }

    #[inline(always)]
    fn transform_output<S: Simd>(self, simd: S, m: [S::Vector; 6]) -> [S::Vector; 4] {
        let points = [Self::P, Self::Q];
        let even = [simd.add(m[1], m[2]), simd.add(m[3], m[4])];
        let odd = [simd.sub(m[1], m[2]), simd.sub(m[3], m[4])];
        [
            simd.add(m[0], simd.add(even[0], even[1])),
            powers2(simd, odd, points, 1),
            powers2(simd, even, points, 2),
            simd.add(powers2(simd, odd, points, 3), m[5]),
        ]
    }

    #[inline(always)]
    fn spread_output<S: Simd>(self, simd: S, g: [S::Vector; 4]) -> [S::Vector; 6] {
        let p = spread2(simd, g, Self::P);
        let q = spread2(simd, g, Self::Q);
        [g[0], p[0], p[1], q[0], q[1], g[3]]
    }
}

/// Tiles of 6×6 outputs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tiles6;

impl Tiles6 {
    const P: f64 = 0.5;
    const Q: f64 = 1.0;
    const R: f64 = 2.0;
}

impl Tiling<8, 6> for Tiles6 {
    fn points(self) -> [f64; 8] {
        [0.0, Self::P, -Self::P, Self::Q, -Self::Q, Self::R, -Self::R, f64::INFINITY]
    }

    #[inline(always)]
    fn transform_input<S: Simd>(self, simd: S, d: [S::Vector; 8]) -> [S::Vector; 8] {
        let (pp, qq, rr) = (Self::P * Self::P, Self::Q * Self::Q, Self::R * Self::R);
        let all = [-pp * qq * rr, pp * qq + pp * rr + qq * rr, -(pp + qq + rr)];
        let zero = polynomial3(simd, all, [d[0], d[2], d[4], d[6]]);
        let infinity = polynomial3(simd, all, [d[1], d[3], d[5], d[7]]);
        let (even, odd) = ([d[2], d[4], d[6]], [d[1], d[3], d[5]]);
        let without = [qq * rr, -(qq + rr)];
        let p = plus_minus(
            simd,
            polynomial2(simd, without, even),
            polynomial2(simd, without, odd),
            Self::P,
        );
        let without = [pp * rr, -(pp + rr)];
        let q = plus_minus(
            simd,
            polynomial2(simd, without, even),
            polynomial2(simd, without, odd),
            Self::Q,
        );
        let without = [pp * qq, -(pp + qq)];
        let r = plus_minus(
            simd,
            polynomial2(simd, without, even),
            polynomial2(simd, without, odd),
            Self::R,
        );
        [zero, p[0], p[1], q[0], q[1], r[0], r[1], infinity]
    }

    #[inline(always)]
    fn transform_output<S: Simd>(self, simd: S, m: [S::Vector; 8]) -> [S::Vector; 6] {
        let points = [Self::P, Self::Q, Self::R];
        let even = [simd.add(m[1], m[2]), simd.add(m[3], m[4]), simd.add(m[5], m[6])];
        let odd = [simd.sub(m[1], m[2]), simd.sub(m[3], m[4]), simd.sub(m[5], m[6])];
        [
            simd.add(simd.add(m[0], even[0]), simd.add(even[1], even[2])),
            powers3(simd, odd, points, 1),
            powers3(simd, even, points, 2),
            powers3(simd, odd, points, 3),
            powers3(simd, even, points, 4),
            simd.add(powers3(simd, odd, points, 5), m[7]),
        ]
    }

    #[inline(always)]
    fn spread_output<S: Simd>(self, simd: S, g: [S::Vector; 6]) -> [S::Vector; 8] {
        let p = spread3(simd, g, Self::P);
        let q = spread3(simd, g, Self::Q);
        let r = spread3(simd, g, Self::R);
        [g[0], p[0], p[1], q[0], q[1], r[0], r[1], g[5]]
    }
}

/// The value of a polynomial with coefficients `g` at a point and its negative.
#[inline(always)]
fn spread2<S: Simd>(simd: S, g: [S::Vector; 4], point: f64) -> [S::Vector; 2] {
    let square = point * point;
    let even = polynomial1(simd, square, [g[2], g[0]]);
    let odd = polynomial1(simd, square, [g[3], g[1]]);
    plus_minus(simd, even, odd, point)
}

/// The same for six coefficients.
#[inline(always)]
fn spread3<S: Simd>(simd: S, g: [S::Vector; 6], point: f64) -> [S::Vector; 2] {
    let square = point * point;
    let even = polynomial1(simd, square, [polynomial1(simd, square, [g[4], g[2]]), g[0]]);
    let odd = polynomial1(simd, square, [polynomial1(simd, square, [g[5], g[3]]), g[1]]);
    plus_minus(simd, even, odd, point)
}

/// `even ± point · odd`.
#[inline(always)]
fn plus_minus<S: Simd>(simd: S, even: S::Vector, odd: S::Vector, point: f64) -> [S::Vector; 2] {
    [
        simd.mul_add(odd, simd.splat(point as f32), even),
        simd.mul_add(odd, simd.splat(-point as f32), even),
    ]
}

/// `c · d₀ + d₁`.
#[inline(always)]
fn polynomial1<S: Simd>(simd: S, c: f64, d: [S::Vector; 2]) -> S::Vector {
    simd.mul_add(d[0], simd.splat(c as f32), d[1])
}

/// `c₀ · d₀ + c₁ · d₁ + d₂`.
#[inline(always)]
fn polynomial2<S: Simd>(simd: S, c: [f64; 2], d: [S::Vector; 3]) -> S::Vector {
    simd.mul_add(d[0], simd.splat(c[0] as f32), polynomial1(simd, c[1], [d[1], d[2]]))
}

/// `c₀ · d₀ + c₁ · d₁ + c₂ · d₂ + d₃`.
#[inline(always)]
fn polynomial3<S: Simd>(simd: S, c: [f64; 3], d: [S::Vector; 4]) -> S::Vector {
    let rest = polynomial2(simd, [c[1], c[2]], [d[1], d[2], d[3]]);
    simd.mul_add(d[0], simd.splat(c[0] as f32), rest)
}

/// `p₀ⁿ · v₀ + p₁ⁿ · v₁`.
#[inline(always)]
fn powers2<S: Simd>(simd: S, v: [S::Vector; 2], p: [f64; 2], n: i32) -> S::Vector {
    let first = simd.mul(v[0], simd.splat(p[0].powi(n) as f32));
    simd.mul_add(v[1], simd.splat(p[1].powi(n) as f32), first)
}

/// `p₀ⁿ · v₀ + p₁ⁿ · v₁ + p₂ⁿ · v₂`.
#[inline(always)]
fn powers3<S: Simd>(simd: S, v: [S::Vector; 3], p: [f64; 3], n: i32) -> S::Vector {
    let first = powers2(simd, [v[0], v[1]], [p[0], p[1]], n);
    simd.mul_add(v[2], simd.splat(p[2].powi(n) as f32), first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::support::cpu::simd::Portable;
    use crate::ops::support::testing::Random;

    /// One line of outputs, against the sum that defines it.
    fn check<const N: usize, const M: usize>(tiling: impl Tiling<N, M>, tolerance: f32) {
        let mut random = Random::new(29);
        for _ in 0..20 {
            let inputs: [f32; N] = std::array::from_fn(|_| random.range(-1.0, 1.0));
            let weights: [f32; 3] = std::array::from_fn(|_| random.range(-1.0, 1.0));
            let transformed = tiling.transform_input(Portable, inputs.map(|v| Portable.splat(v)));
            let matrix = tiling.weight_transform();
            let products = std::array::from_fn(|i| {
                let weight = (0..3).map(|k| matrix[i][k] * f64::from(weights[k])).sum::<f64>();
                Portable.mul(transformed[i], Portable.splat(weight as f32))
            });
            let outputs = tiling.transform_output(Portable, products);
            for (i, output) in outputs.into_iter().enumerate() {
                let expected = (0..3).map(|k| inputs[i + k] * weights[k]).sum::<f32>();
                assert!((output[0] - expected).abs() < tolerance, "{i}: {output:?}, {expected}");
            }
        }
    }

    /// `⟨Aᵀ · products, gradients⟩ = ⟨products, A · gradients⟩`.
    fn check_adjoint<const N: usize, const M: usize>(tiling: impl Tiling<N, M>) {
        let mut random = Random::new(37);
        for _ in 0..20 {
            let products: [f32; N] = std::array::from_fn(|_| random.range(-1.0, 1.0));
            let gradients: [f32; M] = std::array::from_fn(|_| random.range(-1.0, 1.0));
            let outputs = tiling.transform_output(Portable, products.map(|v| Portable.splat(v)));
            let spread = tiling.spread_output(Portable, gradients.map(|v| Portable.splat(v)));
            let a: f32 = outputs.iter().zip(gradients).map(|(o, g)| o[0] * g).sum();
            let b: f32 = spread.iter().zip(products).map(|(s, p)| s[0] * p).sum();
            assert!((a - b).abs() < 1e-4, "{a} {b}");
        }
    }

    #[test]
    fn gradients_are_spread_by_the_adjoint() {
        check_adjoint(Tiles4);
        check_adjoint(Tiles6);
    }

    #[test]
    fn transforms_are_a_filter() {
        check(Tiles4, 1e-5);
        check(Tiles6, 2e-5);
    }
}
