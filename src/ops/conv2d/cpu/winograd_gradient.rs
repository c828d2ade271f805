//! Winograd's method for the gradient of a 3×3 weight with stride 1: the adjoint of the convolution's.
//!
//! ```text
//! for each task, some outputs and some inputs:
//!     for each block of tiles with M×M outputs:
//!         V[point, tile, input] = Bᵀ · (the tile's N×N inputs) · B
//!         W[point, tile, output] = A · (the tile's M×M gradients) · Aᵀ
//!         for each of the N·N points:
//!             sums[point, output, input] += Σ over tiles W[point, tile, output] · V[point, tile, input]
//!     gradient[output, input] = Gᵀ · sums[:, output, input] · G
//! ```
//! The sums of a task stay in the second-level cache, for which the transforms of its channels are repeated in some
//! tasks: they cost little beside the products.

use std::ops::Range;

use rayon::prelude::*;

use super::super::sizes::Sizes;
use super::tiling::Tiling;
use crate::ops::support::cpu::element::Pointer;
use crate::ops::support::cpu::kernel::Start;
use crate::ops::support::cpu::matrix::TileSizeOf;
use crate::ops::support::cpu::memory::{Output, Scratch};
use crate::ops::support::cpu::outer::{OuterBlock, OuterPlan};
use crate::ops::support::cpu::simd::{Job, Simd};
use crate::ops::support::isa::Isa;
use crate::ops::support::parallel::Grid;

/// Input channels of a task.
const INPUTS: usize = 64;
/// Rows of the product kernel's tile that a task has outputs for.
const OUTPUT_TILES: usize = 5;
/// Values from one tile's transformed gradients to the next tile's: as many as the widest kernel's tiles, in whole
/// vectors.
const OUTPUT_STRIDE: usize = 80;
/// Tiles that are transformed at a time.
const TILES: usize = 24;

/// Tiles in which some output pixels lie, by ascending index.
pub(super) fn tiles_of<const N: usize, const M: usize>(
    _: impl Tiling<N, M>,
    pixels: &[usize],
    sizes: &Sizes,
) -> Vec<usize> {
    let [batch, height, width, _] = sizes.output;
    let [rows, columns] = tile_grid::<M>(sizes);
    let mut found = vec![false; batch * rows * columns];
    for pixel in pixels {
        let (x, y, image) = (pixel % width, pixel / width % height, pixel / width / height);
        found[(image * rows + y / M) * columns + x / M] = true;
    }
    (0..found.len()).filter(|tile| found[*tile]).collect()
}

/// Tiles in y and x.
fn tile_grid<const M: usize>(sizes: &Sizes) -> [usize; 2] {
    let [_, height, width, _] = sizes.output;
    [height.div_ceil(M), width.div_ceil(M)]
}

/// Gradient `[O, I, 3, 3]` of the weight, where the output's is zero outside of `tiles`.
pub(super) fn run<const N: usize, const M: usize>(
    isa: Isa,
    tiling: impl Tiling<N, M>,
    input: &[f32],
    gradient: &[f32],
    tiles: &[usize],
    sizes: &Sizes,
) -> Vec<f32> {
    let [outputs, inputs, ..] = sizes.weight;
    let len = outputs * inputs * 9;
    if len == 0 || tiles.is_empty() {
        return vec![0.0; len];
    }
    assert_eq!(input.len(), sizes.input.iter().product::<usize>(), "values of the input");
    assert_eq!(gradient.len(), sizes.output.iter().product::<usize>(), "values of the gradient");
    let outputs_per_task = (OUTPUT_TILES * isa.run(TileSizeOf).rows).min(OUTPUT_STRIDE);
    let grid = Grid { sizes: [outputs, inputs], steps: [outputs_per_task, INPUTS] };
    let blocks = tiles.len().div_ceil(TILES);
    let plan = OuterPlan::new(grid, blocks, len);
    let zeros = vec![0.0; outputs.max(inputs)];
    let mut out = Output::<f32>::new(len * plan.parts);
    let pointer = out.pointer();
    (0..plan.tasks()).into_par_iter().with_max_len(1).for_each(|task| {
        let (part, outputs, inputs) = plan.task(task);
        let blocks = plan.units(part, blocks);
        isa.run(Task::<_, N, M> {
            tiling,
            input,
            gradient,
            sizes,
            zeros: &zeros,
            tile_grid: tile_grid::<M>(sizes),
            tiles: &tiles[blocks.start * TILES..(blocks.end * TILES).min(tiles.len())],
            outputs,
            inputs,
            place: part * len,
            out: pointer,
        });
    });
    // SAFETY: the tasks cover all outputs and inputs of all parts, each of which has tiles.
    plan.sum(unsafe { out.finish() })
}

