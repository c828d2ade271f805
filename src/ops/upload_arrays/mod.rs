//! Small arrays of the host on the device, in one copy.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::{Device, Tensor};

use super::support::check::unsupported;
use crate::error::Result;

const OP: &str = "upload_arrays";

/// Values in host memory.
#[derive(Debug, Clone, Copy)]
pub enum HostArray<'a> {
    /// Numbers.
    F32(&'a [f32]),
    /// Ids and counts.
    U32(&'a [u32]),
    /// Bytes.
    U8(&'a [u8]),
}

impl HostArray<'_> {
    #[cfg(feature = "cuda")]
    fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::U32(values) => values.len(),
            Self::U8(values) => values.len(),
        }
    }
}

/// Brings arrays to a device.
///
/// # Shapes
/// | argument | shape | dtype |
/// | --- | --- | --- |
/// | returns | `[length]` for each array | that of the array |
///
/// # Devices
/// CPU; CUDA, where all arrays go up in a single copy, followed by a launch for every eight of them.
///
/// # Gradients
/// None.
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) on other devices; those of the driver.
pub fn upload_arrays(arrays: &[HostArray<'_>], device: &Device) -> Result<Vec<Tensor>> {
    match device {
        Device::Cpu => arrays
            .iter()
            .map(|array| {
                Ok(match array {
                    HostArray::F32(values) => Tensor::from_slice(values, values.len(), device)?,
                    HostArray::U32(values) => Tensor::from_slice(values, values.len(), device)?,
                    HostArray::U8(values) => Tensor::from_slice(values, values.len(), device)?,
                })
            })
            .collect(),
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(arrays, device),
        other => Err(unsupported(OP, other)),
    }
}
