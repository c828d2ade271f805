//! Types of the numbers in features and weights. All arithmetic is in f32.

use std::fmt::Debug;
use std::marker::PhantomData;

use candle_core::WithDType;
use half::bf16;

use super::simd::Simd;

/// A number of features or weights.
pub(crate) trait Element:
    WithDType + Copy + Default + Debug + Send + Sync + 'static
{
    /// What a kernel for pairs has in place of this; itself where there is none.
    type Packed: Term<Self>;

    /// Widens it; exact.
    fn widen(self) -> f32;

    /// Rounds to nearest, ties to even.
    fn narrow(value: f32) -> Self;

    /// A shared place of such numbers.
    fn pointer(place: *const Self) -> Pointer;

    /// Reads a vector.
    ///
    /// # Safety
    /// [`Simd::LANES`] numbers can be read at `from`.
    unsafe fn load<S: Simd>(simd: S, from: *const Self) -> S::Vector;

    /// Reads `n` numbers; the others are zero.
    ///
    /// # Safety
    /// `n` numbers, at most [`Simd::LANES`], can be read at `from`.
    unsafe fn load_first<S: Simd>(simd: S, from: *const Self, n: usize) -> S::Vector;

    /// Writes a vector.
    ///
    /// # Safety
    /// [`Simd::LANES`] numbers can be written at `to`.
    unsafe fn store<S: Simd>(simd: S, to: *mut Self, value: S::Vector);
}

impl Element for f32 {
    type Packed = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        value
    }

    fn pointer(place: *const Self) -> Pointer {
        Pointer::F32(place.cast_mut())
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const Self) -> S::Vector {
        // SAFETY: by the caller's promise.
        unsafe { simd.load(from) }
    }

    #[inline(always)]
    unsafe fn load_first<S: Simd>(simd: S, from: *const Self, n: usize) -> S::Vector {
        // SAFETY: by the caller's promise.
        unsafe { simd.load_first(from, n) }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(simd: S, to: *mut Self, value: S::Vector) {
        // SAFETY: by the caller's promise.
        unsafe { simd.store(to, value) }
    }
}

impl Element for bf16 {
    type Packed = bf16;

    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        Self::from_bits(if value.is_nan() { QUIET_NAN } else { rounded as u16 })
    }

    fn pointer(place: *const Self) -> Pointer {
        Pointer::Bf16(place.cast_mut())
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, from: *const Self) -> S::Vector {
        // SAFETY: by the caller's promise.
        unsafe { simd.load_bf16(from) }
    }

    #[inline(always)]
    unsafe fn load_first<S: Simd>(simd: S, from: *const Self, n: usize) -> S::Vector {
        let mut values = [bf16::ZERO; MAX_LANES];
        // SAFETY: the caller vouches for `n` numbers, at most as many as the array has.
        unsafe {
            values.as_mut_ptr().copy_from_nonoverlapping(from, n);
            simd.load_bf16(values.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(simd: S, to: *mut Self, value: S::Vector) {
        // SAFETY: by the caller's promise.
        unsafe { simd.store_bf16(to, value) }
    }
}

/// What any NaN becomes.
pub(crate) const QUIET_NAN: u16 = 0x7fc0;

/// The most lanes that a vector has.
pub(crate) const MAX_LANES: usize = 16;

/// A place of numbers whose type is found out at run time, so that kernels are not compiled once for each.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pointer {
    F32(*mut f32),
    Bf16(*mut bf16),
}

// SAFETY: it is only a place; each use of it is unsafe by itself, and has to make sure that places don't overlap.
unsafe impl Send for Pointer {}
// SAFETY: as for `Send`.
unsafe impl Sync for Pointer {}

impl Pointer {
    /// The place `n` numbers on.
    ///
    /// # Safety
    /// It is inside of the same allocation, or at its end.
    #[inline(always)]
    pub unsafe fn add(self, n: usize) -> Self {
        // SAFETY: by the caller's promise.
        unsafe {
            match self {
                Self::F32(place) => Self::F32(place.add(n)),
                Self::Bf16(place) => Self::Bf16(place.add(n)),
            }
        }
    }

    /// Reads one number.
    ///
    /// # Safety
    /// It can be read.
    #[inline(always)]
    pub unsafe fn read(self) -> f32 {
        // SAFETY: by the caller's promise.
        unsafe {
            match self {
                Self::F32(place) => place.read(),
                Self::Bf16(place) => place.read().widen(),
            }
        }
    }

    /// Writes one number.
    ///
    /// # Safety
    /// It can be written.
    #[inline(always)]
    pub unsafe fn write(self, value: f32) {
        // SAFETY: by the caller's promise.
        unsafe {
            match self {
                Self::F32(place) => place.write(value),
                Self::Bf16(place) => place.write(bf16::narrow(value)),
            }
        }
    }
}

/// Numbers whose type is found out at run time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Values<'a> {
    pub pointer: Pointer,
    pub len: usize,
    borrowed: PhantomData<&'a [u8]>,
}

