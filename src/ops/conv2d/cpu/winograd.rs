//! Winograd's convolution with a 3×3 window and stride 1.
//!
//! ```text
//! for each task, some tiles of M×M outputs:
//!     for each tile, for each input channel:
//!         V[point, tile, channel] = Bᵀ · (the tile's N×N inputs) · B
//!     for each panel of output channels:
//!         for each of the N·N points:
//!             products[tile, point, :] = V[point, tile, :] · U[panel, point, :, :]
//!         for each tile, for each output channel of the panel:
//!             out = activation(Aᵀ · products · A + bias + residual)
//! ```
//! `U[panel, point, input, output]` are the transformed weights, made once.
//!
//! Why the code differs:
//! 1. Channels are the innermost axis of everything, so that all transforms work on vectors of channels.
//! 2. A task does all three steps for its tiles in its thread's scratch. Its size is bounded, no thread waits for
//!    another, and a layer needs no memory beyond its output.
//! 3. The products of one panel stay in the second-level cache until they are transformed.
//! 4. `V` has the row distance of the product kernel, so that nothing is gathered again.

use rayon::prelude::*;

use super::tiling::Tiling;
use crate::ops::support::activation::Activation;
use crate::ops::support::cpu::kernel::{Block, DEPTH, LEFT_STRIDE, Start};
use crate::ops::support::cpu::matrix::{TileSize, TileSizeOf};
use crate::ops::support::cpu::memory::{AlignedBuffer, Output, OutputPointer, Scratch};
use crate::ops::support::cpu::product::Epilogue;
use crate::ops::support::cpu::simd::{Job, Simd};
use crate::ops::support::isa::Isa;
use crate::ops::support::parallel::split;

/// Transformed weights: for each point, panels as in a
/// [`PackedMatrix`](crate::ops::support::cpu::matrix::PackedMatrix).
#[derive(Debug)]
pub(in crate::ops::conv2d) struct Weights {
    isa: Isa,
    inputs: usize,
    outputs: usize,
    tile: TileSize,
    /// `[panel, point, input, panel column]`.
    values: AlignedBuffer,
    bias: Vec<f32>,
}

impl Weights {
    /// Transforms a weight `[O, I, 3, 3]`.
    pub(super) fn new<const N: usize, const M: usize>(
        isa: Isa,
        tiling: impl Tiling<N, M>,
        weight: &[f32],
        [outputs, inputs, ..]: [usize; 4],
        bias: &[f32],
    ) -> Self {
        let tile = isa.run(TileSizeOf);
        let panel_values = N * N * inputs * tile.columns;
        let mut values = AlignedBuffer::zeros(outputs.div_ceil(tile.columns) * panel_values);
        let matrix = tiling.weight_transform();
        values
            .values_mut()
            .par_chunks_exact_mut(panel_values)
            .with_max_len(1)
            .enumerate()
            .for_each(|(panel, out)| {
                let first = panel * tile.columns;
                let last = (first + tile.columns).min(outputs);
                let weight = &weight[first * inputs * 9..last * inputs * 9];
                isa.run(WeightTransform { matrix, weight, inputs, columns: tile.columns, out });
            });
        Self { isa, inputs, outputs, tile, values, bias: bias.to_vec() }
    }

    /// The weight `[O, I, 3, 3]` that these were made from, up to rounding.
    pub(super) fn restore<const N: usize, const M: usize>(
        &self,
        tiling: impl Tiling<N, M>,
    ) -> Vec<f32> {
        let inverse = tiling.weight_restoration();
        let Self { inputs, tile: TileSize { columns, .. }, .. } = *self;
        let mut out = vec![0.0; self.outputs * inputs * 9];
        out.par_chunks_exact_mut(inputs * 9).enumerate().for_each(|(output, out)| {
            let panel = output / columns * N * N * inputs * columns;
            for (input, out) in out.chunks_exact_mut(9).enumerate() {
                let value = |point: usize| {
                    let place = panel + (point * inputs + input) * columns + output % columns;
                    f64::from(self.values.values()[place])
                };
                for (tap, out) in out.iter_mut().enumerate() {
                    let (rows, columns) = (inverse[tap / 3], inverse[tap % 3]);
                    let mut sum = 0.0;
                    for (i, row) in rows.iter().enumerate().filter(|(_, row)| **row != 0.0) {
                        for (j, column) in columns.iter().enumerate() {
                            if *column != 0.0 {
                                sum += row * column * value(i * N + j);
                            }
                        }
                    }
                    *out = sum as f32;
                }
            }
        });
        out
    }
}

