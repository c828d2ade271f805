//! Losses by their definition, in f64, of values that are neither large nor NaN where they are looked at.

use super::{BoxCost, Normalization};
use crate::ops::support::box_coding::BoxCoding;
use crate::ops::support::matches::Match;

/// What places are to learn, and where they are.
pub(super) struct Truth<'a> {
    pub images: usize,
    /// `[N, A]`.
    pub matches: &'a [u32],
    /// Of all images.
    pub boxes: &'a [[f32; 4]],
    pub labels: &'a [u32],
    pub n_objects: usize,
    pub anchors: &'a [[f32; 4]],
}

impl Truth<'_> {
    fn rows(&self) -> usize {
        self.matches.len() / self.images.max(1)
    }

    fn found(&self, place: usize) -> Match {
        Match::from_code(self.matches[place])
    }

    fn object(&self, place: usize) -> Option<usize> {
        let Match::Object(object) = self.found(place) else { return None };
        Some(place / self.rows() * self.n_objects + object as usize)
    }

    fn positives(&self, image: usize) -> usize {
        let rows = self.rows();
        (image * rows..(image + 1) * rows).filter(|place| self.object(*place).is_some()).count()
    }

    /// Divides the sums of images, and adds them up.
    fn divided(&self, normalization: Normalization, cost: impl Fn(usize) -> f64) -> f64 {
        let rows = self.rows();
        let sum = |image: usize| (image * rows..(image + 1) * rows).map(&cost).sum::<f64>();
        let images = 0..self.images;
        match normalization {
            Normalization::PerImage => {
                images.map(|i| sum(i) / self.positives(i).max(1) as f64).sum::<f64>()
                    / self.images as f64
            }
            Normalization::PerBatch => {
                let positives: usize = images.clone().map(|image| self.positives(image)).sum();
                images.map(sum).sum::<f64>() / positives.max(1) as f64
            }
        }
    }

    pub fn focal(&self, logits: &[f64], classes: usize, normalization: Normalization) -> f64 {
        self.divided(normalization, |place| {
            if self.found(place) == Match::Ignored {
                return 0.0;
            }
            let wanted = self.object(place).map(|object| self.labels[object] as usize);
            let logits = logits[place * classes..][..classes].iter().enumerate();
            logits
                .map(|(class, logit)| {
                    let p = 1.0 / (1.0 + (-logit).exp());
                    if wanted == Some(class) {
                        -0.25 * (1.0 - p).powi(2) * p.ln()
                    } else {
                        -0.75 * p.powi(2) * (1.0 - p).ln()
                    }
                })
                .sum()
        })
    }

    pub fn boxes(
        &self,
        values: &[f64],
        coding: BoxCoding,
        cost: BoxCost,
        normalization: Normalization,
    ) -> f64 {
        self.divided(normalization, |place| {
            let Some(object) = self.object(place) else { return 0.0 };
            let (anchor, object) = (self.anchors[place % self.rows()], self.boxes[object]);
            let values = &values[4 * place..][..4];
            if cost == BoxCost::Giou {
                return 1.0
                    - generalized_iou(decode(values, anchor, coding), object.map(f64::from));
            }
            let wanted = coding.encode(object, anchor);
            let terms = values.iter().zip(wanted).map(|(value, wanted)| {
                let error = (value - f64::from(wanted)).abs();
                match cost {
                    BoxCost::SmoothL1 { beta } if error < f64::from(beta) => {
                        error * error / (2.0 * f64::from(beta))
                    }
                    BoxCost::SmoothL1 { beta } => error - f64::from(beta) / 2.0,
                    _ => error,
                }
            });
            terms.sum()
        })
    }

    pub fn centerness(&self, logits: &[f64]) -> f64 {
        self.divided(Normalization::PerBatch, |place| {
            let Some(object) = self.object(place) else { return 0.0 };
            let [x1, y1, x2, y2] = self.boxes[object].map(f64::from);
            let [ax1, ay1, ax2, ay2] = self.anchors[place % self.rows()].map(f64::from);
            let (x, y) = ((ax1 + ax2) / 2.0, (ay1 + ay2) / 2.0);
            let ratio = |a: f64, b: f64| a.min(b) / a.max(b);
            let target = (ratio(x - x1, x2 - x) * ratio(y - y1, y2 - y)).sqrt();
            let p = 1.0 / (1.0 + (-logits[place]).exp());
            -target * p.ln() - (1.0 - target) * (1.0 - p).ln()
        })
    }

    pub fn hard_negatives(&self, logits: &[f64], classes: usize, per_positive: usize) -> f64 {
        let cost = |place: usize| {
            let label = self.object(place).map_or(0, |object| self.labels[object] as usize);
            let logits = &logits[place * classes..][..classes];
            let total: f64 = logits.iter().map(|logit| logit.exp()).sum();
            -(logits[label].exp() / total).ln()
        };
        let rows = self.rows();
        let mut times = vec![0.0; self.matches.len()];
        for image in 0..self.images {
            let mut order: Vec<usize> = (image * rows..(image + 1) * rows).collect();
            order.retain(|place| self.found(*place) != Match::Ignored);
            let key = |place: &usize| match self.object(*place) {
                Some(_) => f64::NEG_INFINITY,
                None => cost(*place),
            };
            order.sort_by(|a, b| key(b).total_cmp(&key(a)));
            for place in order.iter().take(per_positive * self.positives(image)) {
                times[*place] += 1.0;
            }
            for place in order.iter().filter(|place| self.object(**place).is_some()) {
                times[*place] += 1.0;
            }
        }
        self.divided(Normalization::PerBatch, |place| {
            if times[place] > 0.0 { times[place] * cost(place) } else { 0.0 }
        })
    }
}

fn decode(values: &[f64], anchor: [f32; 4], coding: BoxCoding) -> [f64; 4] {
    let [x1, y1, x2, y2] = anchor.map(f64::from);
    let (width, height, x, y) = (x2 - x1, y2 - y1, (x1 + x2) / 2.0, (y1 + y2) / 2.0);
    match coding {
        BoxCoding::Distances => [
            x - values[0] * width,
            y - values[1] * height,
            x + values[2] * width,
            y + values[3] * height,
        ],
        BoxCoding::Deltas { weights } => {
            let weights = weights.map(f64::from);
            let (x, y) = (x + values[0] / weights[0] * width, y + values[1] / weights[1] * height);
            let limit = (1000f64 / 16.0).ln();
            let width = (values[2] / weights[2]).min(limit).exp() * width;
            let height = (values[3] / weights[3]).min(limit).exp() * height;
            [x - width / 2.0, y - height / 2.0, x + width / 2.0, y + height / 2.0]
        }
    }
}

fn generalized_iou(a: [f64; 4], b: [f64; 4]) -> f64 {
    let area = |b: [f64; 4]| (b[2] - b[0]) * (b[3] - b[1]);
    let common = [a[0].max(b[0]), a[1].max(b[1]), a[2].min(b[2]), a[3].min(b[3])];
    let common = if common[2] > common[0] && common[3] > common[1] { area(common) } else { 0.0 };
    let whole = area([a[0].min(b[0]), a[1].min(b[1]), a[2].max(b[2]), a[3].max(b[3])]);
    let union = area(a) + area(b) - common;
    common / (union + 1e-7) - (whole - union) / (whole + 1e-7)
}