struct Task<'a, T, const N: usize, const M: usize> {
    tiling: T,
    input: &'a [f32],
    gradient: &'a [f32],
    sizes: &'a Sizes,
    /// As many zeros as a pixel has channels.
    zeros: &'a [f32],
    /// Tiles in y and x.
    tile_grid: [usize; 2],
    tiles: &'a [usize],
    outputs: Range<usize>,
    inputs: Range<usize>,
    /// Of the part's result in the output.
    place: usize,
    out: Pointer,
}

impl<T: Tiling<N, M>, const N: usize, const M: usize> Job for Task<'_, T, N, M> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let points = N * N;
        let n_outputs = self.outputs.len();
        let sums_len = points * n_outputs * INPUTS;
        let values_len = points * TILES * INPUTS;
        let gradients_len = points * TILES * OUTPUT_STRIDE;
        let mut scratch = Scratch::new(sums_len + values_len + gradients_len);
        let (sums, rest) = scratch.values().split_at_mut(sums_len);
        let (values, gradients) = rest.split_at_mut(values_len);
        for (block, tiles) in self.tiles.chunks(TILES).enumerate() {
            let depth = tiles.len();
            for (index, tile) in tiles.iter().enumerate() {
                self.transform_input(simd, *tile, index, values);
                self.transform_gradient(simd, *tile, index, gradients);
            }
            for point in 0..points {
                // SAFETY: each point has `TILES` rows on both sides, of which the first `depth` were written; a row of
                // values is a whole number of vectors, and `n_outputs`, rounded up to whole tiles of rows, is at most
                // `OUTPUT_STRIDE`. The point's sums have a row of `INPUTS` for each output; the first block writes them.
                unsafe {
                    OuterBlock {
                        left: gradients.as_ptr().add(point * TILES * OUTPUT_STRIDE),
                        left_stride: OUTPUT_STRIDE,
                        right: values.as_ptr().add(point * TILES * INPUTS),
                        right_stride: INPUTS,
                        depth,
                        rows: n_outputs,
                        columns: INPUTS,
                        out: sums.as_mut_ptr().add(point * n_outputs * INPUTS),
                        out_stride: INPUTS,
                        start: if block == 0 { Start::Zero } else { Start::Sums },
                    }
                    .multiply(simd);
                }
            }
        }
        self.write(sums);
    }
}

