//! Checks of arguments. All errors that a caller of an op can cause arise here, so that kernels have none.

use std::ops::Deref;

use candle_core::{DType, Device, Layout, Storage, Tensor, WithDType};

use crate::error::{Error, Result};

/// The op and argument that a check speaks of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Argument<'a> {
    op: &'static str,
    name: &'static str,
    tensor: &'a Tensor,
}

/// Starts the checks of an argument.
pub(crate) fn argument<'a>(
    op: &'static str,
    name: &'static str,
    tensor: &'a Tensor,
) -> Argument<'a> {
    Argument { op, name, tensor }
}

impl<'a> Argument<'a> {
    /// Requires a data type.
    pub fn dtype(self, expected: DType) -> Result<Self> {
        if self.tensor.dtype() == expected {
            return Ok(self);
        }
        Err(Error::DType { op: self.op, argument: self.name, expected, found: self.tensor.dtype() })
    }

    /// Requires a dtype that layers can compute in on the tensor's device.
    pub fn compute_dtype(self) -> Result<Self> {
        self.dtype(DType::F32)
    }

    /// Requires the device of another argument.
    pub fn same_device(self, other: &Tensor) -> Result<Self> {
        self.on(other.device())
    }

    /// Requires a device.
    pub fn on(self, device: &Device) -> Result<Self> {
        if self.tensor.device().same_device(device) {
            return Ok(self);
        }
        Err(Error::Device {
            op: self.op,
            argument: self.name,
            expected: format!("{:?}", device.location()),
            found: format!("{:?}", self.tensor.device().location()),
        })
    }

    /// Requires a number of dimensions, and returns them. `expected` is what the error shows, such as `[N, K, 4]`.
    pub fn dims<const RANK: usize>(self, expected: &str) -> Result<[usize; RANK]> {
        self.tensor.dims().try_into().map_err(|_| self.shape_error(expected))
    }

    /// Requires these dimensions. `expected` is what the error shows next to the numbers.
    pub fn shape(self, dims: &[usize], expected: &str) -> Result<Self> {
        if self.tensor.dims() == dims {
            return Ok(self);
        }
        Err(self.shape_error(&format!("{expected} = {dims:?}")))
    }

    /// The error of a wrong shape.
    pub fn shape_error(self, expected: &str) -> Error {
        Error::Shape {
            op: self.op,
            argument: self.name,
            expected: expected.to_owned(),
            found: self.tensor.dims().to_vec(),
        }
    }
}

/// The error of an op that has no kernel for a device.
pub(crate) fn unsupported(op: &'static str, device: &Device) -> Error {
    Error::Unsupported { op, device: format!("{:?}", device.location()) }
}

/// The values of a contiguous CPU tensor, from its locked storage.
pub(crate) fn cpu_slice<'a, T: WithDType, S: Deref<Target = Storage>>(
    locked: &'a (S, &Layout),
) -> Result<&'a [T]> {
    let (storage, layout) = locked;
    match &**storage {
        Storage::Cpu(cpu) => {
            let start = layout.start_offset();
            Ok(&cpu.as_slice::<T>()?[start..start + layout.shape().elem_count()])
        }
        other => Err(unsupported("a CPU kernel", &other.device())),
    }
}

/// Turns variables that hold CPU tensors into slices of their values, for the rest of the scope.
///
/// `lend!(boxes: f32, groups: u32);` A tensor that is not contiguous is copied first.
macro_rules! lend {
    ($($name:ident: $value:ty),+) => {$(
        let $name = $name.contiguous()?;
        let $name = $name.storage_and_layout();
        let $name: &[$value] = $crate::ops::support::check::cpu_slice(&$name)?;
    )+};
}
pub(crate) use lend;

/// Lends the values of a CPU tensor, as they lie if contiguous, else copied.
pub(crate) fn with_slice<T: WithDType, R>(
    tensor: &Tensor,
    use_values: impl FnOnce(&[T]) -> R,
) -> Result<R> {
    lend!(tensor: T);
    Ok(use_values(tensor))
}

/// Like [`with_slice`], for an argument that may be absent.
pub(crate) fn with_optional_slice<T: candle_core::WithDType, R>(
    tensor: Option<&Tensor>,
    use_values: impl FnOnce(Option<&[T]>) -> R,
) -> Result<R> {
    match tensor {
        Some(tensor) => with_slice(tensor, |values| use_values(Some(values))),
        None => Ok(use_values(None)),
    }
}
