//! The definition, sample by sample, in f64 once the level and the corners are found.

use super::RoiAlignParams;

/// One level as `[N, H, W, C]`.
pub(super) struct Level<'a> {
    pub values: &'a [f32],
    pub dims: [usize; 4],
}

/// Level index of a finite box, from the formula of the paper.
pub(super) fn level_index(corners: [f32; 4], params: &RoiAlignParams) -> Option<usize> {
    let area = (corners[2] - corners[0]) * (corners[3] - corners[1]);
    if area.is_nan() || area < 0.0 {
        return None;
    }
    let finest = -params.spatial_scales[0].log2();
    let target = params.canonical_level + (area.sqrt() / params.canonical_size).log2();
    let index = (target + 1e-6).floor() - finest;
    Some(index.max(0.0).min(params.spatial_scales.len() as f32 - 1.0) as usize)
}

/// The value at a point between cell centers.
fn bilinear(level: &Level<'_>, image: usize, channel: usize, y: f64, x: f64) -> f64 {
    let [_, height, width, channels] = level.dims;
    if y < -1.0 || y > height as f64 || x < -1.0 || x > width as f64 {
        return 0.0;
    }
    let y = y.clamp(0.0, (height - 1) as f64);
    let x = x.clamp(0.0, (width - 1) as f64);
    let mut sum = 0.0;
    for row in 0..height {
        for column in 0..width {
            let weight = (1.0 - (y - row as f64).abs()).max(0.0)
                * (1.0 - (x - column as f64).abs()).max(0.0);
            let at = ((image * height + row) * width + column) * channels + channel;
            sum += weight * f64::from(level.values[at]);
        }
    }
    sum
}

/// All boxes, `[N, K, 4]`, to `[N·K, output, output, C]`.
pub(super) fn run(
    levels: &[Level<'_>],
    boxes: &[[f32; 4]],
    n_slots: usize,
    counts: &[u32],
    params: &RoiAlignParams,
) -> Vec<f32> {
    let channels = levels[0].dims[3];
    let (output, sampling) = (params.output, params.sampling);
    let mut pooled = Vec::new();
    for (i, corners) in boxes.iter().enumerate() {
        let (image, slot) = (i / n_slots, i % n_slots);
        let valid = slot < counts[image] as usize && corners.iter().all(|c| c.is_finite());
        let level = if valid { level_index(*corners, params) } else { None };
        for cell in 0..output * output * channels {
            let Some(level) = level else {
                pooled.push(0.0);
                continue;
            };
            let (row, column) = (cell / channels / output, cell / channels % output);
            let scale = params.spatial_scales[level];
            let [x1, y1, x2, y2] = corners.map(|c| f64::from(c * scale));
            let (width, height) = ((x2 - x1).max(1.0), (y2 - y1).max(1.0));
            let mut sum = 0.0;
            for sy in 0..sampling {
                for sx in 0..sampling {
                    let at = |cell: usize, sample: usize| {
                        cell as f64 + (sample as f64 + 0.5) / sampling as f64
                    };
                    let y = y1 + at(row, sy) * height / output as f64;
                    let x = x1 + at(column, sx) * width / output as f64;
                    sum += bilinear(&levels[level], image, cell % channels, y, x);
                }
            }
            pooled.push((sum / (sampling * sampling) as f64) as f32);
        }
    }
    pooled
}
