//! Vectors of NEON.
//!
//! Common to all `unsafe` arithmetic here: `self` is the proof that the processor has the instructions.

use std::arch::aarch64::*;

use super::{Job, Simd};
use crate::ops::support::isa::Neon;

impl Simd for Neon {
    type Vector = float32x4_t;

    const LANES: usize = 4;
    // 24 sums, 2 vectors of weights and the broadcast values fit into the 32 registers.
    const TILE_ROWS: usize = 12;

    #[inline]
    fn run<J: Job>(self, job: J) -> J::Output {
        #[target_feature(enable = "neon")]
        fn inner<J: Job>(simd: Neon, job: J) -> J::Output {
            job.run(simd)
        }
        // SAFETY: `self` is the proof that the processor has this feature.
        unsafe { inner(self, job) }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> float32x4_t {
        // SAFETY: `self` is the proof.
        unsafe { vdupq_n_f32(value) }
    }

    #[inline(always)]
    fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: `self` is the proof.
        unsafe { vaddq_f32(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: `self` is the proof.
        unsafe { vsubq_f32(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: `self` is the proof.
        unsafe { vmulq_f32(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: `self` is the proof.
        unsafe { vfmaq_f32(c, a, b) }
    }

    #[inline(always)]
    fn relu(self, a: float32x4_t) -> float32x4_t {
        // SAFETY: `self` is the proof. The instruction returns NaN when an operand is NaN.
        unsafe { vmaxq_f32(a, vdupq_n_f32(0.0)) }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> float32x4_t {
        // SAFETY: `self` is the proof, the caller vouches for the values.
        unsafe { vld1q_f32(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: float32x4_t) {
        // SAFETY: as for `load`.
        unsafe { vst1q_f32(to, value) }
    }

    #[inline(always)]
    unsafe fn load_first(self, from: *const f32, n: usize) -> float32x4_t {
        let mut values = [0.0; 4];
        for (i, value) in values.iter_mut().enumerate().take(n) {
            // SAFETY: only the `n` values that the caller vouches for are read.
            *value = unsafe { from.add(i).read() };
        }
        // SAFETY: `values` has four values.
        unsafe { self.load(values.as_ptr()) }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, value: float32x4_t, n: usize) {
        let mut values = [0.0; 4];
        // SAFETY: `values` has four values.
        unsafe { self.store(values.as_mut_ptr(), value) };
        for (i, value) in values.into_iter().enumerate().take(n) {
            // SAFETY: only the `n` values that the caller vouches for are written.
            unsafe { to.add(i).write(value) };
        }
    }
}
