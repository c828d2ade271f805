//! Class and score on a filled background.

use ab_glyph::{Font, FontRef, Glyph, PxScale, PxScaleFont, ScaleFont, point};

use super::canvas::{Canvas, Rect};
use super::color::text_color;

/// Roboto Medium, ASCII and Latin-1; see `assets/README.md`.
static FONT: &[u8] = include_bytes!("../../assets/Roboto-Medium-latin1.ttf");

/// The typeface at a size.
pub(super) struct Typeface {
    font: PxScaleFont<FontRef<'static>>,
}

impl Typeface {
    /// `None` for a size that is no size.
    pub fn new(size: f32) -> Option<Self> {
        if !(size > 0.0 && size < 1e5) {
            return None;
        }
        let font = FontRef::try_from_slice(FONT).ok()?;
        Some(Self { font: font.into_scaled(PxScale::from(size)) })
    }

    /// Free space at either end of a text.
    fn margin(&self) -> i64 {
        (self.font.height() * 0.25).ceil() as i64
    }

    /// Glyphs with their places from the left end of the baseline, and the width of all.
    fn lay_out(&self, text: &str) -> (Vec<Glyph>, f32) {
        let mut x = 0.0;
        let mut glyphs: Vec<Glyph> = Vec::new();
        for character in text.chars() {
            let mut glyph = self.font.scaled_glyph(character);
            if let Some(before) = glyphs.last() {
                x += self.font.kern(before.id, glyph.id);
            }
            glyph.position = point(x, 0.0);
            x += self.font.h_advance(glyph.id);
            glyphs.push(glyph);
        }
        (glyphs, x)
    }
}

/// A label in its place.
struct Label {
    glyphs: Vec<Glyph>,
    area: Rect,
    color: [u8; 3],
}

/// The labels of an image.
pub(super) struct Labels<'a> {
    typeface: &'a Typeface,
    bounds: Rect,
    placed: Vec<Label>,
}

impl<'a> Labels<'a> {
    pub fn new(typeface: &'a Typeface, bounds: Rect) -> Self {
        Self { typeface, bounds, placed: Vec::new() }
    }

    /// Finds a place for the label of a box; one that is larger than the image has none.
    pub fn place(&mut self, text: String, frame: Rect, line: u32, color: [u8; 3]) {
        let (glyphs, width) = self.typeface.lay_out(&text);
        let width = width.ceil() as i64 + 2 * self.typeface.margin();
        let height = self.typeface.font.height().ceil() as i64;
        if width > self.bounds.right || height > self.bounds.bottom {
            return;
        }
        // Flush with the outer side of the lines.
        let frame = frame.grown(line / 2).intersection(self.bounds);
        let tops = [
            frame.top - height,
            frame.top,
            frame.bottom,
            frame.bottom - height,
            frame.top + height,
            frame.top - 2 * height,
        ];
        let candidates = tops
            .into_iter()
            .flat_map(|top| [(frame.left, top), (frame.right - width, top)])
            .map(|(left, top)| self.kept_inside(left, top, width, height));
        // The first place that hides least.
        let best = candidates.min_by_key(|area| {
            self.placed.iter().map(|label| label.area.intersection(*area).area()).sum::<i64>()
        });
        if let Some(area) = best {
            self.placed.push(Label { glyphs, area, color });
        }
    }

    /// A label's area, moved into the image.
    fn kept_inside(&self, left: i64, top: i64, width: i64, height: i64) -> Rect {
        let left = left.clamp(0, self.bounds.right - width);
        let top = top.clamp(0, self.bounds.bottom - height);
        Rect { left, top, right: left + width, bottom: top + height }
    }

    /// Where the labels are, in the order in which they came.
    #[cfg(test)]
    pub fn areas(&self) -> Vec<Rect> {
        self.placed.iter().map(|label| label.area).collect()
    }

    /// Draws all labels, the first one on top.
    pub fn draw(self, canvas: &mut Canvas<'_>) {
        let font = &self.typeface.font;
        for Label { glyphs, area, color } in self.placed.into_iter().rev() {
            canvas.fill(area, color, 1.0);
            let ink = text_color(color);
            let origin = point(
                (area.left + self.typeface.margin()) as f32,
                // A whole pixel, or all horizontal strokes blur.
                (area.top as f32 + font.ascent()).round(),
            );
            for mut glyph in glyphs {
                glyph.position += origin;
                let Some(outline) = font.outline_glyph(glyph) else { continue };
                let corner = outline.px_bounds().min;
                outline.draw(|x, y, coverage| {
                    let (x, y) = (corner.x as i64 + i64::from(x), corner.y as i64 + i64::from(y));
                    canvas.blend(x, y, ink, coverage.clamp(0.0, 1.0));
                });
            }
        }
    }
}
