//! What follows a product; the twin of `finish.cuh`.

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;

use super::rows::Rows;
use crate::ops::support::activation::Activation;

/// Argument of the kernels that add a bias in place and apply an activation.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Finish {
    pub rows: Rows,
    pub values: u64,
    pub bias: u64,
    activation: u32,
    unused: u32,
}

// SAFETY: plain numbers in C's order, without padding.
unsafe impl DeviceRepr for Finish {}

impl Finish {
    /// For a product of (rows, columns) at `values`, to which a bias and perhaps a residual of its shape are added.
    pub fn new(
        (rows, columns): (usize, usize),
        values: u64,
        bias: u64,
        residual: Option<u64>,
        activation: Activation,
    ) -> Self {
        let rows = Rows::new(rows, columns, &[values, bias, residual.unwrap_or(0)]);
        Self { rows, values, bias, activation: activation.code(), unused: 0 }
    }
}
