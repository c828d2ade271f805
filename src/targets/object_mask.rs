//! Outlines of objects, as the targets of the mask head are computed from them.

use crate::error::{Error, Result};
use crate::structures::{ImageSize, Rle};

/// The outline of an object of an image that is resized.
///
/// Only the part of the original image that the object covers is kept, one byte per pixel.
#[derive(Debug, Clone)]
pub struct ObjectMask {
    original: ImageSize,
    resized: ImageSize,
    /// First row and column of the original that are kept.
    top: usize,
    left: usize,
    /// Rows and columns that are kept.
    kept: ImageSize,
    /// Row by row, 1 inside the object.
    pixels: Vec<u8>,
}

impl ObjectMask {
    /// A mask of an image that is resized to `resized`.
    ///
    /// # Errors
    /// [`Error::Pixels`] when the lengths of the runs don't fit the size.
    pub fn new(mask: &Rle, resized: ImageSize) -> Result<Self> {
        mask.validate()?;
        let original = mask.size;
        let runs = columns_of(mask);
        let left = runs.iter().map(|run| run.column).min().unwrap_or(0);
        let right = runs.iter().map(|run| run.column + 1).max().unwrap_or(0);
        let top = runs.iter().map(|run| run.start).min().unwrap_or(0);
        let bottom = runs.iter().map(|run| run.end).max().unwrap_or(0);
        let kept = ImageSize { height: bottom - top, width: right - left };
        let mut pixels = vec![0u8; kept.width * kept.height];
        for run in runs {
            for row in run.start - top..run.end - top {
                pixels[row * kept.width + run.column - left] = 1;
            }
        }
        Ok(Self { original, resized, top, left, kept, pixels })
    }
}

/// The outlines of the objects of a batch, as [`mask_targets`](crate::ops::mask_targets) takes them, in host memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PackedMasks {
    /// Of all objects, one after another.
    pub pixels: Vec<u8>,
    /// Of all objects, image by image: first byte; top, left, rows and columns kept; height and width of the original;
    /// height and width resized.
    pub places: Vec<[u32; 9]>,
}

impl PackedMasks {
    /// Adds the objects of an image, and places without pixels up to `capacity`.
    ///
    /// # Errors
    /// [`Error::Pixels`] for more objects than `capacity`, and where a number of a place is beyond `u32`: an object that
    /// begins after more than 4 GiB of others, or a side of an image.
    pub fn append(&mut self, objects: &[ObjectMask], capacity: usize) -> Result<()> {
        let Some(empty) = capacity.checked_sub(objects.len()) else {
            return Err(Error::Pixels {
                what: "an image of a batch".to_owned(),
                found: format!("{} masks", objects.len()),
                expected: format!("at most {capacity}"),
            });
        };
        for object in objects {
            self.places.push(place(object, self.pixels.len())?);
            self.pixels.extend(&object.pixels);
        }
        self.places.extend(std::iter::repeat_n([0; 9], empty));
        Ok(())
    }
}

/// Where an object's pixels are when there are `before` bytes of others.
fn place(object: &ObjectMask, before: usize) -> Result<[u32; 9]> {
    let ObjectMask { original, resized, top, left, kept, .. } = *object;
    let sizes = [kept, original, resized].map(|size| [size.height, size.width]);
    let numbers = [before, top, left].into_iter().chain(sizes.into_iter().flatten());
    let mut place = [0; 9];
    for (entry, number) in place.iter_mut().zip(numbers) {
        *entry = u32::try_from(number).map_err(|_| Error::Pixels {
            what: "the masks of a batch".to_owned(),
            found: format!("a byte or a line {number}"),
            expected: format!("numbers up to {}; train with fewer images at once", u32::MAX),
        })?;
    }
    Ok(place)
}

/// A piece of a column that belongs to an object.
struct Run {
    column: usize,
    start: usize,
    end: usize,
}

/// The runs of a valid mask, cut at the ends of columns.
fn columns_of(mask: &Rle) -> Vec<Run> {
    let height = mask.size.height;
    let mut runs = Vec::new();
    let mut at = 0;
    for (index, count) in mask.counts.iter().enumerate() {
        let end = at + *count as usize;
        while index % 2 == 1 && at < end {
            let column = at / height;
            let until = end.min((column + 1) * height);
            runs.push(Run { column, start: at - column * height, end: until - column * height });
            at = until;
        }
        at = end;
    }
    runs
}

#[cfg(test)]
mod tests {
    use image::GrayImage;

    use super::*;

    const RESIZED: ImageSize = ImageSize { height: 10, width: 14 };

    fn object(inside: impl Fn(u32, u32) -> bool) -> ObjectMask {
        let bitmap =
            GrayImage::from_fn(7, 5, |x, y| image::Luma([if inside(y, x) { 255 } else { 0 }]));
        ObjectMask::new(&Rle::from_bitmap(&bitmap).unwrap(), RESIZED).unwrap()
    }

    #[test]
    fn what_an_object_covers_is_packed_row_by_row() {
        let corner = object(|y, x| (y, x) == (1, 4) || (y, x) == (2, 5));
        let empty = object(|_, _| false);
        let full = object(|_, _| true);
        let mut packed = PackedMasks::default();
        packed.append(&[corner, empty], 3).unwrap();
        packed.append(&[], 0).unwrap();
        packed.append(&[full], 1).unwrap();
        assert_eq!(packed.pixels, [&[1, 0, 0, 1], [1; 35].as_slice()].concat());
        let expected = [
            [0, 1, 4, 2, 2, 5, 7, 10, 14],
            [4, 0, 0, 0, 0, 5, 7, 10, 14],
            [0; 9],
            [4, 0, 0, 5, 7, 5, 7, 10, 14],
        ];
        assert_eq!(packed.places, expected);
    }

    /// A run may cross columns, and one of them be covered from its first row to its last.
    #[test]
    fn runs_across_columns_keep_their_rows() {
        let size = ImageSize { height: 3, width: 4 };
        let mask = ObjectMask::new(&Rle { size, counts: vec![2, 5, 5] }, RESIZED).unwrap();
        assert_eq!((mask.top, mask.left), (0, 0));
        assert_eq!(mask.pixels, [0, 1, 1, 0, 1, 0, 1, 1, 0]);
    }

    #[test]
    fn numbers_beyond_32_bits_and_too_many_objects_are_refused() {
        let full = object(|_, _| true);
        assert_eq!(place(&full, u32::MAX as usize).unwrap()[0], u32::MAX);
        let message = place(&full, 1 << 32).unwrap_err().to_string();
        assert!(message.contains("4294967296") && message.contains("fewer images"), "{message}");
        let message = PackedMasks::default().append(&[full.clone(), full], 1).unwrap_err();
        assert!(message.to_string().contains("2 masks"), "{message}");
    }
}
