//! Tensors as they lie in a file: element types, layout, and the way into a candle tensor.

use std::borrow::Cow;
use std::fmt;

use candle_core::{DType, Device, Tensor};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;

/// Elements that one task decodes, and the size from which tasks are made.
const CHUNK: usize = 1 << 18;

/// Type of the elements of a tensor in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoredDType {
    /// 64-bit float.
    F64,
    /// 32-bit float.
    F32,
    /// 16-bit float, IEEE 754.
    F16,
    /// 16-bit float with the exponent of an `F32`.
    BF16,
    /// 64-bit signed integer.
    I64,
    /// 32-bit signed integer.
    I32,
    /// 16-bit signed integer.
    I16,
    /// 8-bit signed integer.
    I8,
    /// 64-bit unsigned integer.
    U64,
    /// 32-bit unsigned integer.
    U32,
    /// 16-bit unsigned integer.
    U16,
    /// 8-bit unsigned integer.
    U8,
    /// A byte that is 0 or not.
    Bool,
}

impl StoredDType {
    /// Bytes of one element.
    pub fn size_in_bytes(self) -> usize {
        match self {
            Self::F64 | Self::I64 | Self::U64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::BF16 | Self::I16 | Self::U16 => 2,
            Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }

    /// Whether the elements are floats, as those of all weights are.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F64 | Self::F32 | Self::F16 | Self::BF16)
    }
}

impl fmt::Display for StoredDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F64 => "f64",
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::I16 => "i16",
            Self::I8 => "i8",
            Self::U64 => "u64",
            Self::U32 => "u32",
            Self::U16 => "u16",
            Self::U8 => "u8",
            Self::Bool => "bool",
        })
    }
}

/// Where the elements of one tensor lie in their storage. Made by [`Layout::strided`] or
/// [`Layout::contiguous`], which keep every index inside the storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    shape: Vec<usize>,
    /// In elements; may be 0 along an expanded axis.
    strides: Vec<usize>,
    /// In elements.
    offset: usize,
    elements: usize,
}

impl Layout {
    /// The layout of a tensor that fills its storage in row-major order.
    ///
    /// `None` when the number of elements overflows.
    pub(super) fn contiguous(shape: Vec<usize>) -> Option<Self> {
        let elements = product(&shape)?;
        Some(Self { strides: row_major(&shape), shape, offset: 0, elements })
    }

    /// The layout of a view into a storage of `available` elements; all numbers may be hostile.
    pub(super) fn strided(
        shape: Vec<usize>,
        strides: Vec<usize>,
        offset: usize,
        available: usize,
    ) -> Result<Self, String> {
        if shape.len() != strides.len() {
            return Err(format!("its shape {shape:?} and strides {strides:?} differ in length"));
        }
        let elements =
            product(&shape).ok_or_else(|| format!("its shape {shape:?} overflows the memory"))?;
        let last = shape.iter().zip(&strides).try_fold(offset, |at, (&size, &stride)| {
            at.checked_add(size.saturating_sub(1).checked_mul(stride)?)
        });
        let inside = match last {
            Some(last) => last < available || elements == 0,
            None => false,
        };
        if !inside {
            return Err(format!(
                "its view (shape {shape:?}, strides {strides:?}, offset {offset}) reaches beyond its storage of {available} elements"
            ));
        }
        Ok(Self { shape, strides, offset, elements })
    }

    pub(super) fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub(super) fn elements(&self) -> usize {
        self.elements
    }

    fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (&size, &stride) in self.shape.iter().zip(&self.strides).rev() {
            // The stride of an axis with one element is never used, and PyTorch leaves any there.
            if size != 1 && stride != expected {
                return false;
            }
            expected *= size;
        }
        true
    }
}

fn product(shape: &[usize]) -> Option<usize> {
    // An axis of length 0 must not hide an overflow of the others from later arithmetic.
    let nonzero = shape.iter().try_fold(1usize, |all, &size| all.checked_mul(size.max(1)))?;
    nonzero.checked_mul(8)?;
    Some(if shape.contains(&0) { 0 } else { nonzero })
}

fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis].max(1);
    }
    strides
}

/// Decodes a tensor from the bytes of its storage, straight into the buffer of the result.
///
/// `storage` has at least the elements that the layout was made for.
pub(super) fn decode(
    storage: &[u8],
    stored: StoredDType,
    layout: &Layout,
    dtype: DType,
    device: &Device,
) -> candle_core::Result<Tensor> {
    let shape = layout.shape.as_slice();
    match dtype {
        DType::F32 => Tensor::from_vec(decode_vec::<f32>(storage, stored, layout), shape, device),
        DType::F16 => Tensor::from_vec(decode_vec::<f16>(storage, stored, layout), shape, device),
        DType::BF16 => Tensor::from_vec(decode_vec::<bf16>(storage, stored, layout), shape, device),
        DType::F64 => Tensor::from_vec(decode_vec::<f64>(storage, stored, layout), shape, device),
        DType::I64 => Tensor::from_vec(decode_vec::<i64>(storage, stored, layout), shape, device),
        DType::I32 => Tensor::from_vec(decode_vec::<i32>(storage, stored, layout), shape, device),
        DType::U32 => Tensor::from_vec(decode_vec::<u32>(storage, stored, layout), shape, device),
        DType::U8 => Tensor::from_vec(decode_vec::<u8>(storage, stored, layout), shape, device),
        other => Err(candle_core::Error::UnsupportedDTypeForOp(other, "checkpoint")),
    }
}

