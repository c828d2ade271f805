//! What the CPU kernels share: vectors, memory, and products with packed weights.
//!
//! Weights are packed once ([`matrix`]). A product then goes block by block ([`product`]): a task gathers some rows of
//! its left side into thread-local scratch ([`memory`]), and multiplies them tile by tile ([`kernel`]). Tasks run on the
//! current rayon pool, and none of them starts others.

pub(crate) mod element;
pub(crate) mod elementwise;
pub(crate) mod kernel;
pub(crate) mod matrix;
pub(crate) mod memory;
pub(crate) mod outer;
pub(crate) mod product;
pub(crate) mod simd;
