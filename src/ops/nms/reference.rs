/// The textbook form: sort, then strike out everything that a kept box overlaps. `threshold` as f64, IoU in f32.
pub(super) fn nms(boxes: &[[f32; 4]], scores: &[f32], groups: &[u32], threshold: f64) -> Vec<u32> {
    let mut order: Vec<usize> = (0..boxes.len()).collect();
    order.sort_by(|a, b| scores[*b].partial_cmp(&scores[*a]).unwrap());
    let mut dropped = vec![false; boxes.len()];
    let mut kept = Vec::new();
    for (place, &i) in order.iter().enumerate() {
        if dropped[i] {
            continue;
        }
        kept.push(i as u32);
        for &j in &order[place + 1..] {
            if groups[i] == groups[j] && f64::from(overlap(boxes[i], boxes[j])) > threshold {
                dropped[j] = true;
            }
        }
    }
    kept
}

fn overlap(a: [f32; 4], b: [f32; 4]) -> f32 {
    let area = |b: [f32; 4]| (b[2] - b[0]) * (b[3] - b[1]);
    let side = |low: usize, high: usize| (a[high].min(b[high]) - a[low].max(b[low])).max(0.0);
    let intersection = side(0, 2) * side(1, 3);
    intersection / (area(a) + area(b) - intersection)
}
