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

pub(crate) use portable::Portable;

/// Something to compute with whatever vectors there are.
pub(crate) trait Job {
    type Output;

    /// Computes it. Implementations are `#[inline(always)]`.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
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

    fn splat(self, value: f32) -> Self::Vector;
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a · b + c`, rounded once where the instruction set can.
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// Zero where `a` is negative; NaN stays NaN.
    fn relu(self, a: Self::Vector) -> Self::Vector;

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

    /// Writes the first `n` values.
    ///
    /// # Safety
    /// `n` values, at most [`Self::LANES`], can be written at `to`.
    unsafe fn store_first(self, to: *mut f32, value: Self::Vector, n: usize);

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

    /// Writes the first `n` values, fast if they are a whole vector.
    ///
    /// # Safety
    /// As for [`store_first`](Self::store_first).
    #[inline(always)]
    unsafe fn store_up_to(self, to: *mut f32, value: Self::Vector, n: usize) {
        // SAFETY: by the caller's promise.
        unsafe {
            if n == Self::LANES {
                self.store(to, value);
            } else {
                self.store_first(to, value, n);
            }
        }
    }
}
