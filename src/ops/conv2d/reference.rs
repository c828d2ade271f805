//! Convolution by its definition, in f64.

use super::Conv2dParams;
use crate::ops::support::activation::Activation;

/// Convolves `[N, H, W, I]` with `[O, I, kh, kw]`.
pub(super) fn conv2d(
    input: &[f32],
    [batch, height, width, inputs]: [usize; 4],
    weight: &[f32],
    [outputs, _, window_height, window_width]: [usize; 4],
    bias: &[f32],
    params: Conv2dParams,
    (residual, activation): (Option<&[f32]>, Activation),
) -> Vec<f32> {
    let Conv2dParams { stride, padding } = params;
    let out_height = (height + 2 * padding - window_height) / stride + 1;
    let out_width = (width + 2 * padding - window_width) / stride + 1;
    let mut out = Vec::new();
    for n in 0..batch {
        for y in 0..out_height {
            for x in 0..out_width {
                for o in 0..outputs {
                    let mut sum = f64::from(bias[o]);
                    if let Some(residual) = residual {
                        sum += f64::from(residual[out.len()]);
                    }
                    for dy in 0..window_height {
                        for dx in 0..window_width {
                            let row = (y * stride + dy) as isize - padding as isize;
                            let column = (x * stride + dx) as isize - padding as isize;
                            if row < 0 || column < 0 {
                                continue;
                            }
                            let (row, column) = (row as usize, column as usize);
                            if row >= height || column >= width {
                                continue;
                            }
                            for i in 0..inputs {
                                let a = input[((n * height + row) * width + column) * inputs + i];
                                let b = weight
                                    [((o * inputs + i) * window_height + dy) * window_width + dx];
                                sum += f64::from(a) * f64::from(b);
                            }
                        }
                    }
                    if activation == Activation::Relu && sum < 0.0 {
                        sum = 0.0;
                    }
                    out.push(sum as f32);
                }
            }
        }
    }
    out
}
