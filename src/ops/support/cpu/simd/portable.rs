//! Vectors as arrays, which compilers turn into whatever instructions the target always has.

use half::bf16;

use super::{Job, RowsJob, Simd};
use crate::ops::support::cpu::element::Element;

const LANES: usize = 4;

/// The instruction set that every machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Portable;

impl Simd for Portable {
    type Vector = [f32; LANES];

    const LANES: usize = LANES;
    const TILE_ROWS: usize = 4;

    fn run<J: Job>(self, job: J) -> J::Output {
        job.run(self)
    }

    #[inline(always)]
    fn with_rows<J: RowsJob>(self, rows: usize, job: J) {
        if rows > 2 { job.run::<_, 4>(self) } else { job.run::<_, 2>(self) }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Vector {
        [value; LANES]
    }

    #[inline(always)]
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        std::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        std::array::from_fn(|i| a[i] - b[i])
    }

    #[inline(always)]
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        std::array::from_fn(|i| a[i] * b[i])
    }

    // Two roundings: without the instruction, `f32::mul_add` is a function call.
    #[inline(always)]
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    fn relu(self, a: Self::Vector) -> Self::Vector {
        a.map(|v| if v < 0.0 { 0.0 } else { v })
    }

    #[inline(always)]
    fn at_most(self, a: Self::Vector, limit: f32) -> Self::Vector {
        a.map(|v| if v > limit { limit } else { v })
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Self::Vector {
        // SAFETY: the caller vouches for `LANES` values; an array of f32 is aligned like an f32.
        unsafe { from.cast::<Self::Vector>().read() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: Self::Vector) {
        // SAFETY: the caller vouches for `LANES` values; an array of f32 is aligned like an f32.
        unsafe { to.cast::<Self::Vector>().write(value) }
    }

    #[inline(always)]
    unsafe fn load_first(self, from: *const f32, n: usize) -> Self::Vector {
        // SAFETY: only the `n` values that the caller vouches for are read.
        std::array::from_fn(|i| if i < n { unsafe { from.add(i).read() } } else { 0.0 })
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const bf16) -> Self::Vector {
        // SAFETY: the caller vouches for `LANES` numbers.
        unsafe { from.cast::<[bf16; LANES]>().read() }.map(Element::widen)
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16, value: Self::Vector) {
        // SAFETY: the caller vouches for `LANES` numbers.
        unsafe { to.cast::<[bf16; LANES]>().write(value.map(Element::narrow)) }
    }
}
