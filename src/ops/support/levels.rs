//! Predictions of the levels of a pyramid, as rows.

use candle_core::{DType, Tensor};

use super::check::argument;
use crate::error::{Error, Result};

/// How levels are read: tensors whose first axis are the images, as rows of `width` values for each of them. The rows of an
/// image are numbered through all levels.
#[derive(Debug, Clone)]
pub(crate) struct Levels {
    pub images: usize,
    pub width: usize,
    /// Rows of each level for an image.
    pub lengths: Vec<usize>,
}

impl Levels {
    /// Requires f32 levels of `images` images on the device of `other`, whose rows are `rows` in number.
    pub fn check(
        op: &'static str,
        name: &'static str,
        levels: &[&Tensor],
        (images, width, rows): (usize, usize, usize),
        other: &Tensor,
    ) -> Result<Self> {
        let expected = format!("{images} images, each with a multiple of {width} values");
        let mut lengths = Vec::with_capacity(levels.len());
        for level in levels {
            let checked = argument(op, name, level).dtype(DType::F32)?.same_device(other)?;
            let per_image = level.elem_count() / images.max(1);
            let fits = level.dims().first() == Some(&images);
            if !(fits && width > 0 && per_image.is_multiple_of(width)) {
                return Err(checked.shape_error(&expected));
            }
            lengths.push(per_image / width);
        }
        let found = lengths.iter().sum();
        if found == rows {
            return Ok(Self { images, width, lengths });
        }
        Err(Error::Shape {
            op,
            argument: name,
            expected: format!("levels of {rows} rows together, each of {width} values"),
            found: vec![found, width],
        })
    }

    /// Rows of an image.
    pub fn rows(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// Level, row of the level among those of all images, of the row of an image.
    pub fn place(&self, image: usize, row: usize) -> Option<(usize, usize)> {
        let mut rest = row;
        for (level, length) in self.lengths.iter().enumerate() {
            if rest < *length {
                return Some((level, image * length + rest));
            }
            rest -= length;
        }
        None
    }
}