/// The transform of a panel's weights, in f64 because it is done only once.
struct WeightTransform<'a, const N: usize> {
    /// `G`.
    matrix: [[f64; 3]; N],
    /// `[output, input, 3, 3]` of the panel's outputs.
    weight: &'a [f32],
    inputs: usize,
    columns: usize,
    /// `[point, input, panel column]`.
    out: &'a mut [f32],
}

impl<const N: usize> Job for WeightTransform<'_, N> {
    type Output = ();

    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // indices run over several arrays at once
    fn run<S: Simd>(self, _: S) {
        /// Outputs that are transformed side by side, so that the compiler makes vectors of them.
        const LANES: usize = 8;
        let Self { matrix, weight, inputs, columns, out } = self;
        let outputs = weight.len() / (9 * inputs);
        for first in (0..outputs).step_by(LANES) {
            let lanes = (outputs - first).min(LANES);
            for input in 0..inputs {
                let mut window = [[0.0; LANES]; 9];
                for lane in 0..lanes {
                    let start = ((first + lane) * inputs + input) * 9;
                    for (tap, value) in weight[start..start + 9].iter().enumerate() {
                        window[tap][lane] = f64::from(*value);
                    }
                }
                for i in 0..N {
                    let mut rows = [[0.0; LANES]; 3];
                    for dx in 0..3 {
                        for lane in 0..LANES {
                            rows[dx][lane] = matrix[i][0] * window[dx][lane]
                                + matrix[i][1] * window[3 + dx][lane]
                                + matrix[i][2] * window[6 + dx][lane];
                        }
                    }
                    for j in 0..N {
                        let place = ((i * N + j) * inputs + input) * columns + first;
                        let out = &mut out[place..place + LANES];
                        for lane in 0..LANES {
                            out[lane] = (matrix[j][0] * rows[0][lane]
                                + matrix[j][1] * rows[1][lane]
                                + matrix[j][2] * rows[2][lane])
                                as f32;
                        }
                    }
                }
            }
        }
    }
}

/// Bytes of a task's scratch, so that it stays in the second-level cache. More tiles would read the transformed weights
/// more rarely, but these come as fast as they are needed, thanks to the kernel's prefetches (8 MiB: 5 % slower).
const SCRATCH_BYTES: usize = 1 << 20;

/// Convolves an input `[N, H, W, I]` to `[N, Ho, Wo, O]`.
pub(super) fn run<const N: usize, const M: usize>(
    tiling: impl Tiling<N, M>,
    input: &[f32],
    dims: [usize; 4],
    out_dims: [usize; 4],
    padding: usize,
    weights: &Weights,
    epilogue: Epilogue<'_>,
) -> Vec<f32> {
    let len = out_dims.iter().product();
    if let Some(residual) = epilogue.residual {
        assert_eq!(residual.len(), len, "values of the residual");
    }
    assert_eq!(input.len(), dims.iter().product::<usize>(), "values of the input");
    let mut out = Output::new(len);
    if len > 0 {
        let plan = Plan::new::<N, M>(dims, out_dims, padding, weights);
        let pointer = out.pointer();
        let zeros = vec![0.0; weights.inputs];
        let per_task = plan.tiles_per_task(N * N, weights);
        (0..plan.tiles().div_ceil(per_task)).into_par_iter().with_max_len(1).for_each(|task| {
            let first_tile = task * per_task;
            let tiles = per_task.min(plan.tiles() - first_tile);
            let task = Task::<_, N, M> {
                tiling,
                input,
                zeros: &zeros,
                plan: &plan,
                weights,
                epilogue,
                first_tile,
                tiles,
                out: pointer,
            };
            weights.isa.run(task);
        });
    }
    // SAFETY: the tasks cover all tiles, and the tiles all output pixels.
    unsafe { out.finish() }
}

/// Sizes of a convolution.
#[derive(Debug)]
struct Plan {
    dims: [usize; 4],
    out_dims: [usize; 4],
    padding: usize,
    /// Tiles in y and x.
    grid: [usize; 2],
    /// Blocks of terms.
    blocks: usize,
    /// Values from one tile's products to the next tile's.
    product_stride: usize,
}

impl Plan {
    fn new<const N: usize, const M: usize>(
        dims: [usize; 4],
        out_dims: [usize; 4],
        padding: usize,
        weights: &Weights,
    ) -> Self {
        Self {
            dims,
            out_dims,
            padding,
            grid: [out_dims[1].div_ceil(M), out_dims[2].div_ceil(M)],
            blocks: weights.inputs.div_ceil(DEPTH),
            // No multiple of 4 KiB, so that tiles' products don't evict each other.
            product_stride: N * N * weights.tile.columns + 16,
        }
    }

