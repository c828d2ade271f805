//! The innermost loop of all products: a tile of sums kept in registers.
//!
//! ```text
//! for each term k:
//!     for each row r of the tile, for each column c of the panel:
//!         sums[r, c] += left[r, k] · panel[k, c]
//! ```
//! Why the code differs:
//! 1. The tile is [`Simd::TILE_ROWS`] rows by [`VECTORS`] vectors, as much as the registers hold: each value loaded
//!    from a panel is used by all rows, each broadcast value by all vectors.
//! 2. The rows of `left` are [`LEFT_STRIDE`] apart, a constant: every address is one pointer plus a constant, where a
//!    variable stride would need a register or a load per row. The constant is no multiple of 4 KiB, so that the
//!    rows don't evict each other from the first-level cache.
//! 3. What the next steps read is prefetched: the panel goes on in memory for as long as the product, and the rows of the
//!    next tile follow those of this one. Without, Winograd's products took 15 % longer.
//! 4. Bias, residual and activation are applied in registers, when the last terms have been added.
//! 5. Only whole tiles and halves of them are compiled. The last rows are computed together with rows of no meaning, and
//!    what lies outside of the product is not written ([`finish_part`]).
//! 6. A term is an f32, or a pair of bf16 in its place ([`Kernel`]): the loops are the same.

use super::element::{Element, Pointer};
use super::simd::{Job, RowsJob, Simd};
use crate::ops::support::activation::Activation;
#[cfg(target_arch = "x86_64")]
use crate::ops::support::isa::Avx512Bf16;

/// Vectors in a row of a tile; a panel has this many vectors of columns.
pub(crate) const VECTORS: usize = 2;
/// Terms of a sum that are added before the sums are written: a panel's part of 32 columns takes 32 KiB.
pub(crate) const DEPTH: usize = 256;
/// Distance of the rows of `left`.
pub(crate) const LEFT_STRIDE: usize = DEPTH + 16;

/// Values ahead of which a panel is fetched.
const PREFETCH: usize = 1024;
/// The largest tile: 14 rows of two vectors with 16 lanes.
pub(crate) const MAX_TILE: usize = 14 * 32;

/// Columns of a panel.
pub(crate) const fn panel_columns<S: Simd>() -> usize {
    VECTORS * S::LANES
}

/// What a term is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// An f32.
    Values,
    /// Two bf16, the first in the lower half.
    #[cfg(target_arch = "x86_64")]
    Pairs(Avx512Bf16),
}

impl Kernel {
    /// Numbers in a term.
    pub fn numbers(self) -> usize {
        match self {
            Self::Values => 1,
            #[cfg(target_arch = "x86_64")]
            Self::Pairs(_) => 2,
        }
    }
}

/// Whether sums start from zero or from those of earlier terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    Zero,
    Sums,
}

/// What follows the last term. All pointers are to the block's first column.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Finish {
    /// One value per column.
    pub bias: *const f32,
    /// Values at the same offsets as the results.
    pub residual: Option<Pointer>,
    pub activation: Activation,
    /// Where the results go.
    pub out: Pointer,
    /// The results of row `r` lie at `out + offsets[r]`.
    pub offsets: *const usize,
}

/// A product of some rows with a block of terms and all columns of a matrix.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block<'a> {
    pub kernel: Kernel,
    /// `[rows, LEFT_STRIDE]`, and further rows up to a whole number of tiles.
    pub left: *const f32,
    /// The block's first term in the first panel.
    pub panels: *const f32,
    /// Distance from a panel to the next.
    pub panel_stride: usize,
    /// Terms, at most [`DEPTH`].
    pub depth: usize,
    /// Columns; the last panel may hold fewer than the others.
    pub columns: usize,
    /// The first column of the sums; those of row `r` lie at `sums + offsets[r]`.
    pub sums: *mut f32,
    pub offsets: &'a [usize],
    pub start: Start,
    /// What follows; without, the sums are written.
    pub finish: Option<Finish>,
}

