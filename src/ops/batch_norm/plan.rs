//! How the values of an input lie, and which of them count.

use std::ops::Range;

use candle_core::{DType, Tensor};

use super::OP;
use crate::error::Result;
use crate::ops::support::check::{argument, with_slice};
use crate::ops::support::filled_rows::FilledRows;

/// An input as `[rows, channels]`, the rows being those of `slots` slots of each image.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub channels: usize,
    /// Of all slots, filled or not.
    pub rows: usize,
    pub slots: usize,
    /// Rows of a slot.
    pub plane: usize,
    /// `[N]` u32, filled slots of each image; without it, all are.
    pub counts: Option<Tensor>,
}

impl Plan {
    pub fn new(input: &Tensor, filled: FilledRows) -> Result<Self> {
        let checked = argument(OP, "input", input).dtype(DType::F32)?;
        let expected = match filled {
            FilledRows::All => "[.., C], no value or at least 2 per channel",
            FilledRows::UpTo(_) => "[N·K, .., C]",
        };
        let (channels, outer) =
            input.dims().split_last().ok_or_else(|| checked.shape_error(expected))?;
        let rows = outer.iter().product();
        let fits = match filled {
            FilledRows::All => rows != 1,
            FilledRows::UpTo(_) => !outer.is_empty(),
        };
        if *channels == 0 || !fits {
            return Err(checked.shape_error(expected));
        }
        let all = Self { channels: *channels, rows, slots: 0, plane: 1, counts: None };
        match filled {
            FilledRows::All => Ok(all),
            FilledRows::UpTo(counts) => all.up_to(counts, outer, input),
        }
    }

    /// With counts, for an input of these dimensions before the channels.
    fn up_to(self, counts: &Tensor, outer: &[usize], input: &Tensor) -> Result<Self> {
        let expected = || format!("[N], N images with as many of the {} rows each", outer[0]);
        let checked = argument(OP, "counts", counts).dtype(DType::U32)?.same_device(input)?;
        let [images] = checked.dims(&expected())?;
        if !outer[0].is_multiple_of(images) {
            return Err(checked.shape_error(&expected()));
        }
        let counts = Some(counts.detach().contiguous()?);
        let plane = outer[1..].iter().product();
        Ok(Self { slots: outer[0] / images.max(1), plane, counts, ..self })
    }

    /// The filled rows of each image, of counts on the CPU.
    pub fn filled(&self) -> Result<Vec<Range<usize>>> {
        let Some(counts) = &self.counts else { return Ok(std::iter::once(0..self.rows).collect()) };
        with_slice(counts, |counts: &[u32]| {
            let of_image = |(image, count): (usize, &u32)| {
                let first = image * self.slots;
                first * self.plane..(first + self.slots.min(*count as usize)) * self.plane
            };
            counts.iter().enumerate().map(of_image).collect()
        })
    }
}

/// How running statistics move: `keep · running + share · batch`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blend {
    pub keep: f32,
    pub share: f32,
}
