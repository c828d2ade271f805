//! Enlargement by its definition, pixel by pixel.

/// Adds `coarse` `[N, h, w, C]`, enlarged, to `lateral` `[N, H, W, C]`.
pub(super) fn upsample_add(
    coarse: &[f32],
    [_, coarse_height, coarse_width, _]: [usize; 4],
    lateral: &[f32],
    [batch, height, width, channels]: [usize; 4],
) -> Vec<f32> {
    let source = |i: usize, coarse: usize, fine: usize| {
        let index = (i as f32 * (coarse as f32 / fine as f32)) as usize;
        if index < coarse { index } else { coarse - 1 }
    };
    let mut out = Vec::new();
    for n in 0..batch {
        for y in 0..height {
            for x in 0..width {
                for c in 0..channels {
                    let row = n * coarse_height + source(y, coarse_height, height);
                    let pixel = row * coarse_width + source(x, coarse_width, width);
                    out.push(lateral[out.len()] + coarse[pixel * channels + c]);
                }
            }
        }
    }
    out
}
