//! What the mask of a box should have been.

use crate::error::Result;
use crate::structures::{ImageSize, Rle};

/// The outline of an object, in pixels of the resized image.
///
/// Only the part of the original image that the object covers is kept, one byte per pixel; a pixel of the resized image
/// is the nearest one of the original.
#[derive(Debug, Clone)]
pub struct ObjectMask {
    original: ImageSize,
    resized: ImageSize,
    /// First row and column of the original that are kept.
    top: usize,
    left: usize,
    width: usize,
    /// Row by row, 1 inside the object.
    pixels: Vec<u8>,
}

impl ObjectMask {
    /// A mask of an image that is resized to `resized`.
    ///
    /// # Errors
    /// [`Error::Pixels`](crate::Error::Pixels) when the lengths of the runs don't fit the size.
    pub fn new(mask: &Rle, resized: ImageSize) -> Result<Self> {
        mask.validate()?;
        let original = mask.size;
        let runs = columns_of(mask);
        let left = runs.iter().map(|run| run.column).min().unwrap_or(0);
        let right = runs.iter().map(|run| run.column + 1).max().unwrap_or(0);
        let top = runs.iter().map(|run| run.start).min().unwrap_or(0);
        let bottom = runs.iter().map(|run| run.end).max().unwrap_or(0);
        let width = right - left;
        let mut pixels = vec![0u8; width * (bottom - top)];
        for run in runs {
            for row in run.start - top..run.end - top {
                pixels[row * width + run.column - left] = 1;
            }
        }
        Ok(Self { original, resized, top, left, width, pixels })
    }

    /// The share of the object in each of `side · side` cells of a box, row by row: what the mask head should say.
    ///
    /// A cell is the mean of bilinear samples, as many per axis as a cell has pixels, rounded up. `bbox` is xyxy in
    /// pixels of the resized image, without a half-pixel shift; its sides count as one pixel at least.
    ///
    /// Reference: torchvision `models/detection/roi_heads.py`, `project_masks_on_boxes`, and
    /// `ops/cpu/roi_align_common.h` with a sampling ratio of −1 and `aligned=false`.
    pub fn pool(&self, bbox: [f32; 4], side: usize) -> Vec<f32> {
        let [x1, y1, x2, y2] = bbox;
        let columns = Axis::new(x1, x2, side, self.resized.width, |column| {
            let nearest = nearest(column, self.original.width, self.resized.width);
            nearest.checked_sub(self.left).filter(|column| *column < self.width)
        });
        let rows = Axis::new(y1, y2, side, self.resized.height, |row| {
            let nearest = nearest(row, self.original.height, self.resized.height);
            nearest.checked_sub(self.top).filter(|row| row * self.width < self.pixels.len())
        });
        let mut target = vec![0f32; side * side];
        let mut across = vec![0f32; side];
        let mut last = None;
        for (cell, out) in target.chunks_exact_mut(side).enumerate() {
            for &(row, weight) in rows.of(cell) {
                // Neighboring cells share rows, and rows of an enlarged image are the same one of the original.
                if last != Some(row) {
                    let pixels = &self.pixels[row * self.width..][..self.width];
                    columns.sum(pixels, &mut across);
                    last = Some(row);
                }
                for (out, value) in out.iter_mut().zip(&across) {
                    *out += weight * value;
                }
            }
        }
        target
    }
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

/// The row (or column) of the original that a resized one shows: the scale is a quotient in f32.
fn nearest(index: usize, original: usize, resized: usize) -> usize {
    let scale = original as f32 / resized as f32;
    ((index as f32 * scale) as usize).min(original - 1)
}

/// The rows (or columns) that each cell samples, and their weights.
struct Axis {
    taps: Vec<(usize, f32)>,
    ends: Vec<usize>,
}

impl Axis {
    /// Lists the taps of an extent `start..end` on `size` rows. `place` says where a row is kept; one that is not kept
    /// is zero.
    fn new(
        start: f32,
        end: f32,
        cells: usize,
        size: usize,
        place: impl Fn(usize) -> Option<usize>,
    ) -> Self {
        let extent = (end - start).max(1.0);
        let bin = extent / cells as f32;
        let samples = bin.ceil();
        let mut axis = Self { taps: Vec::new(), ends: Vec::with_capacity(cells) };
        for cell in 0..cells {
            let first = axis.taps.len();
            for sample in 0..samples as usize {
                let at = start + cell as f32 * bin + (sample as f32 + 0.5) * bin / samples;
                if !(at >= -1.0 && at <= size as f32) {
                    continue;
                }
                let at = at.max(0.0);
                let low = (at as usize).min(size - 1);
                let fraction = if low + 1 < size { at - low as f32 } else { 0.0 };
                for (index, weight) in [(low, 1.0 - fraction), (low + 1, fraction)] {
                    if weight > 0.0
                        && let Some(index) = place(index)
                    {
                        axis.add(first, index, weight / samples);
                    }
                }
            }
            axis.ends.push(axis.taps.len());
        }
        axis
    }

    fn add(&mut self, first_of_cell: usize, index: usize, weight: f32) {
        match self.taps[first_of_cell..].last_mut() {
            Some(tap) if tap.0 == index => tap.1 += weight,
            _ => self.taps.push((index, weight)),
        }
    }