    fn tiles(&self) -> usize {
        self.out_dims[0] * self.grid[0] * self.grid[1]
    }

    fn tiles_per_task(&self, points: usize, weights: &Weights) -> usize {
        let values = points * self.blocks * LEFT_STRIDE + self.product_stride;
        let tile_bytes = values * size_of::<f32>();
        let tasks = 4 * rayon::current_num_threads();
        split(self.tiles(), tasks, weights.tile.rows, SCRATCH_BYTES / tile_bytes)
    }
}

/// Some tiles of a convolution.
struct Task<'a, T, const N: usize, const M: usize> {
    tiling: T,
    input: &'a [f32],
    /// As many zeros as the input has channels.
    zeros: &'a [f32],
    plan: &'a Plan,
    weights: &'a Weights,
    epilogue: Epilogue<'a>,
    first_tile: usize,
    tiles: usize,
    out: OutputPointer,
}

/// Where a tile lies.
#[derive(Debug, Clone, Copy)]
struct Tile {
    image: usize,
    /// Top left output pixel.
    y: usize,
    x: usize,
}

impl<T: Tiling<N, M>, const N: usize, const M: usize> Job for Task<'_, T, N, M> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let inputs_len = N * N * self.plan.blocks * self.tiles * LEFT_STRIDE;
        let products_len = self.tiles * self.plan.product_stride;
        let mut scratch = Scratch::new(inputs_len + products_len);
        let (inputs, products) = scratch.values().split_at_mut(inputs_len);
        for tile in 0..self.tiles {
            self.transform_input(simd, tile, inputs);
        }
        let width = self.weights.tile.columns;
        for panel in 0..self.weights.outputs.div_ceil(width) {
            self.multiply(simd, panel, inputs, products);
            for (tile, products) in products.chunks_exact(self.plan.product_stride).enumerate() {
                self.transform_output(simd, tile, panel * width, products);
            }
        }
    }
}

