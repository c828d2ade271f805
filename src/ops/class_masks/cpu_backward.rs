//! Gradients of the class-selected filters on the CPU: slices in, slices out.

use rayon::prelude::*;

/// The rows whose gradient is known.
pub(super) struct Rows<'a> {
    /// `[R]`.
    pub labels: &'a [u32],
    /// `[R, cells]`.
    pub gradient: &'a [f32],
    pub classes: usize,
    pub channels: usize,
}

impl Rows<'_> {
    fn cells(&self) -> usize {
        self.gradient.len() / self.labels.len().max(1)
    }

    /// The class of a row that has one.
    fn class(&self, row: usize) -> Option<usize> {
        let class = self.labels[row] as usize;
        (1..self.classes).contains(&class).then_some(class)
    }

    /// `[R, cells, C]`.
    pub fn of_features(&self, weight: &[f32]) -> Vec<f32> {
        let (cells, channels) = (self.cells(), self.channels);
        let mut out = vec![0f32; self.gradient.len() * channels];
        if out.is_empty() {
            return out;
        }
        out.par_chunks_exact_mut(cells * channels).enumerate().for_each(|(row, out)| {
            let Some(class) = self.class(row) else { return };
            let weight = &weight[class * channels..][..channels];
            let gradient = &self.gradient[row * cells..][..cells];
            for (out, gradient) in out.chunks_exact_mut(channels).zip(gradient) {
                out.iter_mut().zip(weight).for_each(|(out, weight)| *out = gradient * weight);
            }
        });
        out
    }

    /// `[classes, C]`.
    pub fn of_weight(&self, features: &[f32]) -> Vec<f32> {
        let (cells, channels) = (self.cells(), self.channels);
        let per_row: Vec<Vec<f32>> = (0..self.labels.len())
            .into_par_iter()
            .map(|row| {
                let mut sums = vec![0f32; channels];
                if self.class(row).is_none() {
                    return sums;
                }
                let features = &features[row * cells * channels..][..cells * channels];
                let gradient = &self.gradient[row * cells..][..cells];
                for (features, gradient) in features.chunks_exact(channels.max(1)).zip(gradient) {
                    for (sum, feature) in sums.iter_mut().zip(features) {
                        *sum += gradient * feature;
                    }
                }
                sums
            })
            .collect();
        let mut out = vec![0f32; self.classes * channels];
        for (row, sums) in per_row.iter().enumerate() {
            if let Some(class) = self.class(row) {
                let out = &mut out[class * channels..][..channels];
                out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum);
            }
        }
        out
    }

    /// `[classes]`.
    pub fn of_bias(&self) -> Vec<f32> {
        let cells = self.cells();
        let mut out = vec![0f32; self.classes];
        for row in 0..self.labels.len() {
            if let Some(class) = self.class(row) {
                out[class] += self.gradient[row * cells..][..cells].iter().sum::<f32>();
            }
        }
        out
    }
}
