//! Instances back to the pixels of the original images.

use std::collections::BTreeMap;

use candle_core::Tensor;

use crate::error::Result;
use crate::ops::scale_boxes;
use crate::structures::{BatchGeometry, DetectionBatch, ImageGeometry, Instances};

/// Scales the boxes of each image by original / resized, separately in y and x.
///
/// Masks stay at the resolution of their head: they are relative to their box, and are pasted on demand. Other heads' results are in pixels of
/// the original images already.
///
/// # Errors
/// Those of [`scale_boxes`].
pub fn restore(
    instances: Instances,
    extras: BTreeMap<String, Tensor>,
    geometry: &BatchGeometry,
) -> Result<DetectionBatch> {
    let factors: Vec<(f32, f32)> = geometry.images.iter().map(ImageGeometry::enlargement).collect();
    Ok(DetectionBatch {
        boxes: scale_boxes(&instances.boxes, &factors)?,
        scores: instances.scores,
        labels: instances.labels,
        counts: instances.counts,
        extras,
        image_sizes: geometry.images.iter().map(|image| image.original).collect(),
    })
}
