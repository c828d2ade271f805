//! Run lengths as COCO files have them.

use image::GrayImage;

use super::region::MaskRegion;
use crate::error::{Error, Result};
use crate::structures::ImageSize;

/// Columns that are gathered at once: 16 floats fill a cache line, so each line of the region is fetched once.
const COLUMNS_AT_ONCE: usize = 16;

/// Run lengths of a binary mask as COCO has them: down the columns, starting with zeros.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rle {
    /// Size of the image.
    pub size: ImageSize,
    /// Alternating lengths of runs of 0 and of 1; they sum up to height · width.
    pub counts: Vec<u32>,
}

/// Height · width, where run lengths can count it.
pub(super) fn pixel_count(size: ImageSize) -> Result<u32> {
    let product = size.height.checked_mul(size.width).and_then(|n| u32::try_from(n).ok());
    // A side may exceed u32 where the other one is 0.
    let sides = u32::try_from(size.height).and(u32::try_from(size.width));
    match (product, sides) {
        (Some(count), Ok(_)) => Ok(count),
        _ => Err(Error::Pixels {
            what: "a mask".to_owned(),
            found: format!("an image of {size}"),
            expected: format!("at most {} pixels", u32::MAX),
        }),
    }
}

impl Rle {
    /// Run lengths of an image: every pixel but 0 belongs to the mask.
    ///
    /// # Errors
    /// [`Error::Pixels`] for more than `u32::MAX` pixels.
    pub fn from_bitmap(bitmap: &GrayImage) -> Result<Self> {
        let size = ImageSize { height: bitmap.height() as usize, width: bitmap.width() as usize };
        pixel_count(size)?;
        let mut runs = Runs::default();
        push_columns(&mut runs, bitmap.as_raw(), size.width, size.height, 0, |value| value > 0);
        Ok(Self { size, counts: runs.finish() })
    }

    /// Run lengths of the pixels strictly above a threshold that is not negative, without an image of them.
    pub(super) fn from_region(region: &MaskRegion, size: ImageSize, threshold: f32) -> Self {
        let mut runs = Runs::default();
        let MaskRegion { x, y, width, height, .. } = *region;
        let below = size.height - y - height;
        runs.push(false, x * size.height);
        if width > 0 {
            runs.push(false, y);
            let gap = below + y;
            let inside = |probability| probability > threshold;
            push_columns(&mut runs, &region.probabilities, width, height, gap, inside);
            // The last column has no successor whose head is part of the gap.
            runs.push(false, below);
        }
        runs.push(false, (size.width - x - width) * size.height);
        Self { size, counts: runs.finish() }
    }

    /// COCO's compressed text, the same as pycocotools writes under `counts`.
    ///
    /// Each length but the first three is taken relative to the one two before it; the difference is written in groups of
    /// 5 bits, lowest first, with a sixth bit that says "more follows", from character 48 (`0`) on.
    pub fn to_coco_string(&self) -> String {
        let mut text = String::with_capacity(2 * self.counts.len());
        for (i, &count) in self.counts.iter().enumerate() {
            let before = if i > 2 { self.counts[i - 2] } else { 0 };
            let mut rest = i64::from(count) - i64::from(before);
            loop {
                let bits = (rest & 0x1f) as u8;
                rest >>= 5;
                let more = rest != if bits & 0x10 == 0 { 0 } else { -1 };
                text.push(char::from(bits + 48 + if more { 0x20 } else { 0 }));
                if !more {
                    break;
                }
            }
        }
        text
    }

