//! Mask targets on the CPU: slices in, slices out.

use std::ops::Range;

use rayon::prelude::*;

use super::{MOST_SAMPLES, OP, PLACE};
use crate::error::{Error, Result};

/// The arguments of the op.
pub(super) struct Batch<'a> {
    pub pixels: &'a [u8],
    pub places: &'a [[u32; PLACE]],
    pub boxes: &'a [[f32; 4]],
    pub objects: &'a [u32],
    pub counts: &'a [u32],
    /// Places of an image.
    pub n_objects: usize,
    /// Boxes of an image.
    pub n_slots: usize,
}

impl Batch<'_> {
    /// `side · side` cells of each slot.
    pub fn targets(&self, side: usize) -> Result<Vec<f32>> {
        let outlines = (0..self.boxes.len())
            .map(|slot| self.outline(slot))
            .collect::<Result<Vec<Option<Outline<'_>>>>>()?;
        let mut targets = vec![0f32; outlines.len() * side * side];
        targets.par_chunks_exact_mut(side * side).zip(&outlines).zip(self.boxes).for_each(
            |((target, outline), bbox)| {
                if let Some(outline) = outline {
                    outline.pool(*bbox, side, target);
                }
            },
        );
        Ok(targets)
    }

    /// The object of a slot; `None` for an empty slot, and for an object of which nothing is kept.
    fn outline(&self, slot: usize) -> Result<Option<Outline<'_>>> {
        let (image, place) = (slot / self.n_slots, slot % self.n_slots);
        if place >= self.counts[image] as usize {
            return Ok(None);
        }
        let object = self.objects[slot] as usize;
        if object >= self.n_objects {
            return Err(Error::Pixels {
                what: format!("{OP}: slot {place} of image {image}"),
                found: format!("object {object}"),
                expected: format!("one of the image's {}", self.n_objects),
            });
        }
        let place = self.places[image * self.n_objects + object];
        Outline::new(self.pixels, place).map_err(|(found, expected)| Error::Pixels {
            what: format!("{OP}: object {object} of image {image}"),
            found,
            expected,
        })
    }
}

/// What is kept of an object.
struct Outline<'a> {
    /// Row by row, 1 inside the object.
    pixels: &'a [u8],
    rows: Lines,
    columns: Lines,
}

impl<'a> Outline<'a> {
    /// An object's part of all pixels; `None` if it has none, and what was found and expected if it can't have it.
    fn new(
        pixels: &'a [u8],
        place: [u32; PLACE],
    ) -> std::result::Result<Option<Self>, (String, String)> {
        let [start, top, left, kept_rows, kept_columns, height, width, tall, wide] =
            place.map(|number| number as usize);
        if kept_rows == 0 || kept_columns == 0 {
            return Ok(None);
        }
        let rows = Lines { first: top, kept: kept_rows, original: height, resized: tall };
        let columns = Lines { first: left, kept: kept_columns, original: width, resized: wide };
        if !rows.are_of_an_image() || !columns.are_of_an_image() {
            let found = format!(
                "rows {top} to {} and columns {left} to {} of {height}×{width} pixels, resized to {tall}×{wide}",
                top + kept_rows,
                left + kept_columns,
            );
            return Err((
                found,
                "a part of an image that has pixels when it is resized".to_owned(),
            ));
        }
        match kept_rows.checked_mul(kept_columns).and_then(|n| pixels.get(start..)?.get(..n)) {
            Some(pixels) => Ok(Some(Self { pixels, rows, columns })),
            None => Err((
                format!("{kept_rows}×{kept_columns} pixels from byte {start} on"),
                format!("a part of the {} bytes of `pixels`", pixels.len()),
            )),
        }
    }

    /// The share of the object in each cell of a box, into zeros.
    fn pool(&self, [x1, y1, x2, y2]: [f32; 4], side: usize, target: &mut [f32]) {
        let columns = Axis::new(&Samples::new(x1, x2, side), side, &self.columns);
        let rows = Axis::new(&Samples::new(y1, y2, side), side, &self.rows);
        let width = self.columns.kept;
        let mut across = vec![0f32; side];
        let mut last = None;
        for (cell, out) in target.chunks_exact_mut(side).enumerate() {
            for &(row, weight) in rows.of(cell) {
                // Neighboring cells share rows, and rows of an enlarged image are the same one of the original.
                if last != Some(row) {
                    columns.sum(&self.pixels[row * width..][..width], &mut across);
                    last = Some(row);
                }
                for (out, value) in out.iter_mut().zip(&across) {
                    *out += weight * value;
                }
            }
        }
    }
}

/// The rows (or columns) of an image, and those that are kept of an object.
struct Lines {
    /// The first one that is kept.
    first: usize,
    kept: usize,
    original: usize,
    resized: usize,
}

impl Lines {
    fn are_of_an_image(&self) -> bool {
        self.first + self.kept <= self.original && self.resized > 0
    }

    /// The line of the original that a resized one shows, counted from the first that is kept; `None` if it is not kept.
    /// The scale is a quotient in f32.
    fn place(&self, index: usize) -> Option<usize> {
        let scale = self.original as f32 / self.resized as f32;
        let nearest = ((index as f32 * scale) as usize).min(self.original - 1);
        nearest.checked_sub(self.first).filter(|line| *line < self.kept)
    }
}

/// Where a box is sampled along an axis.
struct Samples {
    start: f32,
    /// Length of a cell.
    bin: f32,
    /// Samples of a cell, a whole number.
    number: f32,
}

impl Samples {
    fn new(start: f32, end: f32, cells: usize) -> Self {
        let extent = (end - start).max(1.0);
        let bin = extent / cells as f32;
        Self { start, bin, number: bin.ceil() }
    }

    fn position(&self, cell: usize, sample: usize) -> f32 {
        self.start + cell as f32 * self.bin + (sample as f32 + 0.5) * self.bin / self.number
    }

    /// The samples of a cell that lie on `size` lines, or a pixel outside of them at most. None for NaN.
    fn inside(&self, cell: usize, size: usize) -> Range<usize> {
        if self.number > MOST_SAMPLES {
            return 0..0;
        }
        let n = self.number as usize;
        let first = first_of(n, |sample| self.position(cell, sample) >= -1.0);
        let is_beyond = |sample| {
            let position = self.position(cell, sample);
            position > size as f32 || position.is_nan()
        };
        first..first_of(n, is_beyond)
    }
}

/// The first of `n` samples that passes, as do all after it; `n` if none does.
fn first_of(n: usize, passes: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, n);
    while low < high {
        let middle = (low + high) / 2;
        if passes(middle) { high = middle } else { low = middle + 1 }
    }
    low
}

/// The rows (or columns) that each cell samples, and their weights.
struct Axis {
    taps: Vec<(usize, f32)>,
    ends: Vec<usize>,
}

impl Axis {
    /// Lists the taps of all cells. A line that is not kept is zero.
    fn new(samples: &Samples, cells: usize, lines: &Lines) -> Self {
        let mut axis = Self { taps: Vec::new(), ends: Vec::with_capacity(cells) };
        for cell in 0..cells {
            let first = axis.taps.len();
            for sample in samples.inside(cell, lines.resized) {
                let at = samples.position(cell, sample).max(0.0);
                let low = (at as usize).min(lines.resized - 1);
                let fraction = if low + 1 < lines.resized { at - low as f32 } else { 0.0 };
                for (index, weight) in [(low, 1.0 - fraction), (low + 1, fraction)] {
                    if weight > 0.0
                        && let Some(index) = lines.place(index)
                    {
                        axis.add(first, index, weight / samples.number);
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
