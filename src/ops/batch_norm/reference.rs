//! Batch norm by its definition, in f64.

/// Normalises the columns of `[rows, channels]`; returns the output, the means and the variances.
pub(super) fn batch_norm(
    input: &[f64],
    weight: &[f64],
    bias: &[f64],
    residual: &[f64],
    eps: f64,
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let channels = weight.len();
    let rows = input.len() / channels;
    let column = |c: usize| input.iter().skip(c).step_by(channels);
    let means: Vec<f64> = (0..channels).map(|c| column(c).sum::<f64>() / rows as f64).collect();
    let variances: Vec<f64> = (0..channels)
        .map(|c| column(c).map(|x| (x - means[c]).powi(2)).sum::<f64>() / rows as f64)
        .collect();
    let output = input
        .iter()
        .zip(residual)
        .enumerate()
        .map(|(i, (x, residual))| {
            let c = i % channels;
            weight[c] * (x - means[c]) / (variances[c] + eps).sqrt() + bias[c] + residual
        })
        .collect();
    (output, means, variances)
}
