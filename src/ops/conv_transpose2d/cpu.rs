//! Transposed convolution with a 2×2 window and stride 2 on the CPU: slices in, slices out.
//!
//! Windows don't overlap, so each input pixel makes its own four output pixels:
//! ```text
//! for each input pixel, for each of its four output pixels (dy, dx):
//!     out[2y + dy, 2x + dx, :] = activation(bias + weight[:, :, dy, dx]ᵀ · input[y, x, :])
//! ```
//! That is one product `[pixels, I] × [I, 4·O]`, whose rows are then taken apart.

use rayon::prelude::*;

use crate::ops::support::activation::Activation;
use crate::ops::support::cpu::product::{Epilogue, PackedMatrix, product};

/// Lays out a weight `[I, O, 2, 2]` as `[I, (dy, dx, O)]`.
pub(super) fn prepare(weight: &[f32], [inputs, outputs]: [usize; 2], bias: &[f32]) -> PackedMatrix {
    PackedMatrix::new(inputs, 4 * outputs, &bias.repeat(4), |i, column| {
        let (tap, o) = (column / outputs, column % outputs);
        weight[(i * outputs + o) * 4 + tap]
    })
}

/// Enlarges `[N, H, W, I]` to `[N, 2H, 2W, O]`.
pub(super) fn run(
    input: &[f32],
    width: usize,
    weights: &PackedMatrix,
    activation: Activation,
) -> Vec<f32> {
    let products = product(input, weights, Epilogue { residual: None, activation });
    let outputs = weights.outputs() / 4;
    let mut out = vec![0.0; products.len()];
    if out.is_empty() {
        return out;
    }
    let row = 2 * width * outputs;
    out.par_chunks_mut(row).enumerate().for_each(|(y, out)| {
        for (x, pair) in out.chunks_exact_mut(2 * outputs).enumerate() {
            let start = (y / 2 * width + x) * 4 * outputs + y % 2 * 2 * outputs;
            pair.copy_from_slice(&products[start..start + 2 * outputs]);
        }
    });
    out
}
