//! Convolution on the CPU: slices in, slices out.

use super::Conv2dParams;
use crate::ops::support::cpu::product::{Epilogue, PackedMatrix, product, product_of_filled};

/// Weights as the CPU kernels want them.
#[derive(Debug)]
pub(super) struct Weights {
    matrix: PackedMatrix,
    window: [usize; 2],
    params: Conv2dParams,
}

impl Weights {
    /// Lays out a weight `[O, I, kh, kw]`.
    pub fn new(
        weight: &[f32],
        [outputs, inputs, height, width]: [usize; 4],
        bias: &[f32],
        params: Conv2dParams,
    ) -> Self {
        let matrix = PackedMatrix::new(height * width * inputs, outputs, bias, |k, o| {
            let (tap, i) = (k / inputs, k % inputs);
            weight[(o * inputs + i) * height * width + tap]
        });
        Self { matrix, window: [height, width], params }
    }
}

/// Convolves an input `[N, H, W, I]` to `[N, Ho, Wo, O]`.
pub(super) fn run(
    input: &[f32],
    [_, height, width, channels]: [usize; 4],
    [batch, out_height, out_width, _]: [usize; 4],
    weights: &Weights,
    epilogue: Epilogue<'_>,
) -> Vec<f32> {
    let Conv2dParams { stride, padding } = weights.params;
    let [_, window_width] = weights.window;
    if weights.window == [1, 1] && stride == 1 && padding == 0 {
        return product(input, &weights.matrix, epilogue);
    }
    let rows = batch * out_height * out_width;
    product_of_filled(rows, &weights.matrix, epilogue, |first, lhs| {
        for (row, lhs) in lhs.chunks_exact_mut(weights.matrix.inputs()).enumerate() {
            let pixel = first + row;
            let (x, y) = (pixel % out_width, pixel / out_width % out_height);
            let image = pixel / out_width / out_height;
            for (tap, lhs) in lhs.chunks_exact_mut(channels).enumerate() {
                let row = (y * stride + tap / window_width).wrapping_sub(padding);
                let column = (x * stride + tap % window_width).wrapping_sub(padding);
                if row < height && column < width {
                    let start = ((image * height + row) * width + column) * channels;
                    lhs.copy_from_slice(&input[start..start + channels]);
                } else {
                    lhs.fill(0.0);
                }
            }
        }
    })
}