    fn of(&self, cell: usize) -> &[(usize, f32)] {
        let start = if cell == 0 { 0 } else { self.ends[cell - 1] };
        &self.taps[start..self.ends[cell]]
    }

    /// The weighted sums of a line of pixels, one per cell.
    fn sum(&self, pixels: &[u8], sums: &mut [f32]) {
        for (cell, sum) in sums.iter_mut().enumerate() {
            *sum = self.of(cell).iter().map(|&(at, weight)| f32::from(pixels[at]) * weight).sum();
        }
    }
}

#[cfg(test)]
mod tests {
    use image::GrayImage;

    use super::*;
    use crate::ops::support::testing::Random;

    fn bitmap(height: u32, width: u32, inside: impl Fn(u32, u32) -> bool) -> Rle {
        let bitmap = GrayImage::from_fn(width, height, |x, y| {
            image::Luma([if inside(y, x) { 255 } else { 0 }])
        });
        Rle::from_bitmap(&bitmap).unwrap()
    }

    /// Values measured with torchvision.
    #[test]
    fn edges_are_soft_without_a_half_pixel_shift() {
        let block = bitmap(8, 8, |y, x| (2..6).contains(&y) && (2..6).contains(&x));
        let mask = ObjectMask::new(&block, ImageSize { height: 8, width: 8 }).unwrap();
        let pooled = mask.pool([2.0, 2.0, 6.0, 6.0], 4);
        let expected =
            [1.0, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.25];
        assert_eq!(pooled, expected);
    }

    #[test]
    fn an_empty_mask_is_zero_everywhere() {
        let empty = bitmap(5, 9, |_, _| false);
        let mask = ObjectMask::new(&empty, ImageSize { height: 10, width: 18 }).unwrap();
        assert_eq!(mask.pool([-4.0, -4.0, 30.0, 30.0], 3), [0.0; 9]);
    }

    /// The definition, sample by sample on the whole resized bitmap, in f64.
    fn by_samples(mask: &Rle, resized: ImageSize, bbox: [f32; 4], side: usize) -> Vec<f64> {
        let original = mask.to_bitmap().unwrap();
        let pixel = |y: usize, x: usize| {
            let row = nearest(y, mask.size.height, resized.height);
            let column = nearest(x, mask.size.width, resized.width);
            f64::from(original.get_pixel(column as u32, row as u32)[0]) / 255.0
        };
        let bilinear = |y: f64, x: f64| {
            let (height, width) = (resized.height as f64, resized.width as f64);
            if y < -1.0 || y > height || x < -1.0 || x > width {
                return 0.0;
            }
            let (y, x) = (y.clamp(0.0, height - 1.0), x.clamp(0.0, width - 1.0));
            let (low_y, low_x) = (y as usize, x as usize);
            let (high_y, high_x) =
                ((low_y + 1).min(resized.height - 1), (low_x + 1).min(resized.width - 1));
            let (fy, fx) = (y - low_y as f64, x - low_x as f64);
            (1.0 - fy) * ((1.0 - fx) * pixel(low_y, low_x) + fx * pixel(low_y, high_x))
                + fy * ((1.0 - fx) * pixel(high_y, low_x) + fx * pixel(high_y, high_x))
        };
        let [x1, y1, x2, y2] = bbox.map(f64::from);
        let bin_y = (y2 - y1).max(1.0) / side as f64;
        let bin_x = (x2 - x1).max(1.0) / side as f64;
        let (n_y, n_x) = (bin_y.ceil() as usize, bin_x.ceil() as usize);
        let mut target = Vec::new();
        for row in 0..side {
            for column in 0..side {
                let mut sum = 0.0;
                for j in 0..n_y {
                    for i in 0..n_x {
                        let y = y1 + row as f64 * bin_y + (j as f64 + 0.5) * bin_y / n_y as f64;
                        let x = x1 + column as f64 * bin_x + (i as f64 + 0.5) * bin_x / n_x as f64;
                        sum += bilinear(y, x);
                    }
                }
                target.push(sum / (n_y * n_x) as f64);
            }
        }
        target
    }

    #[test]
    fn cells_agree_with_the_definition() {
        let mut random = Random::new(2);
        let mask = bitmap(37, 53, |y, x| (x + 2 * y) % 11 > 4 && x > 9 && y < 30 && x < 50);
        for resized in [(37, 53), (61, 88), (20, 31), (74, 106)] {
            let resized = ImageSize { height: resized.0, width: resized.1 };
            let object = ObjectMask::new(&mask, resized).unwrap();
            for _ in 0..20 {
                let corner = |random: &mut Random, size: usize| {
                    let a = random.range(-9.0, size as f32 + 9.0);
                    let b = random.range(-9.0, size as f32 + 9.0);
                    (a.min(b), a.max(b) + 0.3)
                };
                let (x1, x2) = corner(&mut random, resized.width);
                let (y1, y2) = corner(&mut random, resized.height);
                let found = object.pool([x1, y1, x2, y2], 7);
                let expected = by_samples(&mask, resized, [x1, y1, x2, y2], 7);
                for (found, expected) in found.iter().zip(expected) {
                    let difference = (f64::from(*found) - expected).abs();
                    assert!(difference < 1e-4, "{found} {expected} in {x1} {y1} {x2} {y2}");
                }
            }
        }
    }
}
