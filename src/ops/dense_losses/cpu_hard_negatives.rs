//! Cross-entropy of positives and of the hardest negatives.

use rayon::prelude::*;

use super::given::Given;
use crate::ops::support::matches::Match;
use crate::ops::support::order::descending_key;

/// The loss. Slopes of a level are computed where there is room for them.
pub(super) fn cost(given: &Given<'_>, per_positive: usize, slopes: &mut [Vec<f32>]) -> f64 {
    let classes = given.plan.width;
    let rows = given.plan.rows();
    let costs: Vec<f64> = (0..given.matches.len())
        .into_par_iter()
        .with_min_len(64)
        .map(|place| match label(given, place) {
            Some(label) => cross_entropy(logits(given, place), label).0,
            None => 0.0,
        })
        .collect();
    let times: Vec<u8> = (0..given.plan.images)
        .into_par_iter()
        .flat_map_iter(|image| {
            let codes = &given.matches[image * rows..][..rows];
            times_learned(codes, &costs[image * rows..][..rows], per_positive)
        })
        .collect();
    let mut start = 0;
    for (level, (length, slopes)) in given.plan.lengths.iter().zip(slopes).enumerate() {
        let in_order = slopes.par_chunks_mut(classes).enumerate().with_min_len(64);
        in_order.for_each(|(row, slopes)| {
            let image = row / length;
            let place = image * rows + start + row % length;
            if times[place] == 0 {
                return;
            }
            let Some(label) = label(given, place) else { return };
            let logits = &given.levels[level][row * classes..][..classes];
            let (_, normalizer) = cross_entropy(logits, label);
            let factor = given.shares[image] * f64::from(times[place]);
            for (class, (slope, logit)) in slopes.iter_mut().zip(logits).enumerate() {
                let wanted = if class == label { 1.0 } else { 0.0 };
                *slope = (((f64::from(*logit) - normalizer).exp() - wanted) * factor) as f32;
            }
        });
        start += length;
    }
    let terms = costs.iter().zip(&times).enumerate().filter(|(_, (_, times))| **times > 0);
    terms.map(|(place, (cost, times))| cost * f64::from(*times) * given.shares[place / rows]).sum()
}

/// The class that a place wants, `None` where it is ignored.
fn label(given: &Given<'_>, place: usize) -> Option<usize> {
    match Match::from_code(given.matches[place]) {
        Match::Ignored => None,
        Match::Background => Some(0),
        Match::Object(object) => {
            Some(given.labels[given.object(place / given.plan.rows(), object)] as usize)
        }
    }
}

fn logits<'a>(given: &Given<'a>, place: usize) -> &'a [f32] {
    let rows = given.plan.rows();
    match given.plan.place(place / rows, place % rows) {
        Some((level, row)) => &given.levels[level][row * given.plan.width..][..given.plan.width],
        None => &[],
    }
}

/// The cost of a row whose class is `label`, and the logarithm of the sum of its exponentials.
fn cross_entropy(logits: &[f32], label: usize) -> (f64, f64) {
    // No exponential overflows.
    let largest = logits.iter().fold(f64::NEG_INFINITY, |largest, x| largest.max(f64::from(*x)));
    let total: f64 = logits.iter().map(|x| (f64::from(*x) - largest).exp()).sum();
    let normalizer = largest + total.ln();
    (normalizer - f64::from(logits[label]), normalizer)
}

/// How often each place of an image is learned from.
fn times_learned(codes: &[u32], costs: &[f64], per_positive: usize) -> Vec<u8> {
    let is_positive = |code: u32| matches!(Match::from_code(code), Match::Object(_));
    let mut times: Vec<u8> = codes.iter().map(|code| u8::from(is_positive(*code))).collect();
    let positives = codes.iter().filter(|code| is_positive(**code)).count();
    let wanted = positives.saturating_mul(per_positive);
    let mut keys: Vec<u64> = (0u32..)
        .zip(codes.iter().zip(costs))
        .filter(|(_, (code, _))| Match::from_code(**code) != Match::Ignored)
        .map(|(place, (code, cost))| descending_key(hardness(is_positive(*code), *cost), place))
        .collect();
    let wanted = wanted.min(keys.len());
    if wanted > 0 && wanted < keys.len() {
        keys.select_nth_unstable(wanted - 1);
    }
    for key in &keys[..wanted] {
        times[*key as u32 as usize] += 1;
    }
    times
}

/// By which places are chosen: positives last, and what is not a number first, so that it shows.
fn hardness(positive: bool, cost: f64) -> f32 {
    if positive {
        f32::NEG_INFINITY
    } else if cost.is_nan() {
        f32::INFINITY
    } else {
        cost as f32
    }
}
