/// The best anchors of one image as (anchor, class, score), class by class, by sorting everything.
pub(super) fn top_per_class(
    logits: &[f32],
    classes: usize,
    threshold: f32,
    k: usize,
) -> Vec<(u32, u32, f32)> {
    let scores: Vec<Vec<f32>> = logits
        .chunks(classes)
        .map(|row| {
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f32 = row.iter().map(|logit| (logit - largest).exp()).sum();
            row.iter().map(|logit| (logit - largest).exp() / sum).collect()
        })
        .collect();
    let mut chosen = Vec::new();
    for class in 1..classes {
        let column = scores.iter().enumerate().map(|(anchor, row)| (anchor as u32, row[class]));
        let mut column: Vec<(u32, f32)> = column.filter(|(_, score)| *score > threshold).collect();
        column.sort_by(|a, b| b.1.total_cmp(&a.1));
        column.truncate(k);
        chosen.extend(column.into_iter().map(|(anchor, score)| (anchor, class as u32, score)));
    }
    chosen
}
