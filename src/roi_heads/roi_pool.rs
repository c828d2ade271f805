//! Pooling of boxes from the pyramid.

use candle_core::Tensor;

use crate::error::Result;
use crate::ops::{RoiAlignParams, infer_spatial_scales, roi_align};
use crate::structures::{BatchGeometry, FeatureMaps};

/// Pyramid levels that boxes are pooled from; the extra level serves the region proposal network only.
const ROI_LEVELS: usize = 4;

/// Pools a square of features per box from the level that suits the box's size.
#[derive(Debug, Clone, Copy)]
pub struct MultiScaleRoiAlign {
    output: usize,
    sampling: usize,
}

impl MultiScaleRoiAlign {
    /// Pools `output × output` cells with `sampling × sampling` samples each.
    pub fn new(output: usize, sampling: usize) -> Self {
        Self { output, sampling }
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
        let levels: Vec<&Tensor> = features.levels.iter().take(ROI_LEVELS).collect();
        let heights: Vec<usize> =
            levels.iter().map(|level| level.dim(1)).collect::<Result<_, _>>()?;
        let tallest = geometry.images.iter().map(|image| image.resized.height).max().unwrap_or(1);
        let scales = infer_spatial_scales(&heights, tallest);
        roi_align(&levels, boxes, counts, &RoiAlignParams::new(self.output, self.sampling, scales))
    }
}