    /// Reads COCO's compressed text of a mask for an image of `size`.
    ///
    /// # Errors
    /// [`Error::Pixels`] for a character outside `0`–`o`, for text that ends within a number, for a number that is
    /// negative or beyond `u32`, and for lengths that don't sum up to height · width.
    pub fn from_coco_string(text: &str, size: ImageSize) -> Result<Self> {
        let fault = |found: String, expected: &str| Error::Pixels {
            what: "a COCO run-length string".to_owned(),
            found,
            expected: expected.to_owned(),
        };
        let mut counts: Vec<u32> = Vec::new();
        let mut bytes = text.bytes().enumerate();
        while let Some((start, first)) = bytes.next() {
            let (mut value, mut shift, mut position, mut byte) = (0i64, 0u32, start, first);
            loop {
                if !(48..48 + 64).contains(&byte) {
                    return Err(fault(
                        format!("byte {byte:#04x} at position {position}"),
                        "characters from `0` to `o`",
                    ));
                }
                let bits = i64::from(byte - 48);
                // The difference of two u32 has 33 bits, which 7 groups hold.
                if shift >= 35 {
                    return Err(fault(
                        format!("a number of over 7 characters at position {start}"),
                        "lengths that fit into 32 bits",
                    ));
                }
                value |= (bits & 0x1f) << shift;
                shift += 5;
                if bits & 0x20 == 0 {
                    if bits & 0x10 != 0 {
                        value |= -1 << shift;
                    }
                    break;
                }
                (position, byte) = bytes.next().ok_or_else(|| {
                    fault(
                        "an end within a number".to_owned(),
                        "complete text; it may have been cut",
                    )
                })?;
            }
            if counts.len() > 2 {
                value += i64::from(counts[counts.len() - 2]);
            }
            let count = u32::try_from(value).map_err(|_| {
                fault(format!("length {value} at position {start}"), "lengths from 0 to 4294967295")
            })?;
            counts.push(count);
        }
        let rle = Self { size, counts };
        rle.validate()?;
        Ok(rle)
    }

    /// Checks that the lengths sum up to height · width, as lengths from files may not.
    ///
    /// # Errors
    /// [`Error::Pixels`] with both numbers.
    pub fn validate(&self) -> Result<()> {
        let expected = pixel_count(self.size)?;
        let sum: u64 = self.counts.iter().map(|&count| u64::from(count)).sum();
        if sum != u64::from(expected) {
            return Err(Error::Pixels {
                what: "a run-length mask".to_owned(),
                found: format!("lengths that sum up to {sum}"),
                expected: format!("{expected}, for an image of {}", self.size),
            });
        }
        Ok(())
    }

    /// Pixels that belong to the mask.
    pub fn area(&self) -> u64 {
        self.counts.iter().skip(1).step_by(2).map(|&count| u64::from(count)).sum()
    }

    /// The mask as an image: 255 for its pixels, else 0.
    ///
    /// # Errors
    /// [`Error::Pixels`] when the lengths don't sum up to height · width.
    pub fn to_bitmap(&self) -> Result<GrayImage> {
        self.validate()?;
        let ImageSize { height, width } = self.size;
        let mut bitmap = GrayImage::new(width as u32, height as u32);
        let pixels: &mut [u8] = &mut bitmap;
        let mut start = 0;
        for (i, &count) in self.counts.iter().enumerate() {
            let end = start + count as usize;
            if i % 2 == 1 {
                for position in start..end {
                    pixels[(position % height) * width + position / height] = 255;
                }
            }
            start = end;
        }
        Ok(bitmap)
    }
}

/// Pushes a row-major plane column by column, with `gap` zeros between columns.
fn push_columns<T: Copy>(
    runs: &mut Runs,
    plane: &[T],
    width: usize,
    height: usize,
    gap: usize,
    inside: impl Fn(T) -> bool,
) {
    let mut columns = vec![false; COLUMNS_AT_ONCE * height];
    for left in (0..width).step_by(COLUMNS_AT_ONCE) {
        let count = COLUMNS_AT_ONCE.min(width - left);
        for (y, row) in plane.chunks_exact(width).enumerate() {
            for (x, &value) in row[left..left + count].iter().enumerate() {
                columns[x * height + y] = inside(value);
            }
        }
        for (x, column) in columns.chunks_exact(height.max(1)).take(count).enumerate() {
            if left + x > 0 {
                runs.push(false, gap);
            }
            for run in column.chunk_by(|a, b| a == b) {
                runs.push(run[0], run.len());
            }
        }
    }
}

/// Run lengths under construction.
#[derive(Default)]
struct Runs {
    counts: Vec<u32>,
    value: bool,
    length: usize,
}

impl Runs {
    fn push(&mut self, value: bool, length: usize) {
        if length == 0 {
            return;
        }
        if value != self.value {
            self.close();
            self.value = value;
        }
        self.length += length;
    }

    fn close(&mut self) {
        // Images have at most u32::MAX pixels, see `pixel_count`.
        self.counts.push(self.length as u32);
        self.length = 0;
    }

    fn finish(mut self) -> Vec<u32> {
        self.close();
        self.counts
    }
}