impl Block<'_> {
    /// Computes the product.
    ///
    /// # Safety
    /// 1. `left`, `panels` and `bias` point to as many values as the fields' descriptions say;
    /// 2. at each of `offsets`, `columns` values can be written after `sums`; with [`Start::Sums`], they are initialized.
    ///    With [`Start::Zero`] and `finish`, they are not accessed;
    /// 3. `finish` has as many offsets; at each, `columns` values can be written after `out`, and read after `residual`;
    /// 4. nothing else accesses these places after `sums` and `out` meanwhile.
    #[inline(always)]
    pub unsafe fn multiply<S: Simd>(&self, simd: S) {
        let width = panel_columns::<S>();
        // Panels outside, rows inside: the part of a panel stays in the first- or second-level cache for all rows.
        for panel in 0..self.columns.div_ceil(width) {
            let column = panel * width;
            let columns = (self.columns - column).min(width);
            for first in (0..self.offsets.len()).step_by(S::TILE_ROWS) {
                let rows = (self.offsets.len() - first).min(S::TILE_ROWS);
                // SAFETY: by the caller's promises; the tile covers rows `first..first + rows` and `columns` columns.
                let tile = unsafe {
                    TileArguments {
                        left: self.left.add(first * LEFT_STRIDE),
                        panel: self.panels.add(panel * self.panel_stride),
                        depth: self.depth,
                        rows,
                        columns,
                        sums: self.sums.wrapping_add(column),
                        offsets: self.offsets.as_ptr().add(first),
                        start: self.start,
                        finish: self.finish.map(|finish| Finish {
                            bias: finish.bias.add(column),
                            residual: finish.residual.map(|values| values.add(column)),
                            out: finish.out.add(column),
                            offsets: finish.offsets.add(first),
                            ..finish
                        }),
                    }
                };
                match self.kernel {
                    Kernel::Values => simd.with_rows(rows, RunTile(tile)),
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: by the caller's promises, as above.
                    Kernel::Pairs(proof) => unsafe { proof.multiply(rows, tile) },
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct TileArguments {
    left: *const f32,
    panel: *const f32,
    depth: usize,
    rows: usize,
    columns: usize,
    sums: *mut f32,
    offsets: *const usize,
    start: Start,
    finish: Option<Finish>,
}

/// Chooses a [`Tile`].
struct RunTile(TileArguments);

impl RowsJob for RunTile {
    #[inline(always)]
    fn run<S: Simd, const ROWS: usize>(self, simd: S) {
        // An ordinary call: one copy of the code for all users of a tile.
        simd.run(Tile::<ROWS>(self.0));
    }
}

/// A tile with a number of rows that the compiler knows, so that its sums are registers.
struct Tile<const ROWS: usize>(TileArguments);

impl<const ROWS: usize> Job for Tile<ROWS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let TileArguments { left, panel, depth, .. } = self.0;
        let mut sums = [[simd.splat(0.0); VECTORS]; ROWS];
        // SAFETY: by the promises that `Block::multiply` was given; row `r` of `left` starts at `r · LEFT_STRIDE`, and
        // `depth` is at most `DEPTH`.
        unsafe {
            let mut panel = panel;
            for k in 0..depth {
                for line in (0..VECTORS * S::LANES).step_by(16) {
                    simd.prefetch(panel.wrapping_add(PREFETCH + line));
                }
                simd.prefetch(left.wrapping_add(ROWS * LEFT_STRIDE + k * 16));
                let mut right = [simd.splat(0.0); VECTORS];
                for (v, right) in right.iter_mut().enumerate() {
                    *right = simd.load(panel.add(v * S::LANES));
                }
                for (row, sums) in sums.iter_mut().enumerate() {
                    let value = simd.splat(*left.add(row * LEFT_STRIDE + k));
                    for (sum, right) in sums.iter_mut().zip(right) {
                        *sum = simd.mul_add(value, right, *sum);
                    }
                }
                panel = panel.add(VECTORS * S::LANES);
            }
            finish_tile(simd, sums, self.0);
        }
    }
}

/// The same with pairs of bf16.
///
/// # Safety
/// As for [`Block::multiply`]; the caller's function has the instructions of AVX-512 with BF16.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn multiply_pairs<const ROWS: usize>(proof: Avx512Bf16, tile: TileArguments) {
    let simd = proof.avx512();
    const LANES: usize = 16;
    let TileArguments { left, panel, depth, .. } = tile;
    let mut sums = [[simd.splat(0.0); VECTORS]; ROWS];
    // SAFETY: as in `Tile`; a pair takes the place of an f32.
    unsafe {
        let mut panel = panel;
        for k in 0..depth {
            for line in (0..VECTORS * LANES).step_by(16) {
                simd.prefetch(panel.wrapping_add(PREFETCH + line));
            }
            simd.prefetch(left.wrapping_add(ROWS * LEFT_STRIDE + k * 16));
            let mut right = [simd.splat(0.0); VECTORS];
            for (v, right) in right.iter_mut().enumerate() {
                *right = simd.load(panel.add(v * LANES));
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                let pair = simd.splat(*left.add(row * LEFT_STRIDE + k));
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = proof.dot(pair, right, *sum);
                }
            }
            panel = panel.add(VECTORS * LANES);
        }
        finish_tile(simd, sums, tile);
    }
}

