/// Indices by descending value, stable, cut to `k`.
pub(super) fn top_k(values: &[f32], k: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..values.len() as u32).collect();
    order.sort_by(|a, b| {
        let (a, b) = (values[*a as usize], values[*b as usize]);
        a.is_nan().cmp(&b.is_nan()).then(b.partial_cmp(&a).unwrap_or(std::cmp::Ordering::Equal))
    });
    order.truncate(k);
    order
}
