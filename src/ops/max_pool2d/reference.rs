//! Max pooling by its definition, on a map padded with −∞.

use super::{MaxPool2dParams, Rounding};

/// Pools `[N, H, W, C]`.
pub(super) fn max_pool2d(
    input: &[f32],
    [batch, height, width, channels]: [usize; 4],
    params: &MaxPool2dParams,
) -> Vec<f32> {
    let MaxPool2dParams { kernel, padding, .. } = *params;
    let at = |n: usize, y: usize, x: usize, c: usize| {
        let inside = y >= padding && x >= padding && y - padding < height && x - padding < width;
        if !inside {
            return f32::NEG_INFINITY;
        }
        input[((n * height + y - padding) * width + x - padding) * channels + c]
    };
    let mut out = Vec::new();
    for n in 0..batch {
        for y in starts(height, params) {
            for x in starts(width, params) {
                for c in 0..channels {
                    let window = (0..kernel * kernel)
                        .map(|tap| at(n, y + tap / kernel, x + tap % kernel, c))
                        .collect::<Vec<_>>();
                    let largest = window.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    out.push(if window.iter().any(|v| v.is_nan()) { f32::NAN } else { largest });
                }
            }
        }
    }
    out
}

/// Where windows start, counted from the padding before the input.
fn starts(size: usize, params: &MaxPool2dParams) -> Vec<usize> {
    let MaxPool2dParams { kernel, stride, padding, rounding } = *params;
    let padded = size + 2 * padding;
    let is_in = |start: &usize| match rounding {
        Rounding::Down => start + kernel <= padded,
        // The one before did not reach the end.
        Rounding::Up => (start + kernel < padded + stride) && (*start < size + padding),
    };
    (0..).step_by(stride).take_while(is_in).collect()
}
