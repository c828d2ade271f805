use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{CudaDevice, DType, Device, Tensor};

use super::OP;
use crate::error::Result;
use crate::ops::support::cuda::{Grid, Output, PACK_RESULTS, Table, launch, of, pointer};

/// Where the parts go; the twin is in kernel.cu.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Places {
    first: [u32; Table::CAPACITY],
    is_whole: [u32; Table::CAPACITY],
}

// SAFETY: plain 32-bit numbers in C's order.
unsafe impl DeviceRepr for Places {}

/// Parts are f32 or u32, on `device`.
pub(super) fn run(parts: &[&Tensor], device: &Device) -> Result<Tensor> {
    let gpu = of(OP, device)?;
    let total: usize = parts.iter().map(|part| part.elem_count()).sum();
    let packed = Output::<f32>::new(gpu, total)?;
    write(gpu, parts, packed.pointer())?;
    Ok(packed.into_tensor(total))
}

/// Like [`run`], to the memory of a tensor with room for all.
pub(super) fn run_into(parts: &[&Tensor], packed: &Tensor) -> Result<()> {
    write(of(OP, packed.device())?, parts, pointer::<f32>(packed)?)
}

fn write(gpu: &CudaDevice, parts: &[&Tensor], packed: u64) -> Result<()> {
    let mut first = 0;
    for parts in parts.chunks(Table::CAPACITY) {
        let held: Vec<Tensor> =
            parts.iter().map(|part| part.contiguous()).collect::<candle_core::Result<_>>()?;
        let mut places = Places::default();
        let mut entries = Vec::with_capacity(held.len());
        for (place, part) in held.iter().enumerate() {
            let is_whole = part.dtype() == DType::U32;
            let address = if is_whole { pointer::<u32>(part)? } else { pointer::<f32>(part)? };
            entries.push((address, part.elem_count()));
            places.first[place] = first;
            places.is_whole[place] = is_whole.into();
            first += part.elem_count() as u32;
        }
        let longest = entries.iter().map(|(_, length)| *length).max().unwrap_or(0);
        let grid = Grid::over_rows(longest, entries.len());
        let table = Table::new(entries);
        launch!(gpu, PACK_RESULTS, "pack_results", grid, table, places, packed);
    }
    Ok(())
}
