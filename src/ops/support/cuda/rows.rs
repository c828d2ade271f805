//! How threads are laid over rows of values; the twin of `rows.cuh`.

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;

use super::launch::Grid;

/// Threads of a block.
const THREADS: usize = 256;
/// Columns that a thread moves in one access where it can.
const PACK: usize = 4;

/// Rows of values that share the computation of an address, such as the channels of a pixel.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows {
    n: u32,
    columns: u32,
    pack: u32,
    unused: u32,
}

// SAFETY: plain numbers in C's order, without padding.
unsafe impl DeviceRepr for Rows {}

impl Rows {
    /// `n` rows, less than 2^32, of `columns` values, which a kernel reads from or writes to these addresses, rows one after another.
    ///
    /// Four values move at once where the columns come in fours and all addresses are multiples of sixteen: that of a
    /// tensor of its own is, that of a part of one need not be.
    pub fn new(n: usize, columns: usize, addresses: &[u64]) -> Self {
        let aligned = addresses.iter().all(|address| address.is_multiple_of(16));
        let pack = if aligned && columns.is_multiple_of(PACK) { PACK } else { 1 };
        Self { pack: pack as u32, ..Self::one_by_one(n, columns) }
    }

    /// Rows of columns that move one by one.
    pub fn one_by_one(n: usize, columns: usize) -> Self {
        Self { n: n as u32, columns: columns as u32, pack: 1, unused: 0 }
    }

    /// Values that a thread moves in one access.
    pub fn pack(&self) -> u32 {
        self.pack
    }

    /// Blocks that have a thread for every pack of a row, or several rows.
    pub fn grid(&self) -> Grid {
        let lanes = (self.columns / self.pack).clamp(1, THREADS as u32) as usize;
        let blocks =
            if self.columns == 0 { 0 } else { (self.n as usize).div_ceil(THREADS / lanes) };
        Grid::blocks((blocks, 1), THREADS as u32)
    }
}
