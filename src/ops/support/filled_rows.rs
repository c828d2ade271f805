//! Which rows of a tensor hold something.

use candle_core::Tensor;

/// The rows of a tensor that hold something; a row is all that has one index of the first axis.
///
/// Where every image has a fixed number of slots, some rows of pooled features belong to no box. Most layers compute them
/// like the others, and nobody looks at what comes out; statistics of a batch must leave them out.
#[derive(Debug, Clone, Copy)]
pub enum FilledRows<'a> {
    /// All rows.
    All,
    /// Of rows `[N·K, ..]`, the first `counts[n]` of the K rows of each image; counts are `[N]` u32, on the device of the
    /// rows. A count above K is K.
    UpTo(&'a Tensor),
}
