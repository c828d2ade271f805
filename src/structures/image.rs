//! Sizes, and the batch that enters the backbone.

use std::fmt;

use candle_core::Tensor;

/// Height and width in pixels, always in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ImageSize {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

impl fmt::Display for ImageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}×{} (height × width)", self.height, self.width)
    }
}

/// How one image of a batch was resized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageGeometry {
    /// Size as given by the caller.
    pub original: ImageSize,
    /// Size inside the batch, without padding.
    pub resized: ImageSize,
}

impl ImageGeometry {
    /// `(y, x)`: original pixels per resized one, divided in f32 as the reference divides.
    pub fn enlargement(&self) -> (f32, f32) {
        (
            self.original.height as f32 / self.resized.height as f32,
            self.original.width as f32 / self.resized.width as f32,
        )
    }
}

/// Sizes of a batch: numbers on the host, from which kernels take their shape scalars.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchGeometry {
    /// Size of the batch tensor.
    pub padded: ImageSize,
    /// One entry per image.
    pub images: Vec<ImageGeometry>,
}

/// Images as the backbone takes them.
#[derive(Debug, Clone)]
pub struct ImageBatch {
    /// `[N, H, W, 3]` f32, channels last, normalised; each image at the top left of a zero canvas.
    pub pixels: Tensor,
    /// Where each image lies in `pixels`.
    pub geometry: BatchGeometry,
}

impl BatchGeometry {
    /// (height, width) of each image in the batch, without padding: what boxes are clipped to.
    pub fn resized_sizes(&self) -> Vec<(usize, usize)> {
        self.images.iter().map(|image| (image.resized.height, image.resized.width)).collect()
    }
}
