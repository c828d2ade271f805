//! Transposed convolution by its definition, in f64: each input value is spread over its window.

use crate::ops::support::activation::Activation;

/// Enlarges `[N, H, W, I]` with `[I, O, side, side]`.
pub(super) fn conv_transpose2d(
    input: &[f32],
    [batch, height, width, inputs]: [usize; 4],
    weight: &[f32],
    bias: &[f32],
    activation: Activation,
) -> Vec<f32> {
    let outputs = bias.len();
    let side = (weight.len() / (inputs * outputs)).isqrt();
    let padding = (side - 2) / 2;
    let bias = bias.iter().map(|&b| f64::from(b)).collect::<Vec<_>>();
    let mut out = bias.repeat(batch * height * width * 4);
    for n in 0..batch {
        for y in 0..height {
            for x in 0..width {
                for i in 0..inputs {
                    let value = input[((n * height + y) * width + x) * inputs + i];
                    for o in 0..outputs {
                        for (dy, dx) in (0..side * side).map(|place| (place / side, place % side)) {
                            let row = (2 * y + dy).wrapping_sub(padding);
                            let column = (2 * x + dx).wrapping_sub(padding);
                            if row >= 2 * height || column >= 2 * width {
                                continue;
                            }
                            let pixel = (n * 2 * height + row) * 2 * width + column;
                            let factor = weight[((i * outputs + o) * side + dy) * side + dx];
                            out[pixel * outputs + o] += f64::from(value) * f64::from(factor);
                        }
                    }
                }
            }
        }
    }
    out.iter().map(|&v| activation.exact(v) as f32).collect()
}
