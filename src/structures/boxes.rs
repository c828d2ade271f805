//! Boxes on the host.

/// A box: `x1, y1, x2, y2` in pixels of the original image, top-left origin, area `(x2 − x1)(y2 − y1)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BoxXyxy {
    /// Left edge.
    pub x1: f32,
    /// Top edge.
    pub y1: f32,
    /// Right edge.
    pub x2: f32,
    /// Bottom edge.
    pub y2: f32,
}

impl BoxXyxy {
    /// Width in pixels.
    pub fn width(&self) -> f32 {
        self.x2 - self.x1
    }

    /// Height in pixels.
    pub fn height(&self) -> f32 {
        self.y2 - self.y1
    }

    /// `[x, y, width, height]`, as COCO files have boxes.
    pub fn to_xywh(&self) -> [f32; 4] {
        [self.x1, self.y1, self.width(), self.height()]
    }
}
