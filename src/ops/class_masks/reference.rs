//! The definition: all classes, then the label's channel. f64.

/// `features` is `[R, cells, C]`, `weight` `[classes, C]`; returns `[R, cells]`.
pub(super) fn run(
    features: &[f32],
    weight: &[f32],
    bias: &[f32],
    labels: &[u32],
    cells: usize,
) -> Vec<f32> {
    let n_classes = bias.len();
    let channels = weight.len() / n_classes;
    let mut masks = Vec::new();
    for (row, label) in labels.iter().enumerate() {
        for cell in 0..cells {
            let probabilities: Vec<f64> = (0..n_classes)
                .map(|class| {
                    let mut logit = f64::from(bias[class]);
                    for c in 0..channels {
                        let feature = features[(row * cells + cell) * channels + c];
                        logit += f64::from(weight[class * channels + c]) * f64::from(feature);
                    }
                    1.0 / (1.0 + (-logit).exp())
                })
                .collect();
            masks.push(if *label == 0 { 0.0 } else { probabilities[*label as usize] as f32 });
        }
    }
    masks
}
