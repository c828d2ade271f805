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

use super::simd::{Job, Simd};
use crate::ops::support::activation::Activation;

/// Vectors in a row of a tile; a panel has this many vectors of columns.
pub(crate) const VECTORS: usize = 2;
/// Terms of a sum that are added before the sums are written: a panel's part of 32 columns takes 32 KiB.
pub(crate) const DEPTH: usize = 256;
/// Distance of the rows of `left`.
pub(crate) const LEFT_STRIDE: usize = DEPTH + 16;

/// Values ahead of which a panel is fetched.
const PREFETCH: usize = 1024;

/// Columns of a panel.
pub(crate) const fn panel_columns<S: Simd>() -> usize {
    VECTORS * S::LANES
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
    /// Values at the same offsets as the sums.
    pub residual: Option<*const f32>,
    pub activation: Activation,
}

/// A product of some rows with a block of terms and all columns of a matrix.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block<'a> {
    /// `[rows, LEFT_STRIDE]`.
    pub left: *const f32,
    /// The block's first term in the first panel.
    pub panels: *const f32,
    /// Distance from a panel to the next.
    pub panel_stride: usize,
    /// Terms, at most [`DEPTH`].
    pub depth: usize,
    /// Columns; the last panel may hold fewer than the others.
    pub columns: usize,
    /// The first column of the sums; those of row `r` lie at `out + offsets[r]`.
    pub out: *mut f32,
    pub offsets: &'a [usize],
    pub start: Start,
    pub finish: Option<Finish>,
}

impl Block<'_> {
    /// Computes the product.
    ///
    /// # Safety
    /// 1. `left`, `panels` and `bias` point to as many values as the fields' descriptions say;
    /// 2. at each of `offsets`, `columns` values can be written after `out`, and read after `residual`;
    ///    with [`Start::Sums`], those after `out` are initialized;
    /// 3. nothing else accesses these places after `out` meanwhile.
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
                unsafe {
                    let tile = TileArguments {
                        left: self.left.add(first * LEFT_STRIDE),
                        panel: self.panels.add(panel * self.panel_stride),
                        depth: self.depth,
                        columns,
                        out: self.out.add(column),
                        offsets: self.offsets.as_ptr().add(first),
                        start: self.start,
                        finish: self.finish.map(|finish| Finish {
                            bias: finish.bias.add(column),
                            residual: finish.residual.map(|values| values.add(column)),
                            ..finish
                        }),
                    };
                    tile.multiply(simd, rows);
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
struct TileArguments {
    left: *const f32,
    panel: *const f32,
    depth: usize,
    columns: usize,
    out: *mut f32,
    offsets: *const usize,
    start: Start,
    finish: Option<Finish>,
}

/// A tile with a number of rows that the compiler knows, so that its sums are registers.
struct Tile<const ROWS: usize>(TileArguments);

impl TileArguments {
    /// # Safety
    /// As for [`Block::multiply`]; `rows` is in `1..=S::TILE_ROWS`.
    #[inline(always)]
    unsafe fn multiply<S: Simd>(self, simd: S, rows: usize) {
        // `Simd::run` is an ordinary call here: one copy of the code for all users of a tile.
        match rows {
            1 => simd.run(Tile::<1>(self)),
            2 => simd.run(Tile::<2>(self)),
            3 => simd.run(Tile::<3>(self)),
            4 => simd.run(Tile::<4>(self)),
            5 if S::TILE_ROWS >= 5 => simd.run(Tile::<5>(self)),
            6 if S::TILE_ROWS >= 6 => simd.run(Tile::<6>(self)),
            7 if S::TILE_ROWS >= 7 => simd.run(Tile::<7>(self)),
            8 if S::TILE_ROWS >= 8 => simd.run(Tile::<8>(self)),
            9 if S::TILE_ROWS >= 9 => simd.run(Tile::<9>(self)),
            10 if S::TILE_ROWS >= 10 => simd.run(Tile::<10>(self)),
            11 if S::TILE_ROWS >= 11 => simd.run(Tile::<11>(self)),
            12 if S::TILE_ROWS >= 12 => simd.run(Tile::<12>(self)),
            13 if S::TILE_ROWS >= 13 => simd.run(Tile::<13>(self)),
            14 if S::TILE_ROWS >= 14 => simd.run(Tile::<14>(self)),
            _ => unreachable!("a tile of {rows} rows"), // invariant: the loop over tiles splits rows by TILE_ROWS
        }
    }
}

impl<const ROWS: usize> Job for Tile<ROWS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let TileArguments { left, panel, depth, columns, out, offsets, start, finish } = self.0;
        let mut sums = [[simd.splat(0.0); VECTORS]; ROWS];
        // SAFETY: by the promises that `Block::multiply` was given; row `r` of `left` starts at `r · LEFT_STRIDE`, and
        // `depth` is at most `DEPTH`. A vector of `out`, `bias` or `residual` is accessed up to `columns` only.
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
            if columns == VECTORS * S::LANES {
                // The same, but the compiler knows that all vectors are whole.
                finish_tile(simd, sums, out, offsets, start, finish, VECTORS * S::LANES);
            } else {
                finish_tile(simd, sums, out, offsets, start, finish, columns);
            }
        }
    }
}

/// Adds what there is to add to the sums of a tile, and writes those of the first `columns` columns.
///
/// # Safety
/// As for [`Block::multiply`].
#[inline(always)]
unsafe fn finish_tile<S: Simd, const ROWS: usize>(
    simd: S,
    sums: [[S::Vector; VECTORS]; ROWS],
    out: *mut f32,
    offsets: *const usize,
    start: Start,
    finish: Option<Finish>,
    columns: usize,
) {
    // SAFETY: by the caller's promises; no column beyond `columns` is accessed.
    unsafe {
        for (row, sums) in sums.into_iter().enumerate() {
            let offset = *offsets.add(row);
            for (v, mut sum) in sums.into_iter().enumerate() {
                let place = v * S::LANES;
                let n = columns.saturating_sub(place).min(S::LANES);
                if n == 0 {
                    continue;
                }
                let out = out.add(offset + place);
                if start == Start::Sums {
                    sum = simd.add(sum, simd.load_up_to(out, n));
                }
                if let Some(finish) = finish {
                    sum = simd.add(sum, simd.load_up_to(finish.bias.add(place), n));
                    if let Some(residual) = finish.residual {
                        sum = simd.add(sum, simd.load_up_to(residual.add(offset + place), n));
                    }
                    if finish.activation == Activation::Relu {
                        sum = simd.relu(sum);
                    }
                }
                simd.store_up_to(out, sum, n);
            }
        }
    }
}
