//! Outlines and run lengths, computed by the crate hotcoco exactly as pycocotools does.

use hotcoco::mask::{self, RleRef};

use super::segmentation::Segmentation;
use crate::structures::{ImageSize, Rle};

impl Segmentation {
    /// The mask's run lengths. `image` is the canvas for polygons.
    ///
    /// Polygons become pixels exactly as in pycocotools: five-fold oversampling, the union of all parts, whatever lies
    /// outside the image cut off. An absent segmentation is an empty mask.
    pub fn to_rle(&self, image: ImageSize) -> Rle {
        rasterize(self, image)
    }

    /// The smallest upright box around the outline, `x, y, width, height`.
    pub(crate) fn extent(&self) -> Option<[f64; 4]> {
        match self {
            Self::Absent => None,
            Self::Rle { size, counts } => Some(extent(counts, *size)),
            Self::Polygons(polygons) => {
                let (mut low, mut high) = ([f64::INFINITY; 2], [f64::NEG_INFINITY; 2]);
                for corner in polygons.iter().flat_map(|polygon| polygon.chunks_exact(2)) {
                    for axis in 0..2 {
                        low[axis] = low[axis].min(corner[axis]);
                        high[axis] = high[axis].max(corner[axis]);
                    }
                }
                let any = !polygons.is_empty();
                any.then(|| [low[0], low[1], high[0] - low[0], high[1] - low[1]])
            }
        }
    }
}

/// The pixels of a segmentation as run lengths.
pub(super) fn rasterize(segmentation: &Segmentation, image: ImageSize) -> Rle {
    let drawn = foreign(segmentation)
        .and_then(|foreign| foreign.to_rle(image.height as u32, image.width as u32).ok());
    let size = match segmentation {
        Segmentation::Rle { size, .. } => *size,
        _ => image,
    };
    let pixels = (size.height * size.width) as u64;
    let mut counts = drawn.map(|rle| rle.counts).unwrap_or_default();
    let covered: u64 = counts.iter().map(|&run| u64::from(run)).sum();
    let rest = (pixels - covered) as u32;
    match (rest, counts.len() % 2) {
        (0, _) if !counts.is_empty() => {}
        // An odd number of runs ends in zeros.
        (_, 1) => *counts.last_mut().unwrap_or(&mut 0) += rest,
        (_, _) => counts.push(rest),
    }
    Rle { size, counts }
}

/// Pixels inside a segmentation.
pub(super) fn area(segmentation: &Segmentation, image: ImageSize) -> u64 {
    match segmentation {
        Segmentation::Rle { size, counts } => {
            mask::area_from_string(counts, size.height as u32, size.width as u32).unwrap_or(0)
        }
        _ => rasterize(segmentation, image)
            .counts
            .iter()
            .skip(1)
            .step_by(2)
            .map(|&run| u64::from(run))
            .sum(),
    }
}

/// Box around a compressed mask, `x, y, width, height`.
pub(super) fn extent(counts: &str, size: ImageSize) -> [f64; 4] {
    mask::area_and_bbox_from_string(counts, size.height as u32, size.width as u32)
        .map(|(_, bbox)| bbox)
        .unwrap_or_default()
}

/// COCO's compressed spelling of run lengths.
pub(super) fn compress(runs: &[u32], height: u32, width: u32) -> String {
    mask::rle_to_string(&hotcoco::Rle { h: height, w: width, counts: runs.to_vec() })
}

/// How many pixels a compressed mask covers, or why the text is none.
pub(super) fn check_compressed(counts: &str, height: u32, width: u32) -> Result<u64, String> {
    // Six bits a character, from '0' on; bit 5 says that the number goes on.
    if let Some(position) = counts.bytes().position(|byte| !(48..112).contains(&byte)) {
        return Err(format!("byte {position} is not one of the characters from `0` to `o`"));
    }
    if counts.bytes().last().is_some_and(|byte| (byte - 48) & 0x20 != 0) {
        return Err("it ends in the middle of a number".to_owned());
    }
    let rle = RleRef::Compressed { counts, h: height, w: width };
    match rle.to_rle() {
        Ok(rle) => Ok(rle.counts.iter().map(|&run| u64::from(run)).sum()),
        Err(error) => Err(error.to_string().trim_start_matches("invalid RLE: ").to_owned()),
    }
}

/// An outline as hotcoco has it.
pub(crate) fn foreign(segmentation: &Segmentation) -> Option<hotcoco::Segmentation> {
    match segmentation {
        Segmentation::Absent => None,
        Segmentation::Polygons(polygons) => Some(hotcoco::Segmentation::Polygon(polygons.clone())),
        Segmentation::Rle { size, counts } => Some(hotcoco::Segmentation::CompressedRle {
            size: [size.height as u32, size.width as u32],
            counts: counts.clone(),
        }),
    }
}
