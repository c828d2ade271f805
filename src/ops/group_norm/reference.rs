//! Group norm by its definition, in f64.

/// Normalises `[images, rows, channels]`.
pub(super) fn group_norm(
    input: &[f64],
    images: usize,
    groups: usize,
    [weight, bias]: [&[f64]; 2],
    eps: f64,
) -> Vec<f64> {
    let channels = weight.len();
    let mut output = vec![0.0; input.len()];
    let of_image = input.len() / images.max(1);
    for image in 0..images {
        for group in 0..groups {
            let members: Vec<usize> = (image * of_image..(image + 1) * of_image)
                .filter(|place| place % channels / (channels / groups) == group)
                .collect();
            let n = members.len() as f64;
            let mean = members.iter().map(|place| input[*place]).sum::<f64>() / n;
            let squares = members.iter().map(|place| (input[*place] - mean).powi(2));
            let deviation = (squares.sum::<f64>() / n + eps).sqrt();
            for place in members {
                let channel = place % channels;
                output[place] = weight[channel] * (input[place] - mean) / deviation + bias[channel];
            }
        }
    }
    output
}
