//! Vectors of f32, one implementation per instruction set.
//!
//! Everything here is inlined into [`Simd::run`] of an instruction set, the only place that switches its instructions on. A
//! function that takes a [`Simd`] value must therefore be `#[inline(always)]` all the way up to the [`Job`], and must not
//! touch vectors in closures: these are functions of their own, which the compiler may leave without the instructions
//! (Winograd's transforms took three times as long).

#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use half::bf16;

pub(crate) use portable::Portable;

/// Something to compute with whatever vectors there are.
pub(crate) trait Job {
    type Output;

    /// Computes it. Implementations are `#[inline(always)]`.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Something to compute with a number of rows that the compiler knows.
pub(crate) trait RowsJob {
    /// Computes it. Implementations are `#[inline(always)]`.
    fn run<S: Simd, const ROWS: usize>(self, simd: S);
}

/// Arithmetic on vectors of [`Self::LANES`] f32.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    type Vector: Copy;

    /// Values in a vector.
    const LANES: usize;
    /// Rows of the tile of sums that the product kernel keeps in registers.
    const TILE_ROWS: usize;

    /// Runs a job with these instructions switched on.
    fn run<J: Job>(self, job: J) -> J::Output;

    /// Runs a job for the least number of rows that is compiled and not below `rows`: half of [`Self::TILE_ROWS`], or
    /// all of them.
    fn with_rows<J: RowsJob>(self, rows: usize, job: J);

    fn splat(self, value: f32) -> Self::Vector;
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a · b + c`, rounded once where the instruction set can.
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// Zero where `a` is negative; NaN stays NaN.
    fn relu(self, a: Self::Vector) -> Self::Vector;
    /// `limit` where `a` is above it; NaN stays NaN.
    fn at_most(self, a: Self::Vector, limit: f32) -> Self::Vector;

    /// Reads a vector.
    ///
    /// # Safety
    /// [`Self::LANES`] values can be read at `from`.
    unsafe fn load(self, from: *const f32) -> Self::Vector;

    /// Writes a vector.
    ///
    /// # Safety
    /// [`Self::LANES`] values can be written at `to`.
    unsafe fn store(self, to: *mut f32, value: Self::Vector);

    /// Reads `n` values; the others are zero.
    ///
    /// # Safety
    /// `n` values, at most [`Self::LANES`], can be read at `from`.
    unsafe fn load_first(self, from: *const f32, n: usize) -> Self::Vector;

    /// Reads a vector of bf16.
    ///
    /// # Safety
    /// [`Self::LANES`] numbers can be read at `from`.
    unsafe fn load_bf16(self, from: *const bf16) -> Self::Vector;

    /// Writes a vector, rounded to bf16: to nearest, ties to even. Any NaN becomes [`QUIET_NAN`](super::element::QUIET_NAN).
    ///
    /// # Safety
    /// [`Self::LANES`] numbers can be written at `to`.
    unsafe fn store_bf16(self, to: *mut bf16, value: Self::Vector);

    /// Asks for the cache line at `place` to be fetched. Any place will do; it is only a hint.
    #[inline(always)]
    fn prefetch(self, place: *const f32) {
        let _ = place;
    }

    /// Reads `n` values, fast if they are a whole vector.
    ///
    /// # Safety
    /// As for [`load_first`](Self::load_first).
    #[inline(always)]
    unsafe fn load_up_to(self, from: *const f32, n: usize) -> Self::Vector {
        // SAFETY: by the caller's promise.
        unsafe { if n == Self::LANES { self.load(from) } else { self.load_first(from, n) } }
    }
}
