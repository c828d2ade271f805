//! Predictions and objects on the CPU, and which of them have found each other.

use super::Normalization;
use crate::error::{Error, Result};
use crate::ops::support::levels::Levels;
use crate::ops::support::matches::Match;

/// Predictions and what they should be, as slices.
pub(super) struct Given<'a> {
    pub op: &'static str,
    pub plan: &'a Levels,
    pub n_objects: usize,
    pub levels: &'a [&'a [f32]],
    pub anchors: &'a [[f32; 4]],
    pub matches: &'a [u32],
    pub boxes: &'a [[f32; 4]],
    pub labels: &'a [u32],
    /// What an image's costs are multiplied by.
    pub shares: Vec<f64>,
}

/// A place that has found an object.
pub(super) struct Positive {
    pub image: usize,
    /// Among the places of the image.
    pub row: usize,
    /// Among the objects of the batch.
    pub object: usize,
}

/// What costs of each image are multiplied by.
pub(super) fn shares(matches: &[u32], plan: &Levels, normalization: Normalization) -> Vec<f64> {
    let is_positive = |code: &&u32| matches!(Match::from_code(**code), Match::Object(_));
    let rows = plan.rows();
    let of_image =
        |image: usize| matches[image * rows..][..rows].iter().filter(is_positive).count();
    let positives: Vec<usize> = (0..plan.images).map(of_image).collect();
    match normalization {
        Normalization::PerImage => {
            let images = plan.images as f64;
            positives.iter().map(|count| 1.0 / (*count).max(1) as f64 / images).collect()
        }
        Normalization::PerBatch => {
            let all = positives.iter().sum::<usize>().max(1) as f64;
            vec![1.0 / all; plan.images]
        }
    }
}

impl Given<'_> {
    /// Requires that matches are objects, and their labels classes where predictions are.
    pub fn check_matches(&self, has_classes: bool) -> Result<()> {
        let fault = |argument, expected, found: usize| {
            Err(Error::Shape { op: self.op, argument, expected, found: vec![found] })
        };
        let classes = self.plan.width;
        for (place, code) in self.matches.iter().enumerate() {
            let Match::Object(object) = Match::from_code(*code) else { continue };
            if object as usize >= self.n_objects {
                let expected = format!("objects below {}", self.n_objects);
                return fault("matches", expected, object as usize);
            }
            let label = self.labels[self.object(place / self.plan.rows(), object)] as usize;
            if has_classes && label >= classes {
                return fault("objects.labels", format!("classes below {classes}"), label);
            }
        }
        Ok(())
    }

    /// The place of an object of an image among those of the batch.
    pub fn object(&self, image: usize, object: u32) -> usize {
        image * self.n_objects + object as usize
    }

    /// All places that have found an object, in order.
    fn positives(&self) -> impl Iterator<Item = Positive> {
        let rows = self.plan.rows().max(1);
        self.matches.iter().enumerate().filter_map(move |(place, code)| {
            let Match::Object(object) = Match::from_code(*code) else { return None };
            let image = place / rows;
            Some(Positive { image, row: place % rows, object: self.object(image, object) })
        })
    }

    /// Adds up what positives cost, from the values of a place to its cost and the derivatives by them.
    pub fn of_positives<const WIDTH: usize>(
        &self,
        slopes: &mut [Vec<f32>],
        cost: impl Fn(Positive, [f32; WIDTH]) -> (f64, [f64; WIDTH]),
    ) -> f64 {
        let mut sum = 0.0;
        for positive in self.positives() {
            let share = self.shares[positive.image];
            let Some((level, row)) = self.plan.place(positive.image, positive.row) else {
                continue;
            };
            let values = self.levels[level].as_chunks::<WIDTH>().0[row];
            let (value, by_value) = cost(positive, values);
            sum += value * share;
            if let Some(slopes) = slopes[level].as_chunks_mut::<WIDTH>().0.get_mut(row) {
                *slopes = by_value.map(|slope| (slope * share) as f32);
            }
        }
        sum
    }
}