impl<T: Tiling<N, M>, const N: usize, const M: usize> Task<'_, T, N, M> {
    fn tile(&self, index: usize) -> Tile {
        let index = self.first_tile + index;
        let [rows, columns] = self.plan.grid;
        Tile {
            image: index / columns / rows,
            y: index / columns % rows * M,
            x: index % columns * M,
        }
    }

    /// Writes `[point, block of terms, tile, LEFT_STRIDE]`, all points and blocks of one tile.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // indices run over both axes
    fn transform_input<S: Simd>(&self, simd: S, index: usize, out: &mut [f32]) {
        let [_, height, width, channels] = self.plan.dims;
        let padding = self.plan.padding;
        let tile = self.tile(index);
        let pixels: [[*const f32; N]; N] = std::array::from_fn(|i| {
            std::array::from_fn(|j| {
                // Wraps around to something larger than the input when it is negative.
                let y = (tile.y + i).wrapping_sub(padding);
                let x = (tile.x + j).wrapping_sub(padding);
                if y < height && x < width {
                    let start = ((tile.image * height + y) * width + x) * channels;
                    self.input[start..start + channels].as_ptr()
                } else {
                    self.zeros.as_ptr()
                }
            })
        });
        assert!(self.zeros.len() == channels && S::LANES <= LEFT_STRIDE - DEPTH);
        let block_stride = self.tiles * LEFT_STRIDE;
        let point_stride = self.plan.blocks * block_stride;
        assert!(out.len() == N * N * point_stride && index < self.tiles);
        let out = out.as_mut_ptr();
        for channel in (0..channels).step_by(S::LANES) {
            let n = (channels - channel).min(S::LANES);
            let place = channel / DEPTH * block_stride + index * LEFT_STRIDE + channel % DEPTH;
            // Loops instead of closures, as always where vectors are computed: a closure is a function of its own, which
            // does not have the job's instructions unless the compiler happens to inline it.
            let mut half = [[simd.splat(0.0); N]; N];
            for j in 0..N {
                let mut column = [simd.splat(0.0); N];
                for i in 0..N {
                    // SAFETY: each of `pixels` has `channels` values, `n` of them from `channel` on.
                    column[i] = unsafe { simd.load_up_to(pixels[i][j].add(channel), n) };
                }
                let column = self.tiling.transform_input(simd, column);
                for i in 0..N {
                    half[i][j] = column[i];
                }
            }
            for (i, row) in half.into_iter().enumerate() {
                let row = self.tiling.transform_input(simd, row);
                for (j, value) in row.into_iter().enumerate() {
                    // SAFETY: point, block, tile and channel are below their sizes, whose product is the length of
                    // `out`; a row ends `LEFT_STRIDE − DEPTH ≥ LANES` after its last channel.
                    unsafe { simd.store(out.add((i * N + j) * point_stride + place), value) };
                }
            }
        }
    }

    /// Multiplies the transformed tiles with a panel of transformed weights: `[tile, point, panel column]`, tiles
    /// `product_stride` apart.
    #[inline(always)]
    fn multiply<S: Simd>(&self, simd: S, panel: usize, inputs: &[f32], products: &mut [f32]) {
        let Weights { inputs: terms, tile, values, .. } = self.weights;
        let point_values = terms * tile.columns;
        let stride = self.plan.product_stride;
        let block_stride = self.tiles * LEFT_STRIDE;
        let values = &values.values()[panel * N * N * point_values..][..N * N * point_values];
        assert!(inputs.len() == N * N * self.plan.blocks * block_stride);
        assert!(products.len() == self.tiles * stride && N * N * tile.columns <= stride);
        let offsets = (0..self.tiles).map(|t| t * stride).collect::<Vec<_>>();
        for point in 0..N * N {
            for block in 0..self.plan.blocks {
                let first_term = block * DEPTH;
                // SAFETY: the sizes asserted above; sums of the first block are there before those of the next.
                unsafe {
                    Block {
                        left: inputs
                            .as_ptr()
                            .add((point * self.plan.blocks + block) * block_stride),
                        panels: values
                            .as_ptr()
                            .add(point * point_values + first_term * tile.columns),
                        panel_stride: point_values,
                        depth: (terms - first_term).min(DEPTH),
                        columns: tile.columns,
                        out: products.as_mut_ptr().add(point * tile.columns),
                        offsets: &offsets,
                        start: if block == 0 { Start::Zero } else { Start::Sums },
                        finish: None,
                    }
                    .multiply(simd);
                }
            }
        }
    }

    /// Writes a panel's output channels, from `first_channel` on, of a tile from its products `[point, panel column]`.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // indices run over both axes
    fn transform_output<S: Simd>(
        &self,
        simd: S,
        index: usize,
        first_channel: usize,
        products: &[f32],
    ) {
        let [_, height, width, channels] = self.plan.out_dims;
        let tile = self.tile(index);
        let (out_rows, out_columns) = ((height - tile.y).min(M), (width - tile.x).min(M));
        let panel_columns = self.weights.tile.columns;
        assert!(products.len() >= N * N * panel_columns && panel_columns.is_multiple_of(S::LANES));
        assert!(self.weights.bias.len() == channels);
        let bias = self.weights.bias.as_ptr();
        let products = products.as_ptr();
        let first_pixel = (tile.image * height + tile.y) * width + tile.x;
        let end = channels.min(first_channel + panel_columns);
        for channel in (first_channel..end).step_by(S::LANES) {
            let n = (end - channel).min(S::LANES);
            let mut half = [[simd.splat(0.0); N]; M];
            for j in 0..N {
                let mut column = [simd.splat(0.0); N];
                for (i, value) in column.iter_mut().enumerate() {
                    let place = (i * N + j) * panel_columns + channel - first_channel;
                    // SAFETY: each point has products for all columns of the panel, a whole number of vectors.
                    *value = unsafe { simd.load(products.add(place)) };
                }
                let column = self.tiling.transform_output(simd, column);
                for i in 0..M {
                    half[i][j] = column[i];
                }
            }
            // SAFETY: there are as many values of bias as channels.
            let bias = unsafe { simd.load_up_to(bias.add(channel), n) };
            for (i, row) in half.into_iter().enumerate().take(out_rows) {
                let row = self.tiling.transform_output(simd, row);
                for (j, mut value) in row.into_iter().enumerate().take(out_columns) {
                    value = simd.add(value, bias);
                    let place = (first_pixel + i * width + j) * channels + channel;
                    // SAFETY: row and column are inside of the output, and `n` channels follow; output and residual have
                    // equally many values, as `run` asserts. Tiles don't overlap, and no other task has this one.
                    unsafe {
                        if let Some(residual) = self.epilogue.residual {
                            value =
                                simd.add(value, simd.load_up_to(residual.as_ptr().add(place), n));
                        }
                        if self.epilogue.activation == Activation::Relu {
                            value = simd.relu(value);
                        }
                        simd.store_up_to(self.out.get().add(place), value, n);
                    }
                }
            }
        }
    }
}