/// The little-endian bytes of a tensor in row-major order; borrowed where they lie so in the file.
fn row_major_bytes<'a>(storage: &'a [u8], stored: StoredDType, layout: &Layout) -> Cow<'a, [u8]> {
    let size = stored.size_in_bytes();
    if layout.is_contiguous() {
        return Cow::Borrowed(contiguous_bytes(storage, size, layout));
    }
    let mut out = Vec::with_capacity(layout.elements * size);
    for_each_run(layout, |start, count, stride| {
        for index in 0..count {
            let at = (start + index * stride) * size;
            out.extend_from_slice(&storage[at..at + size]);
        }
    });
    Cow::Owned(out)
}

fn contiguous_bytes<'a>(storage: &'a [u8], size: usize, layout: &Layout) -> &'a [u8] {
    // An empty tensor may have an offset beyond its storage; nothing of it is read.
    match layout.elements {
        0 => &[],
        elements => &storage[layout.offset * size..(layout.offset + elements) * size],
    }
}

/// The little-endian bytes of a tensor in row-major order, its elements converted to `wanted`: its own
/// type, or a float.
pub(super) fn converted_bytes<'a>(
    storage: &'a [u8],
    stored: StoredDType,
    layout: &Layout,
    wanted: StoredDType,
) -> Cow<'a, [u8]> {
    match wanted {
        _ if wanted == stored => row_major_bytes(storage, stored, layout),
        StoredDType::F64 => bytes_as::<f64>(storage, stored, layout),
        StoredDType::F16 => bytes_as::<f16>(storage, stored, layout),
        StoredDType::BF16 => bytes_as::<bf16>(storage, stored, layout),
        _ => bytes_as::<f32>(storage, stored, layout),
    }
}

fn bytes_as<T: Target>(storage: &[u8], stored: StoredDType, layout: &Layout) -> Cow<'static, [u8]> {
    let mut out = Vec::with_capacity(layout.elements * size_of::<T>());
    for element in decode_vec::<T>(storage, stored, layout) {
        element.push_le(&mut out);
    }
    Cow::Owned(out)
}

fn decode_vec<T: Target>(storage: &[u8], stored: StoredDType, layout: &Layout) -> Vec<T> {
    match stored {
        StoredDType::F64 => decode_as::<f64, T>(storage, layout),
        StoredDType::F32 => decode_as::<f32, T>(storage, layout),
        StoredDType::F16 => decode_as::<f16, T>(storage, layout),
        StoredDType::BF16 => decode_as::<bf16, T>(storage, layout),
        StoredDType::I64 => decode_as::<i64, T>(storage, layout),
        StoredDType::I32 => decode_as::<i32, T>(storage, layout),
        StoredDType::I16 => decode_as::<i16, T>(storage, layout),
        StoredDType::I8 => decode_as::<i8, T>(storage, layout),
        StoredDType::U64 => decode_as::<u64, T>(storage, layout),
        StoredDType::U32 => decode_as::<u32, T>(storage, layout),
        StoredDType::U16 => decode_as::<u16, T>(storage, layout),
        StoredDType::U8 => decode_as::<u8, T>(storage, layout),
        StoredDType::Bool => decode_as::<Flag, T>(storage, layout),
    }
}

fn decode_as<S: Source, T: Target>(storage: &[u8], layout: &Layout) -> Vec<T> {
    if layout.is_contiguous() {
        return decode_run::<S, T>(contiguous_bytes(storage, S::SIZE, layout));
    }
    let mut out = Vec::with_capacity(layout.elements);
    for_each_run(layout, |start, count, stride| {
        out.extend((0..count).map(|index| {
            let at = (start + index * stride) * S::SIZE;
            S::read(&storage[at..at + S::SIZE]).cast::<T>()
        }));
    });
    out
}

fn decode_run<S: Source, T: Target>(bytes: &[u8]) -> Vec<T> {
    let elements = bytes.len() / S::SIZE;
    let mut out = vec![T::default(); elements];
    if elements <= CHUNK {
        S::decode(bytes, &mut out);
    } else {
        let chunks = out.par_chunks_mut(CHUNK).zip(bytes.par_chunks(CHUNK * S::SIZE));
        chunks.for_each(|(out, bytes)| S::decode(bytes, out));
    }
    out
}

