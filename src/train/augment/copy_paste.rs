//! Objects of another image, pasted in front.

use image::GrayImage;

use super::{LabelledImage, Object};
use crate::train::Random;

/// Pastes a random choice of another image's objects in front of an image's own.
///
/// Reference: Ghiasi et al., "Simple Copy-Paste" (arXiv:2012.07177): both images are jittered separately; objects that
/// are covered lose those pixels, and their boxes shrink; their keypoints there are hidden; those wholly covered are gone. The seam is softened over a
/// pixel or two.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CopyPaste {
    /// How often it happens, `0..=1`.
    pub probability: f64,
}

impl Default for CopyPaste {
    fn default() -> Self {
        Self { probability: 0.5 }
    }
}

impl CopyPaste {
    /// Both images have one size. Where an object of either has no mask, nothing is pasted: what it covers is unknown.
    pub(super) fn apply(
        &self,
        image: &mut LabelledImage,
        from: &LabelledImage,
        random: &mut Random,
    ) {
        let outlined = |image: &LabelledImage| image.objects.iter().all(|o| o.mask.is_some());
        if image.size() != from.size() || !outlined(image) || !outlined(from) {
            return;
        }
        let chosen: Vec<&Object> = from.objects.iter().filter(|_| random.unit() < 0.5).collect();
        let Some(cover) = union(&chosen) else { return };
        image.objects.retain_mut(|object| {
            let Some(mask) = &mut object.mask else { return true };
            if let Some(keypoints) = &mut object.keypoints {
                let covers =
                    |x, y| cover.get_pixel_checked(x, y).is_some_and(|value| value.0[0] > 0);
                keypoints.hide(covers);
            }
            let mut hidden = false;
            for (value, covered) in mask.iter_mut().zip(cover.iter()) {
                hidden |= *value > 0 && *covered > 0;
                *value &= !covered;
            }
            !hidden || object.fit_box()
        });
        image.objects.extend(chosen.into_iter().cloned());
        let alpha = softened(&cover);
        let pasted = from.pixels.pixels();
        for ((target, source), part) in image.pixels.pixels_mut().zip(pasted).zip(alpha) {
            for (value, new) in target.0.iter_mut().zip(source.0) {
                let mixed = f32::from(*value) + part * (f32::from(new) - f32::from(*value));
                *value = mixed.round() as u8;
            }
        }
    }
}

/// All pixels of the objects; `None` where there is none.
fn union(objects: &[&Object]) -> Option<GrayImage> {
    let mut masks = objects.iter().filter_map(|object| object.mask.as_ref());
    let mut union = masks.next()?.clone();
    for mask in masks {
        union.iter_mut().zip(mask.iter()).for_each(|(value, more)| *value |= more);
    }
    Some(union)
}

/// Weights of the three pixels across a seam: a binomial filter, which is nearly Gaussian.
const SEAM: [f32; 3] = [0.25, 0.5, 0.25];

/// The share of each pixel that is pasted, `0..=1`.
fn softened(cover: &GrayImage) -> Vec<f32> {
    let (width, height) = (cover.width() as usize, cover.height() as usize);
    let hard: Vec<f32> = cover.iter().map(|&value| f32::from(value) / 255.0).collect();
    let tap = |plane: &[f32], x: usize, y: usize, dx: i64, dy: i64| {
        let at = |position: usize, delta: i64, end: usize| {
            (position as i64 + delta).clamp(0, end as i64 - 1) as usize
        };
        plane[at(y, dy, height) * width + at(x, dx, width)]
    };
    let pass = |plane: &[f32], dx: i64, dy: i64| -> Vec<f32> {
        let position = |i: usize| (i % width, i / width);
        (0..plane.len())
            .map(|i| {
                let (x, y) = position(i);
                (-1..=1)
                    .zip(SEAM)
                    .map(|(step, weight)| weight * tap(plane, x, y, step * dx, step * dy))
                    .sum()
            })
            .collect()
    };
    pass(&pass(&hard, 1, 0), 0, 1)
}
