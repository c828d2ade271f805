//! Pooling of boxes from the pyramid.

use candle_core::Tensor;

use crate::error::Result;
use crate::ops::{RoiAlignParams, infer_spatial_scales, roi_align};
use crate::structures::{BatchGeometry, FeatureLevel, FeatureMaps};

/// Pools a square of features per box from the level that suits the box's size.
#[derive(Debug, Clone, Copy)]
pub struct MultiScaleRoiAlign {
    levels: usize,
    output: usize,
    sampling: usize,
}

impl MultiScaleRoiAlign {
    /// Pools `output × output` cells with `sampling × sampling` samples each, from the levels that are a stage's: as
    /// torchvision's, they are called `0`, `1`, …; what the pyramid adds serves the region proposal network only.
    pub fn new(levels: &[FeatureLevel], output: usize, sampling: usize) -> Self {
        let is_stage = |level: &&FeatureLevel| level.name.bytes().all(|c| c.is_ascii_digit());
        Self { levels: levels.iter().take_while(is_stage).count(), output, sampling }
    }

    /// `boxes` `[N, K, 4]`, xyxy in pixels of the resized images, `counts` `[N]` → `[N·K, output, output, C]`.
    ///
    /// # Errors
    /// Those of [`roi_align`].
    pub fn forward(
        &self,
        features: &FeatureMaps,
        boxes: &Tensor,
        counts: &Tensor,
        geometry: &BatchGeometry,
    ) -> Result<Tensor> {
        let levels: Vec<&Tensor> = features.levels.iter().take(self.levels).collect();
        let heights: Vec<usize> =
            levels.iter().map(|level| level.dim(1)).collect::<Result<_, _>>()?;
        let tallest = geometry.images.iter().map(|image| image.resized.height).max().unwrap_or(1);
        let scales = infer_spatial_scales(&heights, tallest);
        roi_align(&levels, boxes, counts, &RoiAlignParams::new(self.output, self.sampling, scales))
    }
}
