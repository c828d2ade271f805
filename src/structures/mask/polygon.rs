//! Outlines along the edges of pixels.

use super::region::MaskRegion;

/// Whether an outline encloses pixels of the mask or a hole in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolygonKind {
    /// The outer border of a part of the mask; its corners go clockwise as seen on a screen.
    Outer,
    /// The border of a hole; its corners go counter-clockwise.
    Hole,
}

/// A closed outline; the last corner joins the first one.
#[derive(Debug, Clone, PartialEq)]
pub struct Polygon {
    /// `[x, y]` in pixels from the top-left corner of the image.
    pub corners: Vec<[f32; 2]>,
    /// What it encloses.
    pub kind: PolygonKind,
}

impl Polygon {
    /// `x0, y0, x1, y1, …`, as the polygons of COCO files are written.
    pub fn to_coco(&self) -> Vec<f32> {
        self.corners.iter().flatten().copied().collect()
    }

    /// The enclosed area in pixels.
    pub fn area(&self) -> f64 {
        doubled_signed_area(&self.corners).abs() / 2.0
    }
}

/// Twice the area, positive for corners that go clockwise on a screen (y points down).
fn doubled_signed_area(corners: &[[f32; 2]]) -> f64 {
    let next = corners.iter().cycle().skip(1);
    let cross = |a: &[f32; 2], b: &[f32; 2]| {
        f64::from(a[0]) * f64::from(b[1]) - f64::from(b[0]) * f64::from(a[1])
    };
    corners.iter().zip(next).map(|(a, b)| cross(a, b)).sum()
}

/// One step along an edge.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Right,
    Down,
    Left,
    Up,
}

impl Direction {
    fn turned_right(self) -> Self {
        match self {
            Self::Right => Self::Down,
            Self::Down => Self::Left,
            Self::Left => Self::Up,
            Self::Up => Self::Right,
        }
    }

    fn turned_left(self) -> Self {
        match self {
            Self::Right => Self::Up,
            Self::Up => Self::Left,
            Self::Left => Self::Down,
            Self::Down => Self::Right,
        }
    }

    /// The corner one step ahead.
    fn step(self, x: usize, y: usize) -> (usize, usize) {
        match self {
            Self::Right => (x + 1, y),
            Self::Down => (x, y + 1),
            Self::Left => (x - 1, y),
            Self::Up => (x, y - 1),
        }
    }

    /// The pixels ahead of a corner, to the left and to the right of the edge that would lie there.
    fn ahead(self, x: usize, y: usize) -> [(usize, usize); 2] {
        // In a plane with a border, so that corner (x, y) lies between pixels (x, y) and (x + 1, y + 1).
        let (west, east, north, south) = (x, x + 1, y, y + 1);
        match self {
            Self::Right => [(east, north), (east, south)],
            Self::Down => [(east, south), (west, south)],
            Self::Left => [(west, south), (west, north)],
            Self::Up => [(west, north), (east, north)],
        }
    }
}

/// Outlines of the pixels strictly above a threshold, ordered by their topmost row, then leftmost corner.
pub(super) fn trace(region: &MaskRegion, threshold: f32) -> Vec<Polygon> {
    if region.width == 0 {
        return Vec::new();
    }
    // A border of one pixel outside the mask saves every check of the edges.
    let stride = region.width + 2;
    let mut inside = vec![false; stride * (region.height + 2)];
    for (y, row) in region.rows().enumerate() {
        let start = (y + 1) * stride + 1;
        for (pixel, &probability) in inside[start..].iter_mut().zip(row) {
            *pixel = probability > threshold;
        }
    }
    // Every outline has a step to the right: along the top of a mask pixel that has none above it.
    let mut traced = vec![false; inside.len()];
    let mut polygons = Vec::new();
    for y in 0..region.height {
        for x in 0..region.width {
            let pixel = (y + 1) * stride + x + 1;
            if inside[pixel] && !inside[pixel - stride] && !traced[pixel] {
                polygons.push(trace_from(x, y, region, &inside, &mut traced));
            }
        }
    }
    polygons
}

/// Follows the outline through the top edge of pixel `(x, y)`, the mask on the right hand.
fn trace_from(
    start_x: usize,
    start_y: usize,
    region: &MaskRegion,
    inside: &[bool],
    traced: &mut [bool],
) -> Polygon {
    let stride = region.width + 2;
    let (mut x, mut y, mut direction) = (start_x, start_y, Direction::Right);
    let mut corners = Vec::new();
    loop {
        if direction == Direction::Right {
            traced[(y + 1) * stride + x + 1] = true;
        }
        (x, y) = direction.step(x, y);
        let [left, right] = direction.ahead(x, y).map(|(x, y)| inside[y * stride + x]);
        // Where two pixels touch at a corner only, turning right keeps to the pixel at hand: parts are 4-connected.
        let next = match (left, right) {
            (_, false) => direction.turned_right(),
            (false, true) => direction,
            (true, true) => direction.turned_left(),
        };
        if next != direction {
            corners.push([(region.x + x) as f32, (region.y + y) as f32]);
        }
        direction = next;
        if (x, y, direction) == (start_x, start_y, Direction::Right) {
            break;
        }
    }
    let clockwise = doubled_signed_area(&corners) > 0.0;
    Polygon { corners, kind: if clockwise { PolygonKind::Outer } else { PolygonKind::Hole } }
}
