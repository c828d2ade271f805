//! Vectors of AVX2 with FMA, and of AVX-512.
//!
//! Common to all `unsafe` arithmetic here: `self` is the proof that the processor has the instructions.

use std::arch::x86_64::*;

use half::bf16;

use super::{Job, RowsJob, Simd};
use crate::ops::support::cpu::element::QUIET_NAN;
use crate::ops::support::cpu::kernel::{TileArguments, multiply_pairs};
use crate::ops::support::isa::{Avx2, Avx512, Avx512Bf16};

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
    fn with_rows<J: RowsJob>(self, rows: usize, job: J) {
        if rows > 7 { job.run::<_, 14>(self) } else { job.run::<_, 7>(self) }
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
    fn at_most(self, a: __m512, limit: f32) -> __m512 {
        // SAFETY: as for `relu`.
        unsafe { _mm512_min_ps(_mm512_set1_ps(limit), a) }
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
    unsafe fn load_bf16(self, from: *const bf16) -> __m512 {
        // SAFETY: as for `load`. A bf16 is the upper half of an f32.
        unsafe {
            let halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves))
        }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16, value: __m512) {
        // SAFETY: as for `load`. Adding half of the last place, less one where that place is even, rounds ties to even.
        unsafe {
            let bits = _mm512_castps_si512(value);
            let even = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), even);
            let halves = _mm512_srli_epi32::<16>(rounded);
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value);
            let quiet = _mm512_set1_epi32(i32::from(QUIET_NAN));
            let halves = _mm512_mask_mov_epi32(halves, nan, quiet);
            _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(halves));
        }
    }
}

impl Avx512Bf16 {
    /// Multiplies a tile of pairs.
    ///
    /// # Safety
    /// As for [`Block::multiply`](crate::ops::support::cpu::kernel::Block::multiply).
    #[inline(always)]
    pub unsafe fn multiply(self, rows: usize, tile: TileArguments) {
        #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512bf16,avx2,fma")]
        unsafe fn inner<const ROWS: usize>(simd: Avx512Bf16, tile: TileArguments) {
            // SAFETY: by the caller's promises; the attribute switches the instructions on.
            unsafe { multiply_pairs::<ROWS>(simd, tile) }
        }
        // SAFETY: `self` is the proof that the processor has these features; the rest is promised by the caller.
        unsafe { if rows > 7 { inner::<14>(self, tile) } else { inner::<7>(self, tile) } }
    }

    /// `sum + a₀ · b₀ + a₁ · b₁` of pairs.
    #[inline(always)]
    pub fn dot(self, a: __m512, b: __m512, sum: __m512) -> __m512 {
        // SAFETY: `self` is the proof; both types are 512 bits.
        unsafe {
            use std::mem::transmute;
            _mm512_dpbf16_ps(
                sum,
                transmute::<__m512, __m512bh>(a),
                transmute::<__m512, __m512bh>(b),
            )
        }
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
    fn with_rows<J: RowsJob>(self, rows: usize, job: J) {
        if rows > 3 { job.run::<_, 6>(self) } else { job.run::<_, 3>(self) }
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
    fn at_most(self, a: __m256, limit: f32) -> __m256 {
        // SAFETY: as for `relu`.
        unsafe { _mm256_min_ps(_mm256_set1_ps(limit), a) }
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
    unsafe fn load_bf16(self, from: *const bf16) -> __m256 {
        // SAFETY: as for `load`. A bf16 is the upper half of an f32.
        unsafe {
            let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
        }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16, value: __m256) {
        // SAFETY: as for `load`. Adding half of the last place, less one where that place is even, rounds ties to even.
        // Packing works on both halves of the vectors by themselves, so that quarters 0 and 2 hold the result.
        unsafe {
            let bits = _mm256_castps_si256(value);
            let even = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), even);
            let halves = _mm256_srli_epi32::<16>(rounded);
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(value, value));
            let quiet = _mm256_set1_epi32(i32::from(QUIET_NAN));
            let halves = _mm256_blendv_epi8(halves, quiet, nan);
            let packed = _mm256_packus_epi32(halves, halves);
            let ordered = _mm256_permute4x64_epi64::<0b1000>(packed);
            _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(ordered));
        }
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