/// Adds what there is to add to the sums of a tile, and writes them.
///
/// # Safety
/// As for [`Block::multiply`].
#[inline(always)]
#[allow(clippy::needless_range_loop)] // indices run over several arrays at once
unsafe fn finish_tile<S: Simd, const ROWS: usize>(
    simd: S,
    mut sums: [[S::Vector; VECTORS]; ROWS],
    tile: TileArguments,
) {
    // SAFETY: by the caller's promises: a whole tile of values is written, or a part of it by `finish_part`.
    unsafe {
        if tile.rows < ROWS || tile.columns < VECTORS * S::LANES {
            let mut values = [0f32; MAX_TILE];
            for (row, sums) in sums.iter().enumerate() {
                for (v, sum) in sums.iter().enumerate() {
                    simd.store(values.as_mut_ptr().add((row * VECTORS + v) * S::LANES), *sum);
                }
            }
            return finish_part(&values, VECTORS * S::LANES, tile);
        }
        // One simple loop per step: with the decisions inside of a single loop, the compiler copies all of it for each of
        // their outcomes. No closures, which may be left without the instructions.
        if tile.start == Start::Sums {
            for row in 0..ROWS {
                let place = tile.sums.add(*tile.offsets.add(row));
                for v in 0..VECTORS {
                    sums[row][v] = simd.add(sums[row][v], simd.load(place.add(v * S::LANES)));
                }
            }
        }
        let Some(finish) = tile.finish else {
            for row in 0..ROWS {
                let place = tile.sums.add(*tile.offsets.add(row));
                for v in 0..VECTORS {
                    simd.store(place.add(v * S::LANES), sums[row][v]);
                }
            }
            return;
        };
        for v in 0..VECTORS {
            let bias = simd.load(finish.bias.add(v * S::LANES));
            for row in 0..ROWS {
                sums[row][v] = simd.add(sums[row][v], bias);
            }
        }
        match finish.residual {
            None => {}
            Some(Pointer::F32(values)) => add_all(simd, &mut sums, values, finish.offsets),
            Some(Pointer::Bf16(values)) => add_all(simd, &mut sums, values, finish.offsets),
        }
        match finish.activation {
            Activation::None => {}
            Activation::Relu => {
                for row in 0..ROWS {
                    for v in 0..VECTORS {
                        sums[row][v] = simd.relu(sums[row][v]);
                    }
                }
            }
            activation => activate_all(simd, &mut sums, activation),
        }
        match finish.out {
            Pointer::F32(out) => store_all(simd, &sums, out, finish.offsets),
            Pointer::Bf16(out) => store_all(simd, &sums, out, finish.offsets),
        }
    }
}

#[inline(always)]
fn activate_all<S: Simd, const ROWS: usize>(
    simd: S,
    sums: &mut [[S::Vector; VECTORS]; ROWS],
    activation: Activation,
) {
    for sums in sums {
        for sum in sums {
            *sum = activation.apply_to(simd, *sum);
        }
    }
}

/// # Safety
/// At each of `ROWS` offsets, as many values as a tile is wide can be read after `residual`.
#[inline(always)]
unsafe fn add_all<E: Element, S: Simd, const ROWS: usize>(
    simd: S,
    sums: &mut [[S::Vector; VECTORS]; ROWS],
    residual: *mut E,
    offsets: *const usize,
) {
    for (row, sums) in sums.iter_mut().enumerate() {
        for (v, sum) in sums.iter_mut().enumerate() {
            // SAFETY: by the caller's promises.
            let value = unsafe { E::load(simd, residual.add(*offsets.add(row) + v * S::LANES)) };
            *sum = simd.add(*sum, value);
        }
    }
}

/// # Safety
/// At each of `ROWS` offsets, as many values as a tile is wide can be written after `out`.
#[inline(always)]
unsafe fn store_all<E: Element, S: Simd, const ROWS: usize>(
    simd: S,
    sums: &[[S::Vector; VECTORS]; ROWS],
    out: *mut E,
    offsets: *const usize,
) {
    for (row, sums) in sums.iter().enumerate() {
        for (v, sum) in sums.iter().enumerate() {
            // SAFETY: by the caller's promises.
            unsafe { E::store(simd, out.add(*offsets.add(row) + v * S::LANES), *sum) };
        }
    }
}

/// What [`finish_tile`] does, for the rows and columns at the edge of a product: value by value, compiled once for all.
///
/// # Safety
/// As for [`Block::multiply`]; `values` has rows of `width` values.
#[inline(never)]
unsafe fn finish_part(values: &[f32], width: usize, tile: TileArguments) {
    for (row, values) in values.chunks_exact(width).take(tile.rows).enumerate() {
        for (column, value) in values[..tile.columns].iter().enumerate() {
            // SAFETY: by the caller's promises; neither a row nor a column beyond those of the tile is accessed.
            unsafe {
                let mut sum = *value;
                let place = tile.sums.wrapping_add(*tile.offsets.add(row) + column);
                if tile.start == Start::Sums {
                    sum += place.read();
                }
                let Some(finish) = tile.finish else {
                    place.write(sum);
                    continue;
                };
                let offset = *finish.offsets.add(row) + column;
                sum += finish.bias.add(column).read();
                if let Some(residual) = finish.residual {
                    sum += residual.add(offset).read();
                }
                finish.out.add(offset).write(finish.activation.apply(sum));
            }
        }
    }
}
