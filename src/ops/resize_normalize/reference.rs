//! The definition, in f64: normalise the whole image, then weigh every source pixel by a hat function.

use super::ResizeNormalizeParams;

/// `value(y, x, channel)` reads the image as numbers in `0..=1`. Returns the canvas, `[H, W, 3]`.
pub(super) fn run(
    value: impl Fn(usize, usize, usize) -> f64,
    original: (usize, usize),
    resized: (usize, usize),
    params: &ResizeNormalizeParams,
) -> Vec<f32> {
    let hat = |at: f64, i: usize| (1.0 - (at - i as f64).abs()).max(0.0);
    let source = |out: usize, input: usize, output: usize| {
        ((out as f64 + 0.5) * input as f64 / output as f64 - 0.5).clamp(0.0, (input - 1) as f64)
    };
    let mut canvas = Vec::new();
    for y in 0..params.padded.0 {
        for x in 0..params.padded.1 {
            for c in 0..3 {
                let mut sum = 0.0;
                if y < resized.0 && x < resized.1 {
                    let at_y = source(y, original.0, resized.0);
                    let at_x = source(x, original.1, resized.1);
                    for row in 0..original.0 {
                        for column in 0..original.1 {
                            let v = (value(row, column, c) - f64::from(params.mean[c]))
                                / f64::from(params.std[c]);
                            sum += hat(at_y, row) * hat(at_x, column) * v;
                        }
                    }
                }
                canvas.push(sum as f32);
            }
        }
    }
    canvas
}
