//! Pixels in the making: red, green, blue of `0..=1`.

use image::RgbImage;

use super::random::Random;

pub type Pixel = [f32; 3];

#[derive(Clone, Copy)]
pub struct Color(pub Pixel);

impl Color {
    /// Any hue, saturated up to a limit, neither black nor white.
    pub fn random(random: &mut Random, saturation: f32) -> Self {
        let (hue, saturation) = (random.between(0.0, 6.0), random.between(0.1, saturation));
        Self::from_hsv(hue, saturation, random.between(0.2, 0.98))
    }

    /// `hue` in `0..6`.
    fn from_hsv(hue: f32, saturation: f32, value: f32) -> Self {
        let channel = |offset: f32| {
            let k = (offset + hue).rem_euclid(6.0);
            value * (1.0 - saturation * k.min(4.0 - k).clamp(0.0, 1.0))
        };
        Self([channel(5.0), channel(3.0), channel(1.0)])
    }

    /// A color near by.
    pub fn shifted(self, random: &mut Random, by: f32) -> Self {
        let all = random.between(-by, by);
        Self(self.0.map(|value| (value + all + random.between(-by, by) * 0.4).clamp(0.03, 1.0)))
    }

    pub fn scaled(self, by: f32) -> Self {
        Self(self.0.map(|value| (value * by).min(1.0)))
    }

    /// How different two colors look, roughly: 0 for the same, about 1 for black and white.
    pub fn distance(self, other: Pixel) -> f32 {
        let weights = [0.35, 0.45, 0.2];
        (0..3).map(|c| weights[c] * (self.0[c] - other[c]).powi(2)).sum::<f32>().sqrt()
    }
}

pub fn mix(from: Pixel, to: Pixel, part: f32) -> Pixel {
    [0, 1, 2].map(|channel| from[channel] * (1.0 - part) + to[channel] * part)
}

pub struct Canvas {
    pub width: usize,
    pub height: usize,
    pixels: Vec<Pixel>,
}

impl Canvas {
    pub fn new(width: usize, height: usize) -> Self {
        Self { width, height, pixels: vec![[0.0; 3]; width * height] }
    }

    /// Visits every pixel with the position of its centre.
    pub fn each(&mut self, mut visit: impl FnMut(f32, f32, &mut Pixel)) {
        for (row, pixels) in self.pixels.chunks_exact_mut(self.width).enumerate() {
            for (column, pixel) in pixels.iter_mut().enumerate() {
                visit(column as f32 + 0.5, row as f32 + 0.5, pixel);
            }
        }
    }

    /// Lays a color over the part that is covered; it may depend on the position and on what is there.
    pub fn blend(
        &mut self,
        coverage: &[f32],
        opacity: f32,
        color: impl Fn(f32, f32, Pixel) -> Pixel,
    ) {
        let mut shares = coverage.iter();
        self.each(|x, y, pixel| {
            let share = shares.next().copied().unwrap_or(0.0) * opacity;
            if share > 0.0 {
                *pixel = mix(*pixel, color(x, y, *pixel), share);
            }
        });
    }

    /// Mean color of the part that is covered.
    pub fn mean(&self, coverage: &[f32]) -> Pixel {
        let (mut sum, mut weight) = ([0.0; 3], 1e-6);
        for (pixel, &share) in self.pixels.iter().zip(coverage).filter(|(_, share)| **share > 0.0) {
            weight += share;
            (0..3).for_each(|channel| sum[channel] += share * pixel[channel]);
        }
        sum.map(|value: f32| value / weight)
    }

    /// Gaussian blur; `sigma` in pixels.
    pub fn blur(&mut self, sigma: f32) {
        let planes = [0, 1, 2].map(|channel| {
            let plane: Vec<f32> = self.pixels.iter().map(|pixel| pixel[channel]).collect();
            blurred(&plane, self.width, sigma)
        });
        for (i, pixel) in self.pixels.iter_mut().enumerate() {
            *pixel = [planes[0][i], planes[1][i], planes[2][i]];
        }
    }

    pub fn to_image(&self) -> RgbImage {
        let mut image = RgbImage::new(self.width as u32, self.height as u32);
        for (target, pixel) in image.pixels_mut().zip(&self.pixels) {
            // `as` cuts to 0..=255.
            target.0 = pixel.map(|value| (value * 255.0).round() as u8);
        }
        image
    }
}

/// Gaussian blur of a plane, edges continued; `sigma` in pixels.
pub fn blurred(plane: &[f32], width: usize, sigma: f32) -> Vec<f32> {
    let radius = (3.0 * sigma).ceil().max(1.0) as i64;
    let weight = |offset: i64| (-0.5 * (offset as f32 / sigma).powi(2)).exp();
    let sum: f32 = (-radius..=radius).map(weight).sum();
    let height = plane.len() / width;
    let pass = |source: &[f32], dx: i64, dy: i64| -> Vec<f32> {
        let at = |x: i64, y: i64| {
            let (x, y) = (x.clamp(0, width as i64 - 1), y.clamp(0, height as i64 - 1));
            source[y as usize * width + x as usize]
        };
        (0..source.len() as i64)
            .map(|i| {
                let (x, y) = (i % width as i64, i / width as i64);
                let tap = |offset| weight(offset) * at(x + offset * dx, y + offset * dy);
                (-radius..=radius).map(tap).sum::<f32>() / sum
            })
            .collect()
    };
    pass(&pass(plane, 1, 0), 0, 1)
}
