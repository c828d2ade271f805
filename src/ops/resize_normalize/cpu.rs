//! For each row of the batch, on all threads: weighs the two nearest source rows, and in each the two nearest columns.
//! ```text
//! at    = max((y + ½) · input / output − ½, 0)
//! value = (1 − fraction) · pixel[floor(at)] + fraction · pixel[floor(at) + 1]
//! ```
//! Pixels are normalised as they are read: a byte by a table of 256 values per channel, so that an image of
//! 20,000×20,000 pixels needs no 4.8 GB of floats.

use rayon::prelude::*;

use super::ResizeNormalizeParams;

/// Reads normalised pixels.
pub(super) trait Pixels: Sync {
    /// Red, green, blue of the pixel at this position in row-major order.
    fn at(&self, index: usize) -> [f32; 3];
}

/// Interleaved bytes.
pub(super) struct Bytes<'a> {
    bytes: &'a [[u8; 3]],
    normalised: [[f32; 256]; 3],
}

impl<'a> Bytes<'a> {
    pub fn new(bytes: &'a [u8], params: &ResizeNormalizeParams) -> Self {
        let table = |channel: usize| {
            let (mean, std) = (params.mean[channel], params.std[channel]);
            std::array::from_fn(|byte| (byte as f32 / 255.0 - mean) / std)
        };
        Self { bytes: bytes.as_chunks().0, normalised: [table(0), table(1), table(2)] }
    }
}

impl Pixels for Bytes<'_> {
    #[inline(always)]
    fn at(&self, index: usize) -> [f32; 3] {
        let [red, green, blue] = self.bytes[index];
        let [reds, greens, blues] = &self.normalised;
        [reds[usize::from(red)], greens[usize::from(green)], blues[usize::from(blue)]]
    }
}

/// Planes of floats.
pub(super) struct Planes<'a> {
    planes: [&'a [f32]; 3],
    mean: [f32; 3],
    std: [f32; 3],
}

impl<'a> Planes<'a> {
    pub fn new(planes: &'a [f32], params: &ResizeNormalizeParams) -> Self {
        let (red, rest) = planes.split_at(planes.len() / 3);
        let (green, blue) = rest.split_at(rest.len() / 2);
        Self { planes: [red, green, blue], mean: params.mean, std: params.std }
    }
}

impl Pixels for Planes<'_> {
    #[inline(always)]
    fn at(&self, index: usize) -> [f32; 3] {
        std::array::from_fn(|c| (self.planes[c][index] - self.mean[c]) / self.std[c])
    }
}

/// The two source rows (or columns) of an output row, and the share of the second.
#[derive(Clone, Copy)]
struct Tap {
    low: usize,
    high: usize,
    fraction: f32,
}

/// Where output `index` of `output` falls among `input` rows.
///
/// The position is rounded once, as in torch, whose kernels are built with fused multiply-add: rounding the product too
/// moves samples by up to 1.2e-4 pixels at a width of 4000.
fn tap(index: usize, input: usize, output: usize) -> Tap {
    if input == output {
        return Tap { low: index, high: index, fraction: 0.0 };
    }
    let step = input as f32 / output as f32;
    let at = step.mul_add(index as f32 + 0.5, -0.5).max(0.0);
    let low = (at as usize).min(input - 1);
    let fraction = (at - low as f32).clamp(0.0, 1.0);
    Tap { low, high: (low + 1).min(input - 1), fraction }
}

/// Fills the top left of a zero canvas of `padded` size.
pub(super) fn run<P: Pixels>(
    pixels: &P,
    original: (usize, usize),
    resized: (usize, usize),
    padded: (usize, usize),
    canvas: &mut [f32],
) {
    let columns: Vec<Tap> = (0..resized.1).map(|x| tap(x, original.1, resized.1)).collect();
    let rows = canvas.par_chunks_exact_mut(padded.1 * 3).take(resized.0).enumerate();
    rows.for_each(|(y, row)| {
        let vertical = tap(y, original.0, resized.0);
        let (top, bottom) = (vertical.low * original.1, vertical.high * original.1);
        for (column, out) in columns.iter().zip(row.as_chunks_mut::<3>().0) {
            let mix = |a: [f32; 3], b: [f32; 3], fraction: f32| -> [f32; 3] {
                std::array::from_fn(|c| (1.0 - fraction) * a[c] + fraction * b[c])
            };
            let across = |start: usize| {
                let (left, right) = (start + column.low, start + column.high);
                mix(pixels.at(left), pixels.at(right), column.fraction)
            };
            *out = mix(across(top), across(bottom), vertical.fraction);
        }
    });
}
