//! Vectors of NEON.
//!
//! Common to all `unsafe` arithmetic here: `self` is the proof that the processor has the instructions.

use std::arch::aarch64::*;

use half::bf16;

use super::{Job, RowsJob, Simd};
use crate::ops::support::cpu::element::QUIET_NAN;
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
    fn with_rows<J: RowsJob>(self, rows: usize, job: J) {
        if rows > 6 { job.run::<_, 12>(self) } else { job.run::<_, 6>(self) }
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
    fn at_most(self, a: float32x4_t, limit: f32) -> float32x4_t {
        // SAFETY: as for `relu`.
        unsafe { vminq_f32(a, vdupq_n_f32(limit)) }
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
    unsafe fn load_bf16(self, from: *const bf16) -> float32x4_t {
        // SAFETY: `self` is the proof, the caller vouches for the numbers. A bf16 is the upper half of an f32.
        unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16, value: float32x4_t) {
        // SAFETY: as for `load_bf16`. Adding half of the last place, less one where that place is even, rounds ties to
        // even; a comparison with itself finds NaN.
        unsafe {
            let bits = vreinterpretq_u32_f32(value);
            let even = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
            let rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), even);
            let halves = vshrq_n_u32::<16>(rounded);
            let nan = vdupq_n_u32(u32::from(QUIET_NAN));
            vst1_u16(to.cast(), vmovn_u32(vbslq_u32(vceqq_f32(value, value), halves, nan)));
        }
    }
}