impl<T: Tiling<N, M>, const N: usize, const M: usize> Task<'_, T, N, M> {
    /// Image and top left output pixel of a tile.
    fn corner(&self, tile: usize) -> [usize; 3] {
        let [rows, columns] = self.tile_grid;
        [tile / columns / rows, tile / columns % rows * M, tile % columns * M]
    }

    /// The task's channels of a pixel, or zeros outside of the map.
    #[inline(always)]
    fn pixel(
        &self,
        map: &[f32],
        [_, height, width, channels]: [usize; 4],
        [image, y, x]: [usize; 3],
        range: &Range<usize>,
    ) -> *const f32 {
        if y < height && x < width {
            let start = ((image * height + y) * width + x) * channels;
            map[start + range.start..start + range.end].as_ptr()
        } else {
            self.zeros[..range.len()].as_ptr()
        }
    }

    /// Writes `[point, tile, INPUTS]`, all points of one tile; zeros after the last channel.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // indices run over both axes
    fn transform_input<S: Simd>(&self, simd: S, tile: usize, index: usize, out: &mut [f32]) {
        let [image, y, x] = self.corner(tile);
        let padding = self.sizes.params.padding;
        let pixels: [[*const f32; N]; N] = std::array::from_fn(|i| {
            std::array::from_fn(|j| {
                // Wraps around to something larger than the input when it is negative.
                let (y, x) = ((y + i).wrapping_sub(padding), (x + j).wrapping_sub(padding));
                self.pixel(self.input, self.sizes.input, [image, y, x], &self.inputs)
            })
        });
        assert!(out.len() == N * N * TILES * INPUTS && index < TILES);
        assert!(INPUTS.is_multiple_of(S::LANES));
        let out = out.as_mut_ptr();
        for channel in (0..INPUTS).step_by(S::LANES) {
            let n = self.inputs.len().saturating_sub(channel).min(S::LANES);
            let mut half = [[simd.splat(0.0); N]; N];
            if n > 0 {
                for j in 0..N {
                    let mut column = [simd.splat(0.0); N];
                    for i in 0..N {
                        // SAFETY: each of `pixels` has all channels of the task, `n` of them from `channel` on.
                        column[i] = unsafe { simd.load_up_to(pixels[i][j].add(channel), n) };
                    }
                    let column = self.tiling.transform_input(simd, column);
                    for i in 0..N {
                        half[i][j] = column[i];
                    }
                }
            }
            for (i, row) in half.into_iter().enumerate() {
                let row = self.tiling.transform_input(simd, row);
                for (j, value) in row.into_iter().enumerate() {
                    let place = ((i * N + j) * TILES + index) * INPUTS + channel;
                    // SAFETY: point and tile are below their numbers, whose product with `INPUTS` is the length of `out`;
                    // `INPUTS` is a whole number of vectors.
                    unsafe { simd.store(out.add(place), value) };
                }
            }
        }
    }

    /// Writes `[point, tile, OUTPUT_STRIDE]`, all points of one tile.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // indices run over both axes
    fn transform_gradient<S: Simd>(&self, simd: S, tile: usize, index: usize, out: &mut [f32]) {
        let [image, y, x] = self.corner(tile);
        let pixels: [[*const f32; M]; M] = std::array::from_fn(|i| {
            std::array::from_fn(|j| {
                let place = [image, y + i, x + j];
                self.pixel(self.gradient, self.sizes.output, place, &self.outputs)
            })
        });
        assert!(out.len() == N * N * TILES * OUTPUT_STRIDE && index < TILES);
        assert!(OUTPUT_STRIDE.is_multiple_of(S::LANES) && self.outputs.len() <= OUTPUT_STRIDE);
        let out = out.as_mut_ptr();
        for channel in (0..self.outputs.len()).step_by(S::LANES) {
            let n = (self.outputs.len() - channel).min(S::LANES);
            let mut half = [[simd.splat(0.0); M]; N];
            for j in 0..M {
                let mut column = [simd.splat(0.0); M];
                for i in 0..M {
                    // SAFETY: each of `pixels` has all channels of the task, `n` of them from `channel` on.
                    column[i] = unsafe { simd.load_up_to(pixels[i][j].add(channel), n) };
                }
                let column = self.tiling.spread_output(simd, column);
                for i in 0..N {
                    half[i][j] = column[i];
                }
            }
            for (i, row) in half.into_iter().enumerate() {
                let row = self.tiling.spread_output(simd, row);
                for (j, value) in row.into_iter().enumerate() {
                    let place = ((i * N + j) * TILES + index) * OUTPUT_STRIDE + channel;
                    // SAFETY: as for the input.
                    unsafe { simd.store(out.add(place), value) };
                }
            }
        }
    }

    /// Transforms the sums `[point, output, INPUTS]` back, and writes the task's part of `[O, I, 3, 3]`.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // indices run over several arrays at once
    fn write(&self, sums: &[f32]) {
        /// Inputs that are transformed side by side, so that the compiler makes vectors of them.
        const LANES: usize = 8;
        let matrix = self.tiling.weight_transform();
        let [_, inputs, ..] = self.sizes.weight;
        let n_outputs = self.outputs.len();
        for output in 0..n_outputs {
            for first in (0..self.inputs.len()).step_by(LANES) {
                let lanes = (self.inputs.len() - first).min(LANES);
                let mut half = [[[0.0; LANES]; N]; 3];
                for i in 0..N {
                    for j in 0..N {
                        let start = ((i * N + j) * n_outputs + output) * INPUTS + first;
                        let sums = &sums[start..start + LANES];
                        for tap in 0..3 {
                            for lane in 0..LANES {
                                half[tap][j][lane] += matrix[i][tap] * f64::from(sums[lane]);
                            }
                        }
                    }
                }
                let mut taps = [[0.0; LANES]; 9];
                for j in 0..N {
                    for tap in 0..9 {
                        for lane in 0..LANES {
                            taps[tap][lane] += matrix[j][tap % 3] * half[tap / 3][j][lane];
                        }
                    }
                }
                let channel = self.inputs.start + first;
                let place = self.place + ((self.outputs.start + output) * inputs + channel) * 9;
                for lane in 0..lanes {
                    for tap in 0..9 {
                        // SAFETY: output and input are below their numbers, the place lies inside of the part, and no
                        // other task has these outputs and inputs.
                        unsafe {
                            self.out.add(place + lane * 9 + tap).write(taps[tap][lane] as f32);
                        }
                    }
                }
            }
        }
    }
}
