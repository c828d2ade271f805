//! Formulas on boxes: their one home in Rust.

/// `dw` and `dh` are capped here before the exponential, so that a box grows at most 62.5-fold: `ln(1000 / 16)`.
pub(crate) const MAX_LOG_SCALE: f32 = 4.135_166_6;

/// Area of an xyxy box, without "+1".
pub(crate) fn area(b: [f32; 4]) -> f32 {
    (b[2] - b[0]) * (b[3] - b[1])
}

/// Intersection over union of two xyxy boxes; NaN when both are empty.
pub(crate) fn iou(a: [f32; 4], b: [f32; 4]) -> f32 {
    let width = (a[2].min(b[2]) - a[0].max(b[0])).max(0.0);
    let height = (a[3].min(b[3]) - a[1].max(b[1])).max(0.0);
    let intersection = width * height;
    intersection / (area(a) + area(b) - intersection)
}

/// Applies deltas `[dx, dy, dw, dh]`, divided by `weights`, to a reference box (Girshick et al. 2014, appendix C).
pub(crate) fn decode(deltas: [f32; 4], reference: [f32; 4], weights: [f32; 4]) -> [f32; 4] {
    let width = reference[2] - reference[0];
    let height = reference[3] - reference[1];
    let center_x = reference[0] + 0.5 * width;
    let center_y = reference[1] + 0.5 * height;
    let log_width = cap(deltas[2] / weights[2]);
    let log_height = cap(deltas[3] / weights[3]);
    let new_x = deltas[0] / weights[0] * width + center_x;
    let new_y = deltas[1] / weights[1] * height + center_y;
    let half_width = 0.5 * (log_width.exp() * width);
    let half_height = 0.5 * (log_height.exp() * height);
    [new_x - half_width, new_y - half_height, new_x + half_width, new_y + half_height]
}

/// Moves the sides of a box away from a reference's center, by distances `[left, top, right, bottom]` in units of the
/// reference's sides.
///
/// Reference: torchvision `models/detection/_utils.py`, `BoxLinearCoder.decode`; Tian et al. 2019, section 3.1.
pub(crate) fn decode_distances(distances: [f32; 4], reference: [f32; 4]) -> [f32; 4] {
    let center_x = 0.5 * (reference[0] + reference[2]);
    let center_y = 0.5 * (reference[1] + reference[3]);
    let width = reference[2] - reference[0];
    let height = reference[3] - reference[1];
    [
        center_x - distances[0] * width,
        center_y - distances[1] * height,
        center_x + distances[2] * width,
        center_y + distances[3] * height,
    ]
}

/// The deltas, multiplied by `weights`, that turn `reference` into `target`: the inverse of decoding.
///
/// Both boxes are xyxy in one unit and have positive sides; others give infinite or NaN deltas.
///
/// Reference: torchvision `models/detection/_utils.py`, `encode_boxes`; Girshick et al. 2014, appendix C.
pub(crate) fn encode(target: [f32; 4], reference: [f32; 4], weights: [f32; 4]) -> [f32; 4] {
    let [width, height, center_x, center_y] = centered(reference);
    let [target_width, target_height, target_x, target_y] = centered(target);
    [
        weights[0] * (target_x - center_x) / width,
        weights[1] * (target_y - center_y) / height,
        weights[2] * (target_width / width).ln(),
        weights[3] * (target_height / height).ln(),
    ]
}

fn centered([x1, y1, x2, y2]: [f32; 4]) -> [f32; 4] {
    let (width, height) = (x2 - x1, y2 - y1);
    [width, height, x1 + 0.5 * width, y1 + 0.5 * height]
}

/// Minimum with [`MAX_LOG_SCALE`] that lets NaN through, so that a diverged model does not look healthy.
fn cap(value: f32) -> f32 {
    if value > MAX_LOG_SCALE { MAX_LOG_SCALE } else { value }
}

