//! How the values of an input lie.

use candle_core::Tensor;

use super::OP;
use crate::error::Result;
use crate::ops::support::check::argument;

/// An input as `[images, rows, channels]`, the channels being those of `groups` groups one after another.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub images: usize,
    pub rows: usize,
    pub channels: usize,
    pub groups: usize,
}

impl Plan {
    pub fn new(input: &Tensor, groups: usize) -> Result<Self> {
        let checked = argument(OP, "input", input).compute_dtype()?;
        let expected = format!("[N, .., C], C a multiple of {groups} groups");
        let [images, rows @ .., channels] = input.dims() else {
            return Err(checked.shape_error(&expected));
        };
        if *channels == 0 || groups == 0 || !channels.is_multiple_of(groups) {
            return Err(checked.shape_error(&expected));
        }
        Ok(Self { images: *images, rows: rows.iter().product(), channels: *channels, groups })
    }

    /// Channels of a group.
    pub fn of_group(&self) -> usize {
        self.channels / self.groups
    }

    /// Values of an image.
    pub fn image(&self) -> usize {
        self.rows * self.channels
    }
}
