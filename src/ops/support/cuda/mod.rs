//! What the CUDA kernels of all ops share: finding and launching them, pointers into tensors, outputs.
//!
//! Everything that a forward pass does on a GPU goes through here, and nothing here copies or waits. Kernels take
//! addresses and numbers; tables that depend on shapes (levels, image sizes) are structs passed by value.
//!
//! All work on a device is ordered by its one stream, so that an address stays good until the kernels that were given
//! it have run, even where the tensor is dropped before: memory is given back in stream order.

mod device;
mod kernels;
mod launch;
mod memory;
mod tables;

pub(crate) use device::open;
pub(crate) use kernels::*;
pub(crate) use launch::{Grid, launch, start};
pub(crate) use memory::{Output, point, pointer};
pub(crate) use tables::{ImageSizes, Table};

use candle_core::{CudaDevice, Device};

use super::check::unsupported;
use crate::error::Result;

/// The CUDA device behind a device, for an op that has been dispatched to it.
pub(crate) fn of<'a>(op: &'static str, device: &'a Device) -> Result<&'a CudaDevice> {
    match device {
        Device::Cuda(device) => Ok(device),
        other => Err(unsupported(op, other)),
    }
}