/// Clips an xyxy box to `[0, width] × [0, height]`. NaN stays NaN.
fn clip(b: [f32; 4], width: f32, height: f32) -> [f32; 4] {
    [
        b[0].clamp(0.0, width),
        b[1].clamp(0.0, height),
        b[2].clamp(0.0, width),
        b[3].clamp(0.0, height),
    ]
}

/// Clips a decoded box to an image of (height, width) pixels; `None` where the box was not finite or its clipped sides
/// have less than `min_side` pixels.
pub(crate) fn clip_usable(raw: [f32; 4], size: (usize, usize), min_side: f32) -> Option<[f32; 4]> {
    // Clipping would make an infinite corner look healthy.
    let finite = raw.iter().all(|corner| corner.is_finite());
    let clipped = clip(raw, size.1 as f32, size.0 as f32);
    (finite && is_usable(clipped, min_side)).then_some(clipped)
}

/// Whether all corners are finite and both sides have at least `min_side` pixels.
fn is_usable(b: [f32; 4], min_side: f32) -> bool {
    b.iter().all(|c| c.is_finite()) && b[2] - b[0] >= min_side && b[3] - b[1] >= min_side
}

/// Keeps denominators of [`giou_loss`] from being zero; the reference's.
const GIOU_EPSILON: f64 = 1e-7;

/// One less the generalized IoU of a predicted and a wanted box, and its derivative by each predicted corner.
///
/// With the intersection i, the union u and the area c of the smallest box around both:
/// `1 − i / (u + ε) + (c − u) / (c + ε)`. Where a predicted side lies on a wanted one, the derivative is the mean of both
/// sides', as the reference's.
///
/// Reference: torchvision `ops/giou_loss.py`; Rezatofighi et al., arXiv:1902.09630.
pub(crate) fn giou_loss(predicted: [f64; 4], target: [f64; 4]) -> (f64, [f64; 4]) {
    let [p, t] = [predicted, target];
    let sides = |b: [f64; 4]| (b[2] - b[0], b[3] - b[1]);
    let (width, height) = sides(p);
    let (target_width, target_height) = sides(t);
    let (common_width, common_height) =
        sides([p[0].max(t[0]), p[1].max(t[1]), p[2].min(t[2]), p[3].min(t[3])]);
    let overlaps = common_width > 0.0 && common_height > 0.0;
    let intersection = if overlaps { common_width * common_height } else { 0.0 };
    let union = width * height + target_width * target_height - intersection;
    let (whole_width, whole_height) =
        sides([p[0].min(t[0]), p[1].min(t[1]), p[2].max(t[2]), p[3].max(t[3])]);
    let (of_union, of_whole) = (union + GIOU_EPSILON, whole_width * whole_height + GIOU_EPSILON);
    let loss = 1.0 - intersection / of_union + (of_whole - of_union) / of_whole;

    // How the predicted area, the intersection and the whole grow with each corner.
    let area = [-height, -width, height, width];
    let common = [-common_height, -common_width, common_height, common_width];
    let whole = [-whole_height, -whole_width, whole_height, whole_width];
    let mut slopes = [0.0; 4];
    for side in 0..4 {
        let (a, b) = if side < 2 { (p[side], t[side]) } else { (t[side], p[side]) };
        let inner = share_above(a, b);
        let of_intersection = if overlaps { common[side] * inner } else { 0.0 };
        let growth = area[side] - of_intersection;
        slopes[side] = -of_intersection / of_union
            + growth * (intersection / (of_union * of_union) - 1.0 / of_whole)
            + whole[side] * (1.0 - inner) * of_union / (of_whole * of_whole);
    }
    (loss, slopes)
}

/// The part of `max(a, b)` that is `a`'s.
fn share_above(a: f64, b: f64) -> f64 {
    if a > b {
        1.0
    } else if a == b {
        0.5
    } else {
        0.0
    }
}

