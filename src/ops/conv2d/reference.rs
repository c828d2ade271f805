//! Convolution by its definition, in f64.

use super::Conv2dParams;
use crate::ops::support::activation::Activation;
use crate::ops::support::testing::{exact, rounded};

/// Convolves `[N, H, W, I]` with `[O, I/groups, kh, kw]`.
#[expect(clippy::too_many_arguments, reason = "those of the op, and the two shapes")]
pub(super) fn conv2d(
    input: &[f32],
    dims: [usize; 4],
    weight: &[f32],
    weight_dims: [usize; 4],
    bias: &[f32],
    params: Conv2dParams,
    residual: Option<&[f32]>,
    activation: Activation,
) -> Vec<f32> {
    let [input, weight, bias] = [input, weight, bias].map(exact);
    let residual = residual.map(exact);
    let residual = residual.as_deref();
    let tensors = Tensors { input: &input, weight: &weight, bias: &bias, residual };
    rounded(&conv2d_exact(tensors, dims, weight_dims, params, activation))
}

/// What a convolution reads.
pub(super) struct Tensors<'a> {
    pub input: &'a [f64],
    pub weight: &'a [f64],
    pub bias: &'a [f64],
    pub residual: Option<&'a [f64]>,
}

/// The same in f64 throughout.
pub(super) fn conv2d_exact(
    Tensors { input, weight, bias, residual }: Tensors<'_>,
    [batch, height, width, inputs]: [usize; 4],
    [outputs, group_inputs, window_height, window_width]: [usize; 4],
    params: Conv2dParams,
    activation: Activation,
) -> Vec<f64> {
    let Conv2dParams { stride, padding, groups, dilation } = params;
    let out_height = (height + 2 * padding - dilation * (window_height - 1) - 1) / stride + 1;
    let out_width = (width + 2 * padding - dilation * (window_width - 1) - 1) / stride + 1;
    let mut out = Vec::new();
    for n in 0..batch {
        for y in 0..out_height {
            for x in 0..out_width {
                for (o, bias) in bias.iter().enumerate().take(outputs) {
                    let mut sum = *bias;
                    let first = o / (outputs / groups) * group_inputs;
                    if let Some(residual) = residual {
                        sum += residual[out.len()];
                    }
                    for dy in 0..window_height {
                        for dx in 0..window_width {
                            let row = (y * stride + dy * dilation) as isize - padding as isize;
                            let column = (x * stride + dx * dilation) as isize - padding as isize;
                            if row < 0 || column < 0 {
                                continue;
                            }
                            let (row, column) = (row as usize, column as usize);
                            if row >= height || column >= width {
                                continue;
                            }
                            let pixel = ((n * height + row) * width + column) * inputs + first;
                            for i in 0..group_inputs {
                                let tap = (o * group_inputs + i) * window_height + dy;
                                sum += input[pixel + i] * weight[tap * window_width + dx];
                            }
                        }
                    }
                    out.push(activation.exact(sum));
                }
            }
        }
    }
    out
}