/// Calls `visit(first element, count, stride)` for every row of the last axis, in row-major order.
fn for_each_run(layout: &Layout, mut visit: impl FnMut(usize, usize, usize)) {
    if layout.elements == 0 {
        return;
    }
    let (Some((&count, outer_shape)), Some((&stride, outer_strides))) =
        (layout.shape.split_last(), layout.strides.split_last())
    else {
        return visit(layout.offset, 1, 1);
    };
    let mut index = vec![0usize; outer_shape.len()];
    let mut at = layout.offset;
    loop {
        visit(at, count, stride);
        let mut axis = outer_shape.len();
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            index[axis] += 1;
            if index[axis] < outer_shape[axis] {
                at += outer_strides[axis];
                break;
            }
            at -= outer_strides[axis] * (outer_shape[axis] - 1);
            index[axis] = 0;
        }
    }
}

/// An element type of a file.
trait Source: Copy {
    const SIZE: usize;
    /// Reads a little-endian element from exactly `SIZE` bytes.
    fn read(raw: &[u8]) -> Self;
    fn cast<T: Target>(self) -> T;
    /// Reads as many elements as `out` has, one after the other.
    fn decode<T: Target>(bytes: &[u8], out: &mut [T]) {
        for (out, raw) in out.iter_mut().zip(bytes.chunks_exact(Self::SIZE)) {
            *out = Self::read(raw).cast();
        }
    }
}

/// An element type of a candle tensor.
trait Target: Copy + Default + Send + Sync {
    fn from_f32(value: f32) -> Self;
    fn from_f64(value: f64) -> Self;
    fn from_int(value: i128) -> Self;
    fn push_le(self, out: &mut Vec<u8>);
}

/// A byte of a tensor of bools.
#[derive(Clone, Copy)]
struct Flag(u8);

macro_rules! source {
    ($($type:ty: $value:ident => $cast:expr;)*) => {$(
        impl Source for $type {
            const SIZE: usize = size_of::<$type>();
            #[inline(always)]
            fn read(raw: &[u8]) -> Self {
                let mut bytes = [0; size_of::<$type>()];
                bytes.copy_from_slice(raw);
                <$type>::from_le_bytes(bytes)
            }
            #[inline(always)]
            fn cast<T: Target>(self) -> T {
                let $value = self;
                $cast
            }
        }
    )*};
}

source! {
    f64: v => T::from_f64(v);
    f32: v => T::from_f32(v);
    bf16: v => T::from_f32(v.to_f32());
    i64: v => T::from_int(v.into());
    i32: v => T::from_int(v.into());
    i16: v => T::from_int(v.into());
    i8: v => T::from_int(v.into());
    u64: v => T::from_int(v.into());
    u32: v => T::from_int(v.into());
    u16: v => T::from_int(v.into());
    u8: v => T::from_int(v.into());
    Flag: v => T::from_int((v.0 != 0).into());
}

/// Converted many at a time, for which processors have instructions; one at a time, each would be a call.
impl Source for f16 {
    const SIZE: usize = size_of::<f16>();

    fn read(raw: &[u8]) -> Self {
        let mut bytes = [0; size_of::<f16>()];
        bytes.copy_from_slice(raw);
        f16::from_le_bytes(bytes)
    }

    fn cast<T: Target>(self) -> T {
        T::from_f32(self.to_f32())
    }

    fn decode<T: Target>(bytes: &[u8], out: &mut [T]) {
        const RUN: usize = 512;
        let (mut narrow, mut wide) = ([f16::ZERO; RUN], [0f32; RUN]);
        for (out, bytes) in out.chunks_mut(RUN).zip(bytes.chunks(RUN * Self::SIZE)) {
            for (value, raw) in narrow.iter_mut().zip(bytes.chunks_exact(Self::SIZE)) {
                *value = Self::read(raw);
            }
            narrow[..out.len()].convert_to_f32_slice(&mut wide[..out.len()]);
            for (out, value) in out.iter_mut().zip(wide) {
                *out = T::from_f32(value);
            }
        }
    }
}

impl Flag {
    fn from_le_bytes(bytes: [u8; 1]) -> Self {
        Self(bytes[0])
    }
}

macro_rules! target {
    ($($type:ty: $f32:expr, $f64:expr, $int:expr;)*) => {$(
        impl Target for $type {
            #[inline(always)]
            fn from_f32(value: f32) -> Self { $f32(value) }
            #[inline(always)]
            fn from_f64(value: f64) -> Self { $f64(value) }
            #[inline(always)]
            fn from_int(value: i128) -> Self { $int(value) }
            #[inline(always)]
            fn push_le(self, out: &mut Vec<u8>) { out.extend_from_slice(&self.to_le_bytes()); }
        }
    )*};
}

target! {
    f32: |v| v, |v| v as f32, |v| v as f32;
    f64: f64::from, |v| v, |v| v as f64;
    f16: f16::from_f32, f16::from_f64, |v| f16::from_f64(v as f64);
    bf16: bf16::from_f32, bf16::from_f64, |v| bf16::from_f64(v as f64);
    i64: |v| v as i64, |v| v as i64, |v: i128| v.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
    i32: |v| v as i32, |v| v as i32, |v: i128| v.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
    u32: |v| v as u32, |v| v as u32, |v: i128| v.clamp(0, u32::MAX.into()) as u32;
    u8: |v| v as u8, |v| v as u8, |v: i128| v.clamp(0, u8::MAX.into()) as u8;
}
