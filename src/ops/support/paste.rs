//! From a box of `side × side` probabilities to pixels.
//!
//! torchvision 0.28, `paste_masks_in_image`: the probabilities get a border of zeros, the box grows by the same share
//! about its centre and its corners are cut to whole pixels, the border included; bilinear interpolation without aligned
//! corners and without antialiasing resizes the one to the other. All arithmetic is f32 in torchvision's order, so that
//! pixels at a threshold fall on the same side.

/// Zeros around the probabilities, so that the interpolation at an object's edge has something to fall off to.
const PADDING: usize = 1;

/// The part of an image that a box covers, with a probability per pixel; everything outside is 0.
#[derive(Debug, Default)]
pub(crate) struct Region {
    /// First column.
    pub x: usize,
    /// First row.
    pub y: usize,
    /// Columns; 0 when the box misses the image.
    pub width: usize,
    /// Rows; 0 when the box misses the image.
    pub height: usize,
    /// `height · width` values, row by row.
    pub probabilities: Vec<f32>,
}

/// How much a box grows with the border.
pub(crate) fn growth(side: usize) -> f32 {
    ((side + 2 * PADDING) as f64 / side as f64) as f32
}

/// The pixels that a box covers along one axis.
struct Span {
    /// First pixel of the box; may lie outside the image.
    start: i64,
    /// Pixels of the box; may exceed the image.
    length: i64,
    /// First pixel inside the image.
    first: usize,
    /// Pixels inside the image.
    count: usize,
}

impl Span {
    /// Grows `low..high` about its centre and cuts it to whole pixels and to the image; `None` when nothing is left.
    fn new(low: f32, high: f32, scale: f32, limit: usize) -> Option<Self> {
        let half = (high - low) * 0.5 * scale;
        let centre = (high + low) * 0.5;
        let (low, high) = (centre - half, centre + half);
        if !low.is_finite() || !high.is_finite() {
            return None;
        }
        // `as` cuts towards zero, and a box beyond i64 keeps its end there.
        let (start, last) = (low as i64, high as i64);
        let end = last.saturating_add(1).min(i64::try_from(limit).unwrap_or(i64::MAX));
        let first = start.max(0);
        if end <= first {
            return None;
        }
        let length = last.saturating_sub(start).saturating_add(1).max(1);
        // Both lie in 0..=limit.
        Some(Self { start, length, first: first as usize, count: (end - first) as usize })
    }

    /// Where the pixels inside the image read from `side` samples.
    fn taps(&self, side: usize) -> impl Iterator<Item = Tap> {
        let ratio = side as f32 / self.length as f32;
        let offset = self.first as i64 - self.start;
        (0..self.count as i64).map(move |i| {
            let position = (ratio * ((offset + i) as f32 + 0.5) - 0.5).max(0.0);
            let low = (position as usize).min(side - 1);
            let weight = (position - low as f32).min(1.0);
            Tap { low, high: (low + 1).min(side - 1), weight }
        })
    }
}

/// Two neighbouring samples and how much the second one counts.
struct Tap {
    low: usize,
    high: usize,
    weight: f32,
}

impl Tap {
    fn mix(&self, low: f32, high: f32) -> f32 {
        low * (1.0 - self.weight) + high * self.weight
    }
}

/// The pixels of an xyxy box inside an image of (height, width).
pub(crate) fn region(
    side: usize,
    probabilities: &[f32],
    [x1, y1, x2, y2]: [f32; 4],
    (height, width): (usize, usize),
) -> Region {
    let padded_side = side + 2 * PADDING;
    let scale = growth(side);
    let columns = Span::new(x1, x2, scale, width);
    let rows = Span::new(y1, y2, scale, height);
    let (Some(columns), Some(rows)) = (columns, rows) else { return Region::default() };

    let column_taps: Vec<Tap> = columns.taps(padded_side).collect();
    let mut low = StretchedRow::new(columns.count);
    let mut high = StretchedRow::new(columns.count);
    let mut pixels = Vec::with_capacity(rows.count * columns.count);
    for tap in rows.taps(padded_side) {
        // Going down, the lower row of a pixel is often the upper one of an earlier pixel.
        if high.source == Some(tap.low) {
            std::mem::swap(&mut low, &mut high);
        }
        low.fill(tap.low, side, probabilities, &column_taps);
        high.fill(tap.high, side, probabilities, &column_taps);
        pixels.extend(low.values.iter().zip(&high.values).map(|(&low, &high)| tap.mix(low, high)));
    }
    Region {
        x: columns.first,
        y: rows.first,
        width: columns.count,
        height: rows.count,
        probabilities: pixels,
    }
}

/// One row of the padded probabilities, interpolated to the width of the region.
struct StretchedRow {
    source: Option<usize>,
    values: Vec<f32>,
}

impl StretchedRow {
    fn new(width: usize) -> Self {
        Self { source: None, values: vec![0.0; width] }
    }

    /// Interpolates padded row `source`, unless this is what the row holds.
    fn fill(&mut self, source: usize, side: usize, probabilities: &[f32], taps: &[Tap]) {
        if self.source == Some(source) {
            return;
        }
        self.source = Some(source);
        if source < PADDING || source >= side + PADDING {
            self.values.fill(0.0);
            return;
        }
        let row = &probabilities[(source - PADDING) * side..][..side];
        // A column of the border wraps around to an index beyond the row.
        let sample = |column: usize| row.get(column.wrapping_sub(PADDING)).copied().unwrap_or(0.0);
        for (value, tap) in self.values.iter_mut().zip(taps) {
            *value = tap.mix(sample(tap.low), sample(tap.high));
        }
    }
}
