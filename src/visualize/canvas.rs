//! Pixels that take color.

use image::RgbImage;

use crate::structures::BoxXyxy;

/// Whole pixels from `left` to before `right`, from `top` to before `bottom`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rect {
    pub left: i64,
    pub top: i64,
    pub right: i64,
    pub bottom: i64,
}

/// Coordinates beyond this are of no image; sums of a few of them stay far from overflow.
const FARTHEST: f32 = 1e12;

impl Rect {
    /// The pixels of a box, at least one; `None` for a box with NaN, without a finite size, or reversed.
    pub fn from_box(bbox: BoxXyxy) -> Option<Self> {
        let BoxXyxy { x1, y1, x2, y2 } = bbox;
        let usable = [x1, y1, x2, y2].iter().all(|edge| edge.is_finite()) && x1 <= x2 && y1 <= y2;
        if !usable {
            return None;
        }
        let whole = |edge: f32| edge.clamp(-FARTHEST, FARTHEST).round() as i64;
        let (left, top) = (whole(x1), whole(y1));
        Some(Self { left, top, right: whole(x2).max(left + 1), bottom: whole(y2).max(top + 1) })
    }

    /// Moves each edge outwards.
    pub fn grown(self, by: u32) -> Self {
        let by = i64::from(by);
        let Self { left, top, right, bottom } = self;
        Self { left: left - by, top: top - by, right: right + by, bottom: bottom + by }
    }

    pub fn intersection(self, other: Self) -> Self {
        Self {
            left: self.left.max(other.left),
            top: self.top.max(other.top),
            right: self.right.min(other.right),
            bottom: self.bottom.min(other.bottom),
        }
    }

    pub fn is_empty(self) -> bool {
        self.left >= self.right || self.top >= self.bottom
    }

    /// Number of pixels.
    pub fn area(self) -> i64 {
        if self.is_empty() { 0 } else { (self.right - self.left) * (self.bottom - self.top) }
    }
}

/// An image to draw on; drawing outside of it has no effect.
pub(super) struct Canvas<'a> {
    image: &'a mut RgbImage,
}

impl<'a> Canvas<'a> {
    pub fn new(image: &'a mut RgbImage) -> Self {
        Self { image }
    }

    pub fn bounds(&self) -> Rect {
        let (right, bottom) = (i64::from(self.image.width()), i64::from(self.image.height()));
        Rect { left: 0, top: 0, right, bottom }
    }

    /// Mixes a color into a pixel; an opacity of 1 replaces it.
    pub fn blend(&mut self, x: i64, y: i64, color: [u8; 3], opacity: f32) {
        let (Ok(x), Ok(y)) = (u32::try_from(x), u32::try_from(y)) else { return };
        let Some(pixel) = self.image.get_pixel_mut_checked(x, y) else { return };
        for (old, new) in pixel.0.iter_mut().zip(color) {
            let mixed = f32::from(*old) * (1.0 - opacity) + f32::from(new) * opacity;
            *old = mixed.round() as u8;
        }
    }

    /// Mixes a color into all pixels of a rectangle.
    pub fn fill(&mut self, rect: Rect, color: [u8; 3], opacity: f32) {
        let rect = rect.intersection(self.bounds());
        for y in rect.top..rect.bottom {
            for x in rect.left..rect.right {
                self.blend(x, y, color, opacity);
            }
        }
    }
}
