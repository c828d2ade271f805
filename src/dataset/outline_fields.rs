//! Reads outlines from the fields of COCO files.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::fields::Place;
use super::run_lengths;
use super::segmentation::{Oddities, Segmentation};
use crate::error::Result;
use crate::structures::ImageSize;

/// Run lengths have 32 bits, and a run may cover a whole image.
pub(crate) const MAX_PIXELS: u64 = u32::MAX as u64;

impl Segmentation {
    /// Reads the field of an annotation or a result.
    pub(crate) fn parse(place: &Place<'_>, raw: &RawValue) -> Result<(Self, Oddities)> {
        match raw.get().as_bytes().first() {
            Some(b'[') => Self::parse_polygons(place, raw),
            Some(b'{') => Self::parse_rle(place, raw),
            _ => Err(place.wrong(
                "segmentation",
                raw.get(),
                "a list of polygons or an object with `size` and `counts`",
            )),
        }
    }

    fn parse_polygons(place: &Place<'_>, raw: &RawValue) -> Result<(Self, Oddities)> {
        let expected = "a list of polygons, each a list of numbers x, y, x, y, …";
        let mut polygons: Vec<Vec<f64>> = place.value("segmentation", raw, expected)?;
        let before = polygons.len();
        polygons.retain(|polygon| polygon.len() >= 6 && polygon.len().is_multiple_of(2));
        for polygon in &mut polygons {
            polygon.shrink_to_fit();
        }
        polygons.shrink_to_fit();
        let oddities = Oddities {
            short_polygon: polygons.len() < before,
            flat_polygon: !polygons.is_empty() && polygons.iter().all(|polygon| is_flat(polygon)),
            short_rle: false,
        };
        Ok((Self::Polygons(polygons), oddities))
    }

    fn parse_rle(place: &Place<'_>, raw: &RawValue) -> Result<(Self, Oddities)> {
        #[derive(Deserialize)]
        struct Fields<'a> {
            #[serde(borrow)]
            size: Option<&'a RawValue>,
            #[serde(borrow)]
            counts: Option<&'a RawValue>,
        }
        let fields: Fields<'_> = serde_json::from_str(raw.get()).map_err(|_| {
            place.wrong("segmentation", raw.get(), "an object with one `size` and one `counts`")
        })?;
        let size = place.required("segmentation.size", fields.size)?;
        let [height, width]: [u32; 2] =
            place.value("segmentation.size", size, "[height, width] in pixels")?;
        let pixels = u64::from(height) * u64::from(width);
        if pixels > MAX_PIXELS {
            let expected = "a size whose pixels 32 bits can count";
            return Err(place.wrong("segmentation.size", size.get(), expected));
        }
        let size = ImageSize { height: height as usize, width: width as usize };
        let counts = place.required("segmentation.counts", fields.counts)?;
        let (counts, covered) = if counts.get().starts_with('"') {
            let text: String = place.value("segmentation.counts", counts, "text")?;
            let covered = run_lengths::check_compressed(&text, height, width);
            (text, covered)
        } else {
            let runs: Vec<u32> = place.value(
                "segmentation.counts",
                counts,
                "run lengths from 0 on, or their compressed text",
            )?;
            let covered: u64 = runs.iter().map(|&run| u64::from(run)).sum();
            (run_lengths::compress(&runs, height, width), Ok(covered))
        };
        let wrong = |found: &str| {
            place.fault(format!(
                "`segmentation.counts` {found}, but a mask of {height}×{width} (height × width) has {pixels} pixels"
            ))
        };
        match covered {
            Err(reason) => {
                Err(place.fault(format!("`segmentation.counts` is no run-length text: {reason}")))
            }
            Ok(covered) if covered > pixels => Err(wrong(&format!("covers {covered} pixels"))),
            Ok(covered) => Ok((
                Self::Rle { size, counts },
                Oddities { short_rle: covered < pixels, ..Oddities::default() },
            )),
        }
    }
}

/// Twice the enclosed area is zero up to rounding.
fn is_flat(polygon: &[f64]) -> bool {
    let corners = polygon.len() / 2;
    let at = |corner: usize| (polygon[2 * (corner % corners)], polygon[2 * (corner % corners) + 1]);
    // Relative to the first corner, so that far-away coordinates don't drown the area in rounding.
    let (x0, y0) = at(0);
    let doubled: f64 = (0..corners)
        .map(|corner| {
            let ((xa, ya), (xb, yb)) = (at(corner), at(corner + 1));
            (xa - x0) * (yb - y0) - (xb - x0) * (ya - y0)
        })
        .sum();
    doubled.abs() < 1e-9
}
