//! Checks of arguments. All errors that a caller of an op can cause arise here, so that kernels have none.

use candle_core::{DType, Device, Storage, Tensor};

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

/// Lends the values of a CPU tensor, as they lie if contiguous, else copied.
pub(crate) fn with_slice<T: candle_core::WithDType, R>(
    tensor: &Tensor,
    use_values: impl FnOnce(&[T]) -> R,
) -> Result<R> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(cpu) => {
            let values = cpu.as_slice::<T>()?;
            let start = layout.start_offset();
            Ok(use_values(&values[start..start + layout.shape().elem_count()]))
        }
        _ => Err(unsupported("a CPU kernel", tensor.device())),
    }
}
