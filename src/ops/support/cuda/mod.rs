//! What the CUDA kernels of all ops share: finding and launching them, pointers into tensors, outputs.
//!
//! Everything that a forward pass does on a GPU goes through here, and nothing here copies or waits. Kernels take
//! addresses and numbers; tables that depend on shapes (levels, image sizes) are structs passed by value.
//!
//! All work on a device is ordered by its one stream, so that an address stays good until the kernels that were given
//! it have run, even where the tensor is dropped before: memory is given back in stream order. Only exchanges with other
//! GPUs have another stream (`clique`).

#[cfg(feature = "nccl")]
pub(crate) mod clique;
mod device;
mod finish;
mod gemm;
mod graph;
mod kernels;
mod launch;
mod memory;
mod passes;
mod rows;
mod staging;
mod tables;
mod traffic;

pub(crate) use device::{open, peak_memory};
pub(crate) use finish::Finish;
pub(crate) use gemm::{Columns, Product};
pub(crate) use graph::Recording;
pub(crate) use kernels::*;
pub(crate) use launch::{Grid, SELECT_THREADS, for_dtype, launch, start};
pub(crate) use memory::{Output, address, output, point, pointer};
pub(crate) use passes::{
    Condition, Permutation, Update, activate, check_f32, column_sums, judge, part_of_rows, squares,
    through_activation,
};
pub(crate) use rows::Rows;
pub(crate) use staging::{upload, upload_into};
pub(crate) use tables::{ImageSizes, Table, fits};
pub use traffic::Traffic;
pub(crate) use traffic::{Event, count, traffic};

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
