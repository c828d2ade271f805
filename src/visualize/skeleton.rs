//! Keypoints, and the limbs between them.

use super::Style;
use super::canvas::{Canvas, Rect};
use crate::structures::{COCO_SKELETON, Keypoint};

/// Keypoints of a person in COCO.
const COCO: usize = 17;

/// Draws the keypoints of an object whose score passes the style's threshold, and the limbs between two such. Limbs have the
/// color of the class, joints a light middle on it.
pub(super) fn draw(
    canvas: &mut Canvas<'_>,
    keypoints: &[Keypoint],
    color: [u8; 3],
    line: u32,
    style: &Style,
) {
    let shown = |at: usize| {
        let Keypoint { x, y, score } = *keypoints.get(at)?;
        let usable = score > style.keypoint_threshold && x.is_finite() && y.is_finite();
        usable.then_some([x, y])
    };
    let limbs = match &style.skeleton {
        Some(limbs) => &limbs[..],
        None if keypoints.len() == COCO => &COCO_SKELETON,
        None => &[],
    };
    let half = line.min(WIDEST) as f32 / 2.0;
    for &[from, to] in limbs {
        if let (Some(from), Some(to)) = (shown(from), shown(to)) {
            stroke(canvas, [from, to], half, color);
        }
    }
    for at in 0..keypoints.len() {
        let Some(place) = shown(at) else { continue };
        stroke(canvas, [place; 2], 3.0 * half, color);
        stroke(canvas, [place; 2], 1.5 * half, JOINT);
    }
}

/// The middle of a joint.
const JOINT: [u8; 3] = [255; 3];

/// Wider lines than this hide any image.
const WIDEST: u32 = 1 << 12;

/// Covers all pixels whose centre is within `radius` of a line from one place to another; the edge is softened over a
/// pixel.
fn stroke(
    canvas: &mut Canvas<'_>,
    [[x1, y1], [x2, y2]]: [[f32; 2]; 2],
    radius: f32,
    color: [u8; 3],
) {
    let reach = radius + 1.0;
    let whole = |value: f32| value as i64;
    let area = Rect {
        left: whole((x1.min(x2) - reach).floor()),
        top: whole((y1.min(y2) - reach).floor()),
        right: whole((x1.max(x2) + reach).ceil()),
        bottom: whole((y1.max(y2) + reach).ceil()),
    };
    let area = area.intersection(canvas.bounds());
    // In f64, as keypoints may be far outside of the image.
    let [x1, y1, x2, y2] = [x1, y1, x2, y2].map(f64::from);
    let (dx, dy) = (x2 - x1, y2 - y1);
    let length = dx * dx + dy * dy;
    for y in area.top..area.bottom {
        for x in area.left..area.right {
            let (px, py) = (x as f64 + 0.5 - x1, y as f64 + 0.5 - y1);
            let along =
                if length > 0.0 { ((px * dx + py * dy) / length).clamp(0.0, 1.0) } else { 0.0 };
            let distance = (px - along * dx).hypot(py - along * dy);
            let opacity = (f64::from(radius) + 0.5 - distance).clamp(0.0, 1.0) as f32;
            if opacity > 0.0 {
                canvas.blend(x, y, color, opacity);
            }
        }
    }
}
