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

mod weights;

use rayon::prelude::*;

pub(in crate::ops::conv2d) use weights::Weights;

use super::tiling::Tiling;
use crate::ops::support::activation::Activation;
use crate::ops::support::cpu::element::{Element, MAX_LANES, Pointer};
use crate::ops::support::cpu::kernel::{Block, DEPTH, Kernel, LEFT_STRIDE, Start};
use crate::ops::support::cpu::memory::{Output, Scratch};
use crate::ops::support::cpu::product::Epilogue;
use crate::ops::support::cpu::simd::{Job, Simd};
use crate::ops::support::parallel::split;

/// Bytes of a task's scratch, so that it stays in the second-level cache. More tiles would read the transformed weights
/// more rarely, but these come as fast as they are needed, thanks to the kernel's prefetches (8 MiB: 5 % slower).
const SCRATCH_BYTES: usize = 1 << 20;

/// Convolves an input `[N, H, W, I]` to `[N, Ho, Wo, O]`.
pub(super) fn run<E: Element, O: Element, const N: usize, const M: usize>(
    tiling: impl Tiling<N, M>,
    input: &[E],
    dims: [usize; 4],
    out_dims: [usize; 4],
    padding: usize,
    weights: &Weights,
    epilogue: Epilogue<'_>,
) -> Vec<O> {
    let len = out_dims.iter().product();
    if let Some(residual) = epilogue.residual {
        assert_eq!(residual.len, len, "values of the residual");
    }
    assert_eq!(input.len(), dims.iter().product::<usize>(), "values of the input");
    let mut out = Output::<O>::new(len);
    if len > 0 {
        let plan = Plan::new::<N, M>(dims, out_dims, padding, weights);
        let pointer = out.pointer();
        let zeros = vec![E::default(); weights.inputs];
        let per_task = plan.tiles_per_task(N * N, weights);
        (0..plan.tiles().div_ceil(per_task)).into_par_iter().with_max_len(1).for_each(|task| {
            let first_tile = task * per_task;
            let tiles = per_task.min(plan.tiles() - first_tile);
            let task = Task { plan: &plan, weights, first_tile, tiles };
            task.run::<E, _, N, M>(tiling, input, &zeros, epilogue, pointer);
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

/// Some tiles of a convolution. Its three steps are jobs of their own, so that the products, which don't depend on the
/// tiles' size or the numbers' type, are compiled once for all of them.
#[derive(Clone, Copy)]
struct Task<'a> {
    plan: &'a Plan,
    weights: &'a Weights,
    first_tile: usize,
    tiles: usize,
}

/// Where a tile lies.
#[derive(Debug, Clone, Copy)]
struct Tile {
    image: usize,
    /// Top left output pixel.
    y: usize,
    x: usize,
}

impl Task<'_> {
    fn run<E: Element, T: Tiling<N, M>, const N: usize, const M: usize>(
        self,
        tiling: T,
        input: &[E],
        zeros: &[E],
        epilogue: Epilogue<'_>,
        out: Pointer,
    ) {
        let Weights { isa, outputs, tile, .. } = self.weights;
        let stride = self.plan.product_stride;
        let inputs_len = N * N * self.plan.blocks * self.tiles * LEFT_STRIDE;
        // The kernel reads whole tiles of rows.
        let filling = tile.rows * LEFT_STRIDE;
        let mut scratch = Scratch::new(inputs_len + filling + self.tiles * stride);
        let (inputs, products) = scratch.values().split_at_mut(inputs_len + filling);
        let out_of_inputs = &mut inputs[..inputs_len];
        isa.run(InputTransform {
            task: self,
            tiling: TilingOf(tiling),
            input,
            zeros,
            out: out_of_inputs,
        });
        for panel in 0..outputs.div_ceil(tile.columns) {
            isa.run(Products { task: self, points: N * N, panel, inputs, products });
            let first_channel = panel * tile.columns;
            let tiling = TilingOf(tiling);
            isa.run(OutputTransform { task: self, tiling, first_channel, products, epilogue, out });
        }
    }

    fn tile<const M: usize>(&self, index: usize) -> Tile {
        let index = self.first_tile + index;
        let [rows, columns] = self.plan.grid;
        Tile {
            image: index / columns / rows,
            y: index / columns % rows * M,
            x: index % columns * M,
        }
    }
}

/// A tiling with its sizes, which a job could not have as parameters otherwise.
#[derive(Clone, Copy)]
struct TilingOf<T, const N: usize, const M: usize>(T);

/// Writes the transformed inputs: `[point, block of terms, tile, LEFT_STRIDE]`.
struct InputTransform<'a, T, E> {
    task: Task<'a>,
    tiling: T,
    input: &'a [E],
    /// As many zeros as the input has channels.
    zeros: &'a [E],
    out: &'a mut [f32],
}

impl<E: Element, T: Tiling<N, M>, const N: usize, const M: usize> Job
    for InputTransform<'_, TilingOf<T, N, M>, E>
{
    type Output = ();

    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // indices run over both axes
    fn run<S: Simd>(self, simd: S) {
        let Self { task, tiling: TilingOf(tiling), input, zeros, out } = self;
        let [_, height, width, channels] = task.plan.dims;
        let padding = task.plan.padding;
        assert!(zeros.len() == channels && S::LANES <= LEFT_STRIDE - DEPTH);
        let block_stride = task.tiles * LEFT_STRIDE;
        let point_stride = task.plan.blocks * block_stride;
        assert!(out.len() == N * N * point_stride);
        let out = out.as_mut_ptr();
        for index in 0..task.tiles {
            let tile = task.tile::<M>(index);
            let pixels: [[*const E; N]; N] = std::array::from_fn(|i| {
                std::array::from_fn(|j| {
                    // Wraps around to something larger than the input when it is negative.
                    let y = (tile.y + i).wrapping_sub(padding);
                    let x = (tile.x + j).wrapping_sub(padding);
                    if y < height && x < width {
                        let start = ((tile.image * height + y) * width + x) * channels;
                        input[start..start + channels].as_ptr()
                    } else {
                        zeros.as_ptr()
                    }
                })
            });
            for channel in (0..channels).step_by(S::LANES) {
                let n = (channels - channel).min(S::LANES);
                let place = channel / DEPTH * block_stride + index * LEFT_STRIDE + channel % DEPTH;
                // Loops instead of closures, as always where vectors are computed: a closure is a function of its own,
                // which does not have the job's instructions unless the compiler happens to inline it.
                let mut half = [[simd.splat(0.0); N]; N];
                for j in 0..N {
                    let mut column = [simd.splat(0.0); N];
                    for i in 0..N {
                        // SAFETY: each of `pixels` has `channels` values, `n` of them from `channel` on.
                        column[i] = unsafe {
                            let from = pixels[i][j].add(channel);
                            if n == S::LANES {
                                E::load(simd, from)
                            } else {
                                E::load_first(simd, from, n)
                            }
                        };
                    }
                    let column = tiling.transform_input(simd, column);
                    for i in 0..N {
                        half[i][j] = column[i];
                    }
                }
                for (i, row) in half.into_iter().enumerate() {
                    let row = tiling.transform_input(simd, row);
                    for (j, value) in row.into_iter().enumerate() {
                        // SAFETY: point, block, tile and channel are below their sizes, whose product is the length of
                        // `out`; a row ends `LEFT_STRIDE − DEPTH ≥ LANES` after its last channel.
                        unsafe { simd.store(out.add((i * N + j) * point_stride + place), value) };
                    }
                }
            }
        }
    }
}

/// Multiplies the transformed tiles with a panel of transformed weights: `[tile, point, panel column]`, tiles
/// `product_stride` apart.
struct Products<'a> {
    task: Task<'a>,
    points: usize,
    panel: usize,
    inputs: &'a [f32],
    products: &'a mut [f32],
}

