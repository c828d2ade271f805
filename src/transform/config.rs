//! The section `image` of a model file.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::section::Checks;

/// From an image to the batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageConfig {
    /// Mean of red, green, blue, of values in `0..=1`.
    pub mean: [f32; 3],
    /// Standard deviation of red, green, blue, of values in `0..=1`.
    pub std: [f32; 3],
    /// Pixels of the shorter side after resizing.
    pub min_size: usize,
    /// Pixels of the shorter side in training, of which one is drawn for each batch; [`Self::min_size`] where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub training_min_sizes: Vec<usize>,
    /// Cap on the pixels of the longer side after resizing.
    pub max_size: usize,
    /// Height and width of every image after resizing, whatever its proportions; `min_size` and `max_size` then say
    /// nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed_size: Option<[usize; 2]>,
    /// Height and width of the padded batch are multiples of this.
    pub size_divisor: usize,
}

impl ImageConfig {
    /// Checks the numbers of the section.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), naming the field at fault.
    pub fn validate(&self, checks: &Checks) -> Result<()> {
        let smallest = self.training_min_sizes.iter().copied().min().unwrap_or(1);
        let [height, width] = self.fixed_size.unwrap_or([1, 1]);
        checks.at_least_one(&[
            ("min_size", self.min_size),
            ("training_min_sizes", smallest),
            ("max_size", self.max_size),
            ("fixed_size", height.min(width)),
            ("size_divisor", self.size_divisor),
        ])?;
        checks.positive("std", &self.std)
    }
}
