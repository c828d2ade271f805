use crate::ops::support::geometry::sigmoid;

/// The best pairs of one level and image, as (anchor, class, score), by scoring and sorting everything.
pub(super) fn top_pairs(
    logits: &[f32],
    quality: Option<&[f32]>,
    classes: usize,
    threshold: f32,
    k: usize,
) -> Vec<(u32, u32, f32)> {
    let mut pairs: Vec<(u32, u32, f32)> = logits
        .iter()
        .enumerate()
        .map(|(i, logit)| {
            let (anchor, class) = (i / classes, i % classes);
            let score = match quality {
                Some(quality) => (sigmoid(*logit) * sigmoid(quality[anchor])).sqrt(),
                None => sigmoid(*logit),
            };
            (anchor as u32, class as u32, score)
        })
        .filter(|(_, _, score)| *score > threshold)
        .collect();
    pairs.sort_by(|a, b| b.2.total_cmp(&a.2));
    pairs.truncate(k);
    pairs
}
