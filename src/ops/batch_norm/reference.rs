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

/// Normalises the filled rows of `[images · slots, plane, channels]` among themselves; the output of the others is zero.
pub(super) fn filled_batch_norm(
    input: &[f64],
    counts: &[u32],
    weight: &[f64],
    bias: &[f64],
    residual: &[f64],
    eps: f64,
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let filled = filled(input.len(), counts);
    let pick = |values: &[f64]| filled.iter().map(|place| values[*place]).collect::<Vec<_>>();
    let (picked, means, variances) = batch_norm(&pick(input), weight, bias, &pick(residual), eps);
    let mut output = vec![0.0; input.len()];
    filled.iter().zip(picked).for_each(|(place, value)| output[*place] = value);
    (output, means, variances)
}

/// Places of the values of filled rows.
pub(super) fn filled(values: usize, counts: &[u32]) -> Vec<usize> {
    let of_image = values / counts.len();
    let is_filled = |place: &usize| {
        let count = counts[place / of_image] as usize;
        place % of_image < count * of_image / SLOTS
    };
    (0..values).filter(is_filled).collect()
}

/// Of each image in these tests.
pub(super) const SLOTS: usize = 4;
