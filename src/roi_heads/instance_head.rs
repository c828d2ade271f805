//! What can be asked of a detection besides class and box.

use candle_core::Tensor;

use crate::error::Result;
use crate::structures::{BatchGeometry, FeatureMaps, Instances};

/// A head that adds something to detections already chosen: masks, keypoints, an embedding.
pub trait InstanceHead: Send + Sync {
    /// Key of the output in [`DetectionBatch::extras`](crate::structures::DetectionBatch::extras).
    fn name(&self) -> &str;

    /// Computes `[N, D, …]` f32, slot by slot with `instances`, whose boxes are in pixels of the resized images.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    fn forward(
        &self,
        features: &FeatureMaps,
        instances: &Instances,
        geometry: &BatchGeometry,
    ) -> Result<Tensor>;
}
