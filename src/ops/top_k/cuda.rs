use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Device, Tensor};

use super::{OP, TopK};
use crate::error::{Error, Result};
use crate::ops::support::cuda::{Grid, Output, SELECT_THREADS, TOP_K, Table, launch, of, pointer};

/// Where the rows of an image lie; the twin is in kernel.cu.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Rows {
    first_slot: [u32; Table::CAPACITY],
    first_index: [u32; Table::CAPACITY],
    slots: u32,
}

// SAFETY: plain 32-bit numbers in C's order.
unsafe impl DeviceRepr for Rows {}

pub(super) fn run(segments: &[&Tensor], n: usize, k: usize, device: &Device) -> Result<TopK> {
    let gpu = of(OP, device)?;
    if segments.len() > Table::CAPACITY {
        return Err(Error::Config {
            origin: OP.to_owned(),
            field: "segments".to_owned(),
            found: format!("{} segments", segments.len()),
            expected: format!("at most {} on a GPU", Table::CAPACITY),
        });
    }
    let segments: Vec<Tensor> =
        segments.iter().map(|segment| segment.contiguous()).collect::<candle_core::Result<_>>()?;
    let mut entries = Vec::with_capacity(segments.len());
    let mut rows = Rows::default();
    let mut first_index = 0;
    for (place, segment) in segments.iter().enumerate() {
        let length = segment.dims()[1];
        entries.push((pointer::<f32>(segment)?, length));
        rows.first_slot[place] = rows.slots;
        rows.first_index[place] = first_index;
        rows.slots += length.min(k) as u32;
        first_index += length as u32;
    }
    let slots = rows.slots as usize;
    let shape = (n, slots);
    if n * slots == 0 {
        return Ok(TopK {
            values: Tensor::zeros(shape, DType::F32, device)?,
            index: Tensor::zeros(shape, DType::U32, device)?,
            segment: Tensor::zeros(shape, DType::U32, device)?,
        });
    }
    let longest = segments.iter().map(|segment| segment.dims()[1].min(k)).max().unwrap_or(0);
    let count = segments.len();
    let table = Table::new(entries);
    let chosen = Output::<i64>::new(gpu, n * slots)?;
    let values = Output::<f32>::new(gpu, n * slots)?;
    let index = Output::<u32>::new(gpu, n * slots)?;
    let segment = Output::<u32>::new(gpu, n * slots)?;
    let select = Grid::blocks((count, n), SELECT_THREADS);
    launch!(gpu, TOP_K, "top_k_select", select, table, rows, k as u32, chosen.pointer());
    launch!(
        gpu,
        TOP_K,
        "top_k_rank",
        Grid::over_rows(longest, count * n),
        table,
        rows,
        count as u32,
        k as u32,
        chosen.pointer(),
        values.pointer(),
        index.pointer(),
        segment.pointer(),
    );
    Ok(TopK {
        values: values.into_tensor(shape),
        index: index.into_tensor(shape),
        segment: segment.into_tensor(shape),
    })
}
