//! How the values that a network predicts describe a box relative to a reference box.

use super::geometry::{MAX_LOG_SCALE, encode};

/// How four predicted values describe a box relative to a reference box.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum BoxCoding {
    /// `[dx, dy, dw, dh]`: shift of the center in widths and heights of the reference, and logarithms of the growth, all
    /// divided by weights first (torchvision's `BoxCoder`).
    Deltas {
        /// What values are divided by.
        weights: [f32; 4],
    },
    /// `[left, top, right, bottom]`: distances from the reference's center to the sides, in widths and heights of the
    /// reference (torchvision's `BoxLinearCoder`).
    Distances,
}

impl BoxCoding {
    /// The values that describe `target`.
    pub(crate) fn encode(self, target: [f32; 4], reference: [f32; 4]) -> [f32; 4] {
        match self {
            Self::Deltas { weights } => encode(target, reference, weights),
            Self::Distances => distances(target, reference),
        }
    }

    /// The box that values describe, in f64.
    pub(crate) fn decode(self, values: [f32; 4], reference: [f32; 4]) -> [f64; 4] {
        let values = values.map(f64::from);
        let [x, y, width, height] = centered(reference);
        match self {
            Self::Deltas { weights } => {
                let [dx, dy, dw, dh] = divided(values, weights);
                let half_width = 0.5 * (cap(dw).exp() * width);
                let half_height = 0.5 * (cap(dh).exp() * height);
                let (x, y) = (dx * width + x, dy * height + y);
                [x - half_width, y - half_height, x + half_width, y + half_height]
            }
            Self::Distances => [
                x - values[0] * width,
                y - values[1] * height,
                x + values[2] * width,
                y + values[3] * height,
            ],
        }
    }

    /// The derivatives by the values, from those by the corners of the box that they describe.
    pub(crate) fn slopes(
        self,
        values: [f32; 4],
        reference: [f32; 4],
        by_corner: [f64; 4],
    ) -> [f64; 4] {
        let values = values.map(f64::from);
        let [_, _, width, height] = centered(reference);
        let [x1, y1, x2, y2] = by_corner;
        match self {
            Self::Deltas { weights } => {
                let [_, _, dw, dh] = divided(values, weights);
                let divisors = weights.map(f64::from);
                [
                    (x1 + x2) * width / divisors[0],
                    (y1 + y2) * height / divisors[1],
                    (x2 - x1) * 0.5 * width * slope_of_growth(dw) / divisors[2],
                    (y2 - y1) * 0.5 * height * slope_of_growth(dh) / divisors[3],
                ]
            }
            Self::Distances => [-x1 * width, -y1 * height, x2 * width, y2 * height],
        }
    }
}

/// Distances from the center of a reference box to the sides of a target, in sides of the reference.
pub(crate) fn distances(target: [f32; 4], reference: [f32; 4]) -> [f32; 4] {
    let (width, height) = (reference[2] - reference[0], reference[3] - reference[1]);
    let x = 0.5 * (reference[0] + reference[2]);
    let y = 0.5 * (reference[1] + reference[3]);
    [
        (x - target[0]) / width,
        (y - target[1]) / height,
        (target[2] - x) / width,
        (target[3] - y) / height,
    ]
}

fn centered(reference: [f32; 4]) -> [f64; 4] {
    let [x1, y1, x2, y2] = reference.map(f64::from);
    [0.5 * (x1 + x2), 0.5 * (y1 + y2), x2 - x1, y2 - y1]
}

fn divided(values: [f64; 4], weights: [f32; 4]) -> [f64; 4] {
    std::array::from_fn(|i| values[i] / f64::from(weights[i]))
}

/// NaN passes.
fn cap(value: f64) -> f64 {
    let limit = f64::from(MAX_LOG_SCALE);
    if value > limit { limit } else { value }
}

/// Above the cap nothing grows.
fn slope_of_growth(value: f64) -> f64 {
    if value > f64::from(MAX_LOG_SCALE) { 0.0 } else { value.exp() }
}
