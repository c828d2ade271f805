//! Samples as heads take them: without empty slots where that costs nothing, on the CPU.

use candle_core::{DType, Device, Tensor};

use super::slots::largest_count;
use crate::error::Result;
use crate::ops::{Chosen, FilledRows, gather_rows, gather_slots};

/// Narrows samples to the largest count where that costs nothing; see
/// [`Instances::trim_to_counts`](super::Instances::trim_to_counts).
///
/// # Errors
/// Those of candle.
pub(crate) fn trim_samples(chosen: Chosen) -> Result<Chosen> {
    let Some(capacity) = largest_count(&chosen.counts)? else { return Ok(chosen) };
    let index = chosen.index.narrow(1, 0, capacity)?.contiguous()?;
    Ok(Chosen { index, counts: chosen.counts })
}

/// The rows of slots `[N·K, …]` that layers see: without the empty ones where that costs nothing, on the CPU.
///
/// Images with few samples then don't cost as much as the one with the most.
#[derive(Debug, Clone)]
pub(crate) enum SlotRows {
    /// No slot is empty.
    Full,
    /// Those of these indices, `[V]` u32.
    Packed(Tensor),
    /// All, of which the first `counts` `[N]` of each image hold something.
    Padded(Tensor),
}

impl SlotRows {
    /// Of slots with a capacity for each image.
    ///
    /// # Errors
    /// Those of candle.
    pub fn new(counts: &Tensor, capacity: usize) -> Result<Self> {
        if !counts.device().is_cpu() {
            return Ok(Self::Padded(counts.clone()));
        }
        let counts = counts.to_vec1::<u32>()?;
        if counts.iter().all(|count| *count as usize == capacity) {
            return Ok(Self::Full);
        }
        let first = (0..).step_by(capacity);
        let rows = counts.iter().zip(first).flat_map(|(count, first)| first..first + count);
        Ok(Self::Packed(Tensor::from_iter(rows, &Device::Cpu)?))
    }

    /// The rows of `[N·K, …]` f32 or u32 that layers see; differentiable where they are f32.
    ///
    /// # Errors
    /// Those of the ops.
    pub fn of(&self, slots: &Tensor) -> Result<Tensor> {
        let Self::Packed(rows) = self else { return Ok(slots.clone()) };
        let (_, dims) = slots.dims().split_first().unwrap_or((&0, &[]));
        let shape = [&[rows.elem_count()], dims].concat();
        if slots.dtype() == DType::U32 {
            let count = Tensor::new(&[rows.elem_count() as u32], &Device::Cpu)?;
            let picked = gather_slots(&slots.unsqueeze(0)?, &rows.unsqueeze(0)?, &count)?;
            return Ok(picked.reshape(shape)?);
        }
        Ok(gather_rows(&[slots], dims.iter().product(), rows)?.reshape(shape)?)
    }

    /// Which of the rows that layers see hold something.
    pub fn filled(&self) -> FilledRows<'_> {
        match self {
            Self::Full | Self::Packed(_) => FilledRows::All,
            Self::Padded(counts) => FilledRows::UpTo(counts),
        }
    }
}
