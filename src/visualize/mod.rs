//! Draws detections onto an image: translucent masks with an outline, boxes, skeletons, and labels with class and score.

mod canvas;
mod color;
mod label;
mod skeleton;

use image::RgbImage;

use crate::config::Categories;
use crate::structures::{Detections, Instance, MaskRegion};
use canvas::{Canvas, Rect};
use label::{Labels, Typeface};

pub use color::class_color;

/// How detections are drawn.
///
/// ```
/// # use candle_detection::visualize::Style;
/// let style = Style { min_score: 0.7, ..Style::default() };
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Style {
    /// Only objects with a score strictly above this are drawn. Default: 0, all of them.
    pub min_score: f32,
    /// Mask pixels strictly above this probability are drawn. Default: 0.5.
    pub mask_threshold: f32,
    /// How much a mask hides of the image, `0..=1`; 0 leaves its outline only. Default: 0.45.
    pub mask_opacity: f32,
    /// Only keypoints with a score strictly above this are drawn. Default: 0, as scores are logits.
    pub keypoint_threshold: f32,
    /// Limbs to draw: pairs of keypoints by position, from 0 on. Default: COCO's for 17 keypoints, none for others.
    pub skeleton: Option<Vec<[usize; 2]>>,
    /// Width of box lines and limbs in pixels. Default: from the size of the image.
    pub line_width: Option<u32>,
    /// Height of a line of text in pixels. Default: from the size of the image.
    pub font_size: Option<f32>,
}

impl Default for Style {
    fn default() -> Self {
        Self {
            min_score: 0.0,
            mask_threshold: 0.5,
            mask_opacity: 0.45,
            keypoint_threshold: 0.0,
            skeleton: None,
            line_width: None,
            font_size: None,
        }
    }
}

/// Sizes that suit an image of 640 × 480, whose sides have a geometric mean of about 554 pixels.
const REFERENCE_SIDE: f32 = 554.0;
const REFERENCE_LINE: f32 = 2.0;
const REFERENCE_FONT: f32 = 16.0;
/// Smaller text can't be read.
const SMALLEST_FONT: f32 = 9.0;

/// Draws detections onto the image that they were found in.
///
/// A class has the same color in every image ([`class_color`]); categories without a name are shown by their id. Better
/// detections are drawn over worse ones, labels over everything; a label goes where it lies within the image and hides
/// no other label, if there is such a place. On images too small for text there are no labels. What lies outside
/// the image is left out.
pub fn draw(image: &mut RgbImage, detections: &Detections, categories: &Categories, style: &Style) {
    let (width, height) = (image.width() as f32, image.height() as f32);
    let scale = (width * height).sqrt() / REFERENCE_SIDE;
    let line = style.line_width.unwrap_or((REFERENCE_LINE * scale).round() as u32).max(1);
    let font_size = style.font_size.unwrap_or((REFERENCE_FONT * scale).max(SMALLEST_FONT));

    let mut canvas = Canvas::new(image);
    // From the best to the worst, as detections are ordered.
    let shown: Vec<&Instance> = detections.above(style.min_score).collect();
    for instance in shown.iter().rev() {
        if let Some(mask) = &instance.mask {
            draw_mask(&mut canvas, &mask.region(), class_color(instance.label), line, style);
        }
    }
    for instance in shown.iter().rev() {
        if let Some(frame) = Rect::from_box(instance.bbox) {
            draw_frame(&mut canvas, frame, line, class_color(instance.label));
        }
    }
    for instance in shown.iter().rev() {
        if let Some(keypoints) = &instance.keypoints {
            skeleton::draw(&mut canvas, keypoints, class_color(instance.label), line, style);
        }
    }
    let Some(typeface) = Typeface::new(font_size) else { return };
    let mut labels = Labels::new(&typeface, canvas.bounds());
    for instance in &shown {
        let Some(frame) = Rect::from_box(instance.bbox) else { continue };
        if frame.grown(line).intersection(canvas.bounds()).is_empty() {
            continue;
        }
        let name = match categories.name(instance.label) {
            Some(name) => name.to_owned(),
            None => format!("class {}", instance.label),
        };
        let text = format!("{name} {:.2}", instance.score);
        labels.place(text, frame, line, class_color(instance.label));
    }
    labels.draw(&mut canvas);
}

