//! Other colors: brightness, contrast, saturation and hue.

use image::RgbImage;

use super::between;
use crate::train::Random;

/// How far colors may move. Each factor is drawn evenly from `1 − x ..= 1 + x`, not below 0.
///
/// Reference: torchvision `transforms.ColorJitter`, also its random order; here values are rounded once, at the end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ColorJitter {
    /// Of the factor on all values.
    pub brightness: f64,
    /// Of the factor on the distance to the mean grey of the image.
    pub contrast: f64,
    /// Of the factor on the distance to the grey of each pixel.
    pub saturation: f64,
    /// Of the turn of the hue, in turns: `-x ..= x`; at most 0.5.
    pub hue: f64,
}

impl Default for ColorJitter {
    /// Moderate: 0.3 for the factors, a twentieth of a turn.
    fn default() -> Self {
        Self { brightness: 0.3, contrast: 0.3, saturation: 0.3, hue: 0.05 }
    }
}

/// One change of all pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Change {
    Brightness(f32),
    Contrast(f32),
    Saturation(f32),
    Hue(f32),
}

impl ColorJitter {
    pub(super) fn apply(&self, image: &mut RgbImage, random: &mut Random) {
        let mut factor = |x: f64| between(random, (1.0 - x).max(0.0), 1.0 + x) as f32;
        let mut changes = [
            Change::Brightness(factor(self.brightness)),
            Change::Contrast(factor(self.contrast)),
            Change::Saturation(factor(self.saturation)),
            Change::Hue(0.0),
        ];
        changes[3] = Change::Hue(between(random, -self.hue, self.hue) as f32);
        let count = changes.len();
        change(image, random.choose(&mut changes, count));
    }
}

type Pixel = [f32; 3];

/// Applies changes one after the other to values of `0..=1`, cut to that range after each.
pub(super) fn change(image: &mut RgbImage, changes: &[Change]) {
    let mut pixels: Vec<Pixel> =
        image.pixels().map(|pixel| pixel.0.map(|value| f32::from(value) / 255.0)).collect();
    for change in changes {
        match *change {
            Change::Brightness(factor) => blend(&mut pixels, factor, |_| 0.0),
            Change::Contrast(factor) => {
                let sum: f64 = pixels.iter().map(|pixel| f64::from(grey(pixel))).sum();
                let mean = (sum / pixels.len().max(1) as f64) as f32;
                blend(&mut pixels, factor, |_| mean);
            }
            Change::Saturation(factor) => blend(&mut pixels, factor, grey),
            Change::Hue(turn) => pixels.iter_mut().for_each(|pixel| *pixel = turned(*pixel, turn)),
        }
    }
    for (target, pixel) in image.pixels_mut().zip(pixels) {
        target.0 = pixel.map(|value| (value * 255.0).round() as u8);
    }
}

/// Moves each pixel away from, or towards, a grey.
fn blend(pixels: &mut [Pixel], factor: f32, origin: impl Fn(&Pixel) -> f32) {
    for pixel in pixels {
        let origin = origin(pixel);
        *pixel = pixel.map(|value| (origin + factor * (value - origin)).clamp(0.0, 1.0));
    }
}

/// Luma as ITU-R BT.601 weighs it.
fn grey(&[red, green, blue]: &Pixel) -> f32 {
    0.2989 * red + 0.587 * green + 0.114 * blue
}

/// The same lightness and saturation at another angle of the color wheel.
fn turned(pixel: Pixel, turn: f32) -> Pixel {
    let [red, green, blue] = pixel;
    let (high, low) = (red.max(green).max(blue), red.min(green).min(blue));
    let chroma = high - low;
    if chroma == 0.0 {
        return pixel;
    }
    let hue = if high == red {
        (green - blue) / chroma
    } else if high == green {
        2.0 + (blue - red) / chroma
    } else {
        4.0 + (red - green) / chroma
    };
    let hue = (hue + 6.0 * turn).rem_euclid(6.0);
    [5.0, 3.0, 1.0].map(|offset: f32| {
        let place = (offset + hue).rem_euclid(6.0);
        high - chroma * place.min(4.0 - place).clamp(0.0, 1.0)
    })
}
