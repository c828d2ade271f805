//! Memory of the CPU kernels: outputs that are written once, and scratch that is kept.

use std::cell::Cell;
use std::mem::MaybeUninit;

use rayon::prelude::*;

use super::element::{Element, Pointer, Term};

/// One cache line, so that vectors of packed data never straddle two.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

/// Values in a cache line.
const LINE: usize = 16;

/// Values that start at a cache line, zero at first.
#[derive(Debug, Default)]
pub(crate) struct AlignedBuffer {
    lines: Vec<Line>,
}

impl AlignedBuffer {
    /// A buffer of `n` zeros.
    pub fn zeros(n: usize) -> Self {
        let mut lines = Vec::<Line>::with_capacity(n.div_ceil(LINE));
        lines.resize(n.div_ceil(LINE), Line([0.0; LINE]));
        Self { lines }
    }

    /// A buffer of `parts` parts with `n` values each, a whole number of cache lines or a single part. All threads fill
    /// parts, which are zeros at first: the one that fills a part also waits for its memory.
    pub fn filled(parts: usize, n: usize, fill: impl Fn(usize, &mut [f32]) + Sync) -> Self {
        if !n.is_multiple_of(LINE) || n == 0 {
            let mut buffer = Self::zeros(parts * n);
            let chunks = buffer.values_mut().chunks_exact_mut(n.max(1)).take(parts);
            chunks.enumerate().for_each(|(part, values)| fill(part, values));
            return buffer;
        }
        let mut lines = Vec::<Line>::with_capacity(parts * n / LINE);
        let places = &mut lines.spare_capacity_mut()[..parts * n / LINE];
        places.par_chunks_exact_mut(n / LINE).with_max_len(1).enumerate().for_each(
            |(part, places)| {
                // SAFETY: zero bytes are lines of zeros; a `Line` is 16 f32 without padding.
                let values = unsafe {
                    places.as_mut_ptr().write_bytes(0, places.len());
                    std::slice::from_raw_parts_mut(places.as_mut_ptr().cast(), n)
                };
                fill(part, values);
            },
        );
        // SAFETY: the parts cover all lines, and each has been written.
        unsafe { lines.set_len(parts * n / LINE) };
        Self { lines }
    }

    /// The values, up to a whole cache line.
    pub fn values(&self) -> &[f32] {
        // SAFETY: a `Line` is 16 f32 without padding.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), 16 * self.lines.len()) }
    }

    /// The values, up to a whole cache line.
    pub fn values_mut(&mut self) -> &mut [f32] {
        let n = 16 * self.lines.len();
        // SAFETY: a `Line` is 16 f32 without padding, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), n) }
    }
}

/// Numbers of a kernel as values that need not be f32.
pub(crate) fn as_terms<E, T: Term<E>>(values: &mut [f32]) -> &mut [T] {
    let n = size_of_val(values) / size_of::<T>();
    // SAFETY: a term is a number without padding, at most as large and as aligned as an f32.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), n) }
}

/// Scratch that belongs to this thread, until it is dropped. What it holds at first is left from earlier use.
///
/// A thread keeps the largest scratch that it was asked for: fresh memory of this size costs as much as the work on
/// it, because the system clears each page. This is a value rather than a function that takes a closure, because a
/// closure would not be compiled with the instructions of the [`Job`](super::simd::Job) around it.
#[derive(Debug)]
pub(crate) struct Scratch {
    buffer: AlignedBuffer,
    len: usize,
}

thread_local! {
    static KEPT: Cell<AlignedBuffer> = const { Cell::new(AlignedBuffer { lines: Vec::new() }) };
}

impl Scratch {
    /// Scratch of `len` values.
    pub fn new(len: usize) -> Self {
        let mut buffer = KEPT.take();
        if buffer.values().len() < len {
            buffer = AlignedBuffer::zeros(len);
        }
        Self { buffer, len }
    }

    /// The values.
    pub fn values(&mut self) -> &mut [f32] {
        &mut self.buffer.values_mut()[..self.len]
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        KEPT.set(std::mem::take(&mut self.buffer));
    }
}

/// Memory of an output, which tasks fill side by side.
#[derive(Debug)]
pub(crate) struct Output<E> {
    values: Vec<E>,
    len: usize,
}

impl<E: Element> Output<E> {
    /// Memory for `len` values, not initialized.
    pub fn new(len: usize) -> Self {
        let values = Vec::<E>::with_capacity(len);
        Self { values, len }
    }

    /// Where the values belong.
    pub fn pointer(&mut self) -> Pointer {
        E::pointer(self.values.as_mut_ptr())
    }

    /// The places of the values.
    pub fn places(&mut self) -> &mut [MaybeUninit<E>] {
        &mut self.values.spare_capacity_mut()[..self.len]
    }

    /// The values.
    ///
    /// # Safety
    /// All of them have been written.
    pub unsafe fn finish(mut self) -> Vec<E> {
        // SAFETY: the capacity is at least `len`, and the caller vouches for the values.
        unsafe { self.values.set_len(self.len) };
        self.values
    }
}