/// The lines of a box, centred on its edges.
fn draw_frame(canvas: &mut Canvas<'_>, frame: Rect, line: u32, color: [u8; 3]) {
    let line = i64::from(line);
    let outer = frame.grown(line as u32 / 2);
    let Rect { left, top, right, bottom } = outer;
    // A box thinner than its lines is one bar, not two.
    let (inner_top, inner_bottom) = ((top + line).min(bottom), (bottom - line).max(top + line));
    canvas.fill(Rect { bottom: inner_top, ..outer }, color, 1.0);
    canvas.fill(Rect { top: inner_bottom.min(bottom), ..outer }, color, 1.0);
    let sides = Rect { top: inner_top, bottom: inner_bottom.min(bottom), left, right };
    canvas.fill(Rect { right: (left + line).min(right), ..sides }, color, 1.0);
    canvas.fill(Rect { left: (right - line).max((left + line).min(right)), ..sides }, color, 1.0);
}

/// What a pixel of a region is to a drawing.
const OUTSIDE: u8 = 0;
const EDGE: u8 = 1;
const INSIDE: u8 = 2;

/// A translucent area, with an outline along its inner side.
fn draw_mask(
    canvas: &mut Canvas<'_>,
    region: &MaskRegion,
    color: [u8; 3],
    line: u32,
    style: &Style,
) {
    let kinds = classify(region, style.mask_threshold, line);
    let opacity =
        if style.mask_opacity.is_nan() { 0.0 } else { style.mask_opacity.clamp(0.0, 1.0) };
    for (index, kind) in kinds.into_iter().enumerate() {
        let (x, y) = (region.x + index % region.width, region.y + index / region.width);
        match kind {
            INSIDE => canvas.blend(x as i64, y as i64, color, opacity),
            EDGE => canvas.blend(x as i64, y as i64, color, opacity.max(0.9)),
            _ => {}
        }
    }
}

/// Tells pixels within `line` pixels of the border from those further inside.
fn classify(region: &MaskRegion, threshold: f32, line: u32) -> Vec<u8> {
    let inside = |&p: &f32| if p > threshold { INSIDE } else { OUTSIDE };
    let mut kinds: Vec<u8> = region.probabilities.iter().map(inside).collect();
    // A region's end is the image's or has nothing inside; an outline along the image's end would mislead.
    let outside = |at: usize| kinds[at] == OUTSIDE;
    let mut border: Vec<usize> = (0..kinds.len())
        .filter(|&at| !outside(at) && neighbors(region, at, &BESIDE).any(outside))
        .collect();
    for round in 1..=line {
        for &at in &border {
            kinds[at] = EDGE;
        }
        if round == line || border.is_empty() {
            break;
        }
        // Four and eight neighbours in turn grow an octagon, close to a circle.
        let steps: &[(isize, isize)] = if round % 2 == 1 { &AROUND } else { &BESIDE };
        let mut next = Vec::new();
        for &at in &border {
            for neighbor in neighbors(region, at, steps) {
                if kinds[neighbor] == INSIDE {
                    kinds[neighbor] = EDGE;
                    next.push(neighbor);
                }
            }
        }
        border = next;
    }
    kinds
}

const BESIDE: [(isize, isize); 4] = [(-1, 0), (1, 0), (0, -1), (0, 1)];
const AROUND: [(isize, isize); 8] =
    [(-1, 0), (1, 0), (0, -1), (0, 1), (-1, -1), (1, -1), (-1, 1), (1, 1)];

/// Indices of a pixel's neighbours within the region.
fn neighbors(
    region: &MaskRegion,
    at: usize,
    steps: &[(isize, isize)],
) -> impl Iterator<Item = usize> {
    let (width, height) = (region.width, region.height);
    let (x, y) = (at % width, at / width);
    steps.iter().filter_map(move |&(dx, dy)| {
        let x = x.checked_add_signed(dx).filter(|&x| x < width)?;
        let y = y.checked_add_signed(dy).filter(|&y| y < height)?;
        Some(y * width + x)
    })
}

#[cfg(test)]
mod tests;
