//! What images show, as several ops take it.

use candle_core::Tensor;

/// The objects of a batch.
#[derive(Debug, Clone, Copy)]
pub struct Objects<'a> {
    /// `[N, G, 4]` f32, xyxy in pixels of the resized images.
    pub boxes: &'a Tensor,
    /// `[N, G]` u32, category ids above 0.
    pub labels: &'a Tensor,
}
