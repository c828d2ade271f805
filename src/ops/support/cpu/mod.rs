//! What the CPU kernels share: products with packed weights.

pub(crate) mod product;
