//! Vectors of AVX2 with FMA, and of AVX-512.
//!
//! Common to all `unsafe` arithmetic here: `self` is the proof that the processor has the instructions.

use std::arch::x86_64::*;

use super::{Job, Simd};
use crate::ops::support::isa::{Avx2, Avx512};

impl Simd for Avx512 {
    type Vector = __m512;

    const LANES: usize = 16;
    // 28 sums, 2 vectors of weights and 1 broadcast value fill the 32 registers.
    const TILE_ROWS: usize = 14;

    #[inline]
    fn run<J: Job>(self, job: J) -> J::Output {
        #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
        fn inner<J: Job>(simd: Avx512, job: J) -> J::Output {
            job.run(simd)
        }
        // SAFETY: `self` is the proof that the processor has these features.
        unsafe { inner(self, job) }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        // SAFETY: `self` is the proof.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` is the proof.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` is the proof.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` is the proof.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: `self` is the proof.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn relu(self, a: __m512) -> __m512 {
        // SAFETY: `self` is the proof. When an operand is NaN, the instruction returns the second.
        unsafe { _mm512_max_ps(_mm512_setzero_ps(), a) }
    }

    #[inline(always)]
    fn prefetch(self, place: *const f32) {
        // SAFETY: a prefetch of an invalid place does nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512 {
        // SAFETY: `self` is the proof, the caller vouches for the values; no alignment is needed.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: __m512) {
        // SAFETY: as for `load`.
        unsafe { _mm512_storeu_ps(to, value) }
    }

    #[inline(always)]
    unsafe fn load_first(self, from: *const f32, n: usize) -> __m512 {
        // SAFETY: as for `load`; masked lanes are not accessed.
        unsafe { _mm512_maskz_loadu_ps(first_lanes(n), from) }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, value: __m512, n: usize) {
        // SAFETY: as for `load`; masked lanes are not accessed.
        unsafe { _mm512_mask_storeu_ps(to, first_lanes(n), value) }
    }
}

/// A mask of the first `n` of 16 lanes.
#[inline(always)]
fn first_lanes(n: usize) -> __mmask16 {
    debug_assert!(n <= 16);
    ((1u32 << n) - 1) as __mmask16
}

impl Simd for Avx2 {
    type Vector = __m256;

    const LANES: usize = 8;
    // 12 sums, 2 vectors of weights and 1 broadcast value fit into the 16 registers.
    const TILE_ROWS: usize = 6;

    #[inline]
    fn run<J: Job>(self, job: J) -> J::Output {
        #[target_feature(enable = "avx2,fma")]
        fn inner<J: Job>(simd: Avx2, job: J) -> J::Output {
            job.run(simd)
        }
        // SAFETY: `self` is the proof that the processor has these features.
        unsafe { inner(self, job) }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m256 {
        // SAFETY: `self` is the proof.
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` is the proof.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` is the proof.
        unsafe { _mm256_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` is the proof.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: `self` is the proof.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn relu(self, a: __m256) -> __m256 {
        // SAFETY: `self` is the proof. When an operand is NaN, the instruction returns the second.
        unsafe { _mm256_max_ps(_mm256_setzero_ps(), a) }
    }

    #[inline(always)]
    fn prefetch(self, place: *const f32) {
        // SAFETY: a prefetch of an invalid place does nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m256 {
        // SAFETY: `self` is the proof, the caller vouches for the values; no alignment is needed.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: __m256) {
        // SAFETY: as for `load`.
        unsafe { _mm256_storeu_ps(to, value) }
    }

    #[inline(always)]
    unsafe fn load_first(self, from: *const f32, n: usize) -> __m256 {
        // SAFETY: as for `load`; masked lanes are not accessed.
        unsafe { _mm256_maskload_ps(from, first_lanes_of_8(n)) }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, value: __m256, n: usize) {
        // SAFETY: as for `load`; masked lanes are not accessed.
        unsafe { _mm256_maskstore_ps(to, first_lanes_of_8(n), value) }
    }
}

/// A mask of the first `n` of 8 lanes: sign bits of a window onto eight ones and eight zeros.
#[inline(always)]
fn first_lanes_of_8(n: usize) -> __m256i {
    const WINDOW: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    let start = 8 - n.min(8);
    // SAFETY: `start` is at most 8, so that eight of the 16 values follow; only functions with AVX2 call this.
    unsafe { _mm256_loadu_si256(WINDOW.as_ptr().add(start).cast()) }
}