/// `1 / (1 + e^−x)`.
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::support::testing::{Random, fixture, values};

    #[test]
    fn growth_is_capped() {
        let decoded = decode([0.0, 0.0, 100.0, 0.0], [0.0, 0.0, 10.0, 10.0], [1.0; 4]);
        // The exponential may differ in its last bit from one platform to the next.
        for (found, expected) in decoded.iter().zip([-307.5, 0.0, 317.5, 10.0]) {
            assert!((found - expected).abs() < 1e-4, "{decoded:?}");
        }
        assert_eq!(MAX_LOG_SCALE, (1000f64 / 16.0).ln() as f32);
    }

    /// Boxes are compared relative to their size, as some deltas of the fixture blow them up 62.5-fold.
    #[test]
    fn decoding_equals_torchvision() {
        let tensors = fixture("ops.safetensors");
        for case in ["unit", "roi"] {
            let get = |what: &str| values(&tensors[&format!("decode/{case}/{what}")]);
            let (boxes, deltas, expected) = (get("boxes"), get("deltas"), get("decoded"));
            let weights: [f32; 4] = get("weights").try_into().unwrap();
            let per_box = deltas.len() / boxes.len();
            for (i, deltas) in deltas.as_chunks::<4>().0.iter().enumerate() {
                let found = decode(*deltas, boxes.as_chunks::<4>().0[i / per_box], weights);
                let expected = expected.as_chunks::<4>().0[i];
                let size = expected.iter().fold(1f32, |m, corner| m.max(corner.abs()));
                let difference = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
                assert!(difference.fold(0.0, f32::max) <= 1e-6 * size, "{found:?} {expected:?}");
            }
        }
    }

    #[test]
    fn areas_have_no_extra_pixel() {
        assert_eq!(iou([0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 10.0, 5.0]), 0.5);
        assert!(iou([5.0; 4], [5.0; 4]).is_nan());
    }

    #[test]
    fn sides_at_the_limit_are_usable() {
        assert!(is_usable([0.0, 0.0, 0.01, 0.01], 0.01));
        assert!(!is_usable([0.0, 0.0, 0.0099, 5.0], 0.01));
        assert!(!is_usable([0.0, 0.0, f32::INFINITY, 5.0], 0.01));
        assert!(!is_usable([f32::NAN, 0.0, 4.0, 5.0], 0.01));
    }

    #[test]
    fn decoding_undoes_encoding() {
        let mut random = Random::new(8);
        let (targets, references) = (random.boxes(50, 90.0, 60.0), random.boxes(50, 90.0, 60.0));
        for (target, reference) in targets.into_iter().zip(references) {
            for weights in [[1.0; 4], [10.0, 10.0, 5.0, 5.0]] {
                let decoded = decode(encode(target, reference, weights), reference, weights);
                for (a, b) in decoded.iter().zip(target) {
                    assert!((a - b).abs() < 1e-3, "{decoded:?} {target:?}");
                }
            }
        }
    }

    #[test]
    fn encoding_equals_torchvision() {
        let tensors = fixture("train_losses.safetensors");
        let rows = |key: &str| values(&tensors[key]).as_chunks::<4>().0.to_vec();
        let (boxes, objects) = (rows("match/boxes"), rows("match/objects"));
        for (index, expected) in rows("match/encoded").iter().enumerate() {
            let object = objects[index % objects.len()];
            let found = encode(object, boxes[index], [10.0, 10.0, 5.0, 5.0]);
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() <= 1e-5 * expected.abs().max(1.0), "{index}");
            }
        }
    }

    #[test]
    fn deltas_are_relative_to_the_reference() {
        let deltas =
            encode([10.0, 20.0, 30.0, 60.0], [0.0, 0.0, 10.0, 20.0], [10.0, 10.0, 5.0, 5.0]);
        assert_eq!(deltas, [15.0, 15.0, 5.0 * 2f32.ln(), 5.0 * 2f32.ln()]);
    }
}