impl Job for Products<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { task, points, panel, inputs, products } = self;
        let Weights { inputs: terms, tile, values, .. } = task.weights;
        let point_values = terms * tile.columns;
        let (stride, blocks) = (task.plan.product_stride, task.plan.blocks);
        let block_stride = task.tiles * LEFT_STRIDE;
        let values = &values.values()[panel * points * point_values..][..points * point_values];
        assert!(inputs.len() == points * blocks * block_stride + tile.rows * LEFT_STRIDE);
        assert!(products.len() == task.tiles * stride && points * tile.columns <= stride);
        let offsets = (0..task.tiles).map(|t| t * stride).collect::<Vec<_>>();
        for point in 0..points {
            for block in 0..blocks {
                let first_term = block * DEPTH;
                // SAFETY: the sizes asserted above, with rows up to a whole tile after the last; sums of the first block
                // are there before those of the next.
                unsafe {
                    Block {
                        kernel: Kernel::Values,
                        left: inputs.as_ptr().add((point * blocks + block) * block_stride),
                        panels: values
                            .as_ptr()
                            .add(point * point_values + first_term * tile.columns),
                        panel_stride: point_values,
                        depth: (terms - first_term).min(DEPTH),
                        columns: tile.columns,
                        sums: products.as_mut_ptr().add(point * tile.columns),
                        offsets: &offsets,
                        start: if block == 0 { Start::Zero } else { Start::Sums },
                        finish: None,
                    }
                    .multiply(simd);
                }
            }
        }
    }
}

