//! Bilinear enlargement by its definition, in f64: where an output pixel's center lies in the input.

/// Enlarges `[N, H, W, C]` to `[N, 2H, 2W, C]`.
pub(super) fn run(input: &[f64], [batch, height, width, channels]: [usize; 4]) -> Vec<f64> {
    let place = |index: usize, n: usize| {
        let center = ((index as f64 + 0.5) / 2.0 - 0.5).max(0.0);
        let low = center.floor() as usize;
        (low, (low + 1).min(n - 1), center - center.floor())
    };
    let mut out = Vec::new();
    for n in 0..batch {
        for y in 0..2 * height {
            let (top, bottom, down) = place(y, height);
            for x in 0..2 * width {
                let (left, right, across) = place(x, width);
                for c in 0..channels {
                    let at =
                        |y: usize, x: usize| input[((n * height + y) * width + x) * channels + c];
                    let upper = at(top, left) * (1.0 - across) + at(top, right) * across;
                    let lower = at(bottom, left) * (1.0 - across) + at(bottom, right) * across;
                    out.push(upper * (1.0 - down) + lower * down);
                }
            }
        }
    }
    out
}
