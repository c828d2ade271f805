//! What the deltas of a box should have been.

/// The deltas, multiplied by `weights`, that turn `reference` into `target`: the inverse of decoding.
///
/// Both boxes are xyxy in one unit and have positive sides; others give infinite or NaN deltas.
///
/// Reference: torchvision `models/detection/_utils.py`, `encode_boxes`; Girshick et al. 2014, appendix C.
pub fn encode(target: [f32; 4], reference: [f32; 4], weights: [f32; 4]) -> [f32; 4] {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::support::geometry::decode;
    use crate::ops::support::testing::Random;

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
    fn deltas_are_relative_to_the_reference() {
        let deltas =
            encode([10.0, 20.0, 30.0, 60.0], [0.0, 0.0, 10.0, 20.0], [10.0, 10.0, 5.0, 5.0]);
        assert_eq!(deltas, [15.0, 15.0, 5.0 * 2f32.ln(), 5.0 * 2f32.ln()]);
    }
}