/// Writes a panel's output channels, from `first_channel` on, of all tiles from their products.
struct OutputTransform<'a, T> {
    task: Task<'a>,
    tiling: T,
    first_channel: usize,
    products: &'a [f32],
    epilogue: Epilogue<'a>,
    out: Pointer,
}

impl<T: Tiling<N, M>, const N: usize, const M: usize> Job
    for OutputTransform<'_, TilingOf<T, N, M>>
{
    type Output = ();

    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // indices run over both axes
    fn run<S: Simd>(self, simd: S) {
        let Self { task, tiling: TilingOf(tiling), first_channel, products, epilogue, out } = self;
        let [_, height, width, channels] = task.plan.out_dims;
        let panel_columns = task.weights.tile.columns;
        assert!(panel_columns.is_multiple_of(S::LANES));
        assert!(task.weights.bias.len() == channels);
        let bias = task.weights.bias.as_ptr();
        let end = channels.min(first_channel + panel_columns);
        for (index, products) in products.chunks_exact(task.plan.product_stride).enumerate() {
            assert!(products.len() >= N * N * panel_columns);
            let products = products.as_ptr();
            let tile = task.tile::<M>(index);
            let (out_rows, out_columns) = ((height - tile.y).min(M), (width - tile.x).min(M));
            let first_pixel = (tile.image * height + tile.y) * width + tile.x;
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
                    let column = tiling.transform_output(simd, column);
                    for i in 0..M {
                        half[i][j] = column[i];
                    }
                }
                let place = first_pixel * channels + channel;
                // SAFETY: there are as many values of bias as channels. Row and column are inside of the output, and `n`
                // channels follow; output and residual have equally many values, as `run` asserts. Tiles don't overlap,
                // and no other task has this one.
                unsafe {
                    let bias = simd.load_up_to(bias.add(channel), n);
                    let finish = FinishPixels {
                        bias,
                        residual: epilogue.residual.map(|residual| residual.pointer.add(place)),
                        activation: epilogue.activation,
                        out: out.add(place),
                        n,
                    };
                    for (i, row) in half.into_iter().enumerate().take(out_rows) {
                        let row = tiling.transform_output(simd, row);
                        for (j, value) in row.into_iter().enumerate().take(out_columns) {
                            finish.write(simd, value, (i * width + j) * channels);
                        }
                    }
                }
            }
        }
    }
}

/// What follows the transform of outputs, for one vector of channels.
struct FinishPixels<V> {
    bias: V,
    residual: Option<Pointer>,
    activation: Activation,
    out: Pointer,
    /// Channels of the vector.
    n: usize,
}

impl<V: Copy> FinishPixels<V> {
    /// Writes the value of a pixel.
    ///
    /// # Safety
    /// `n` values can be written `offset` after `out`, and read `offset` after `residual`.
    #[inline(always)]
    unsafe fn write<S: Simd<Vector = V>>(&self, simd: S, value: V, offset: usize) {
        let mut value = simd.add(value, self.bias);
        // SAFETY: by the caller's promises.
        unsafe {
            if self.n < S::LANES {
                let mut values = [0.0; MAX_LANES];
                simd.store(values.as_mut_ptr(), value);
                return self.write_part(&values, offset);
            }
            match self.residual.map(|residual| residual.add(offset)) {
                None => {}
                Some(Pointer::F32(from)) => value = simd.add(value, simd.load(from)),
                Some(Pointer::Bf16(from)) => value = simd.add(value, simd.load_bf16(from)),
            }
            value = self.activation.apply_to(simd, value);
            match self.out.add(offset) {
                Pointer::F32(to) => simd.store(to, value),
                Pointer::Bf16(to) => simd.store_bf16(to, value),
            }
        }
    }

    /// The last channels, where they are no whole vector.
    ///
    /// # Safety
    /// As for [`Self::write`].
    #[inline(never)]
    unsafe fn write_part(&self, values: &[f32], offset: usize) {
        for (channel, value) in values[..self.n].iter().enumerate() {
            // SAFETY: by the caller's promises.
            unsafe {
                let mut value = *value;
                if let Some(residual) = self.residual {
                    value += residual.add(offset + channel).read();
                }
                self.out.add(offset + channel).write(self.activation.apply(value));
            }
        }
    }
}