impl<'a> Values<'a> {
    /// The numbers of a slice.
    pub fn of<E: Element>(values: &'a [E]) -> Self {
        let pointer = E::pointer(values.as_ptr());
        Self { pointer, len: values.len(), borrowed: PhantomData }
    }
}

/// Numbers as a kernel wants them, made from numbers as they are stored.
pub(crate) trait Term<E>: Copy + Default + Send + Sync + 'static {
    /// Copies all of `from` to the start of `to`, which has at least [`Simd::LANES`] more numbers; some of these are
    /// overwritten.
    fn copy<S: Simd>(simd: S, from: &[E], to: &mut [Self]);
}

impl<E: Element> Term<E> for f32 {
    #[inline(always)]
    fn copy<S: Simd>(simd: S, from: &[E], to: &mut [Self]) {
        assert!(to.len() >= from.len() + S::LANES);
        let n = from.len();
        let (from, to) = (from.as_ptr(), to.as_mut_ptr());
        let whole = n / S::LANES * S::LANES;
        // SAFETY: reads stay below `n`; writes end at most `LANES` after it, which was asserted to be inside of `to`.
        unsafe {
            for i in (0..whole).step_by(S::LANES) {
                simd.store(to.add(i), E::load(simd, from.add(i)));
            }
            if whole < n {
                simd.store(to.add(whole), E::load_first(simd, from.add(whole), n - whole));
            }
        }
    }
}

impl Term<bf16> for bf16 {
    #[inline(always)]
    fn copy<S: Simd>(_: S, from: &[bf16], to: &mut [Self]) {
        const BLOCK: usize = 16;
        let n = from.len();
        if n < BLOCK {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            return;
        }
        assert!(to.len() >= n);
        let (from, to) = (from.as_ptr().cast::<[u16; BLOCK]>(), to.as_mut_ptr().cast());
        // SAFETY: reads and writes stay below `n`; the last block may cover some of the one before it again.
        unsafe {
            let copy = |place: usize| {
                let block = from.cast::<u16>().add(place).cast::<[u16; BLOCK]>();
                let to: *mut u16 = to;
                to.add(place).cast::<[u16; BLOCK]>().write_unaligned(block.read_unaligned());
            };
            (0..n / BLOCK).for_each(|block| copy(block * BLOCK));
            copy(n - BLOCK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::support::cpu::simd::Job;
    use crate::ops::support::isa::Isa;
    use crate::ops::support::testing::Random;

    /// Widens and narrows a vector at a time.
    struct RoundTrip<'a>(&'a [f32], &'a mut [bf16], &'a mut [f32]);

    impl Job for RoundTrip<'_> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            for i in (0..self.0.len()).step_by(S::LANES) {
                // SAFETY: all have the same length, a multiple of any number of lanes.
                unsafe {
                    bf16::store(
                        simd,
                        self.1.as_mut_ptr().add(i),
                        simd.load(self.0.as_ptr().add(i)),
                    );
                    simd.store(
                        self.2.as_mut_ptr().add(i),
                        bf16::load(simd, self.1.as_ptr().add(i)),
                    );
                }
            }
        }
    }

    #[test]
    fn every_instruction_set_rounds_like_the_definition() {
        let mut random = Random::new(3);
        let mut values: Vec<f32> = (0..1024).map(|_| random.range(-9.0, 9.0)).collect();
        let ties = [0x3f80_8000, 0x3f81_8000, 0x3f80_7fff, 0x7f7f_ffff, 0x8000_0000, 0x7f80_0001];
        values[..6].copy_from_slice(&ties.map(f32::from_bits));
        values[6..9].copy_from_slice(&[f32::NEG_INFINITY, f32::NAN, f32::from_bits(0xffff_ffff)]);
        for isa in Isa::available() {
            let mut narrow = vec![bf16::ZERO; values.len()];
            let mut wide = vec![0.0; values.len()];
            isa.run(RoundTrip(&values, &mut narrow, &mut wide));
            for ((value, narrow), wide) in values.iter().zip(&narrow).zip(&wide) {
                let expected = bf16::from_f32(*value);
                assert_eq!(narrow.is_nan(), value.is_nan(), "{value}");
                assert!(value.is_nan() || *narrow == expected, "{value}: {narrow}, {}", isa.name());
                assert_eq!(bf16::narrow(*value).to_bits(), narrow.to_bits());
                assert!(wide.is_nan() || *wide == expected.to_f32());
                assert_eq!(narrow.widen().to_bits(), wide.to_bits());
            }
        }
    }

    #[test]
    fn copies_are_whole() {
        let from: Vec<bf16> = (0..70).map(|i| bf16::from_f32(i as f32)).collect();
        for n in 0..from.len() {
            let mut to = vec![bf16::ONE; 100];
            <bf16 as Term<bf16>>::copy(
                crate::ops::support::cpu::simd::Portable,
                &from[..n],
                &mut to,
            );
            assert_eq!(to[..n], from[..n]);
        }
    }
}
