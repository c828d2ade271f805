//! Max pooling by its definition, on a map padded with −∞.

use super::MaxPool2dParams;

/// Pools `[N, H, W, C]`.
pub(super) fn max_pool2d(
    input: &[f32],
    [batch, height, width, channels]: [usize; 4],
    params: &MaxPool2dParams,
) -> Vec<f32> {
    let MaxPool2dParams { kernel, stride, padding } = *params;
    let at = |n: usize, y: usize, x: usize, c: usize| {
        let inside = y >= padding && x >= padding && y - padding < height && x - padding < width;
        if !inside {
            return f32::NEG_INFINITY;
        }
        input[((n * height + y - padding) * width + x - padding) * channels + c]
    };
    let mut out = Vec::new();
    for n in 0..batch {
        for y in (0..=height + 2 * padding - kernel).step_by(stride) {
            for x in (0..=width + 2 * padding - kernel).step_by(stride) {
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
