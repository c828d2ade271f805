//! Losses by their definition, in f64, of values that are neither large nor NaN where they are looked at.

use super::{IGNORED_LABEL, SMOOTH_L1_BETA};

fn rows_looked_at(labels: &[u32]) -> Vec<usize> {
    (0..labels.len()).filter(|row| labels[*row] != IGNORED_LABEL).collect()
}

fn divide(sum: f64, n: usize) -> f64 {
    if n == 0 { 0.0 } else { sum / n as f64 }
}

fn cross_entropy(logit: f64, target: f64) -> f64 {
    let probability = 1.0 / (1.0 + (-logit).exp());
    -target * probability.ln() - (1.0 - target) * (1.0 - probability).ln()
}

pub(super) fn objectness_loss(logits: &[f64], labels: &[u32]) -> f64 {
    let rows = rows_looked_at(labels);
    let cost = |row: &usize| cross_entropy(logits[*row], f64::from(labels[*row].min(1)));
    divide(rows.iter().map(cost).sum(), rows.len())
}

pub(super) fn classifier_loss(logits: &[f64], labels: &[u32]) -> f64 {
    let rows = rows_looked_at(labels);
    let classes = logits.len() / labels.len().max(1);
    let mut sum = 0.0;
    for row in &rows {
        let logits = &logits[row * classes..][..classes];
        let total: f64 = logits.iter().map(|logit| logit.exp()).sum();
        sum -= (logits[labels[*row] as usize].exp() / total).ln();
    }
    divide(sum, rows.len())
}

pub(super) fn box_loss(deltas: &[f64], labels: &[u32], targets: &[f64]) -> f64 {
    let rows = rows_looked_at(labels);
    let columns = deltas.len() / labels.len().max(1);
    let beta = f64::from(SMOOTH_L1_BETA);
    let mut sum = 0.0;
    for row in rows.iter().filter(|row| labels[**row] > 0) {
        let class = if columns == 4 { 0 } else { labels[*row] as usize };
        for side in 0..4 {
            let error = (deltas[row * columns + 4 * class + side] - targets[4 * row + side]).abs();
            sum += if error < beta { error * error / (2.0 * beta) } else { error - beta / 2.0 };
        }
    }
    divide(sum, rows.len())
}

pub(super) fn mask_loss(logits: &[f64], labels: &[u32], targets: &[f64]) -> f64 {
    let rows: Vec<usize> =
        rows_looked_at(labels).into_iter().filter(|row| labels[*row] > 0).collect();
    let cells = logits.len() / labels.len().max(1);
    let places = rows.iter().flat_map(|row| row * cells..(row + 1) * cells);
    let cost = |place: usize| cross_entropy(logits[place], targets[place]);
    divide(places.map(cost).sum(), rows.len() * cells)
}
