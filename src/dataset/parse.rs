//! One entry of an annotation file: JSON in, a checked struct out.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::fields::{Place, given};
use super::{CocoAnnotation, CocoCategory, CocoImage, Coverage, FindingKind, keypoints};
use crate::dataset::outline_fields::MAX_PIXELS;
use crate::dataset::segmentation::{Oddities, Segmentation};
use crate::error::Result;
use crate::structures::ImageSize;

/// An annotation as far as it can be read without its image.
pub(super) struct ParsedAnnotation {
    pub annotation: CocoAnnotation,
    /// The file has no `area`; the one in `annotation` means nothing yet.
    pub area_missing: bool,
    /// What is odd about it.
    pub oddities: Vec<FindingKind>,
}

/// `expected object`: the only way an entry's text can fail here, since it is JSON already.
fn not_an_object(place: &Place<'_>, text: &str) -> crate::error::Error {
    let problem = if text.starts_with('{') { "has a field twice" } else { "is not an object" };
    place.fault(problem)
}

pub(super) fn image(mut place: Place<'_>, text: &str) -> Result<CocoImage> {
    #[derive(Deserialize)]
    struct Fields<'a> {
        #[serde(borrow)]
        id: Option<&'a RawValue>,
        #[serde(borrow)]
        file_name: Option<&'a RawValue>,
        #[serde(borrow)]
        height: Option<&'a RawValue>,
        #[serde(borrow)]
        width: Option<&'a RawValue>,
    }
    let fields: Fields<'_> = serde_json::from_str(text).map_err(|_| not_an_object(&place, text))?;
    let id = place.required_whole("id", fields.id)?;
    place.id = Some(id);
    let file_name = match given(fields.file_name) {
        Some(raw) => place.value("file_name", raw, "a file's name")?,
        None => String::new(),
    };
    let size = match (given(fields.height), given(fields.width)) {
        (None, None) => None,
        (height, width) => {
            let side = |field, raw: Option<&RawValue>| {
                let raw = place.required(field, raw)?;
                match place.whole(field, raw)? {
                    side @ 1..=MAX_PIXELS => Ok(side),
                    _ => Err(place.wrong(
                        field,
                        raw.get(),
                        "pixels, at least 1, that 32 bits can count",
                    )),
                }
            };
            let (height, width) = (side("height", height)?, side("width", width)?);
            if height * width > MAX_PIXELS {
                return Err(place.fault(format!(
                    "it has {height}×{width} (height × width) pixels, more than 32 bits can count"
                )));
            }
            Some(ImageSize { height: height as usize, width: width as usize })
        }
    };
    Ok(CocoImage { id, file_name, size })
}

pub(super) fn category(mut place: Place<'_>, text: &str) -> Result<CocoCategory> {
    #[derive(Deserialize)]
    struct Fields<'a> {
        #[serde(borrow)]
        id: Option<&'a RawValue>,
        #[serde(borrow)]
        name: Option<&'a RawValue>,
        #[serde(borrow)]
        keypoints: Option<&'a RawValue>,
        #[serde(borrow)]
        skeleton: Option<&'a RawValue>,
    }
    let fields: Fields<'_> = serde_json::from_str(text).map_err(|_| not_an_object(&place, text))?;
    let id = place.required_whole("id", fields.id)?;
    place.id = Some(id);
    let name = match given(fields.name) {
        Some(raw) => place.value("name", raw, "text")?,
        None => String::new(),
    };
    let name = if name.is_empty() { format!("category {id}") } else { name };
    let keypoints: Vec<String> = match given(fields.keypoints) {
        Some(raw) => place.value("keypoints", raw, "a list of names")?,
        None => Vec::new(),
    };
    let skeleton = keypoints::skeleton(&place, fields.skeleton, keypoints.len())?;
    Ok(CocoCategory { id, name, keypoints, skeleton })
}

pub(super) fn annotation(mut place: Place<'_>, text: &str) -> Result<ParsedAnnotation> {
    #[derive(Deserialize)]
    struct Fields<'a> {
        #[serde(borrow)]
        id: Option<&'a RawValue>,
        #[serde(borrow)]
        image_id: Option<&'a RawValue>,
        #[serde(borrow)]
        category_id: Option<&'a RawValue>,
        #[serde(borrow)]
        bbox: Option<&'a RawValue>,
        #[serde(borrow)]
        area: Option<&'a RawValue>,
        #[serde(borrow)]
        iscrowd: Option<&'a RawValue>,
        #[serde(borrow)]
        segmentation: Option<&'a RawValue>,
        #[serde(borrow)]
        keypoints: Option<&'a RawValue>,
        #[serde(borrow)]
        num_keypoints: Option<&'a RawValue>,
    }
    let fields: Fields<'_> = serde_json::from_str(text).map_err(|_| not_an_object(&place, text))?;
    let id = place.required_whole("id", fields.id)?;
    place.id = Some(id);
    let image_id = place.required_whole("image_id", fields.image_id)?;
    let category_id = place.required_whole("category_id", fields.category_id)?;
    let coverage = match place.flag("iscrowd", fields.iscrowd)? {
        true => Coverage::Crowd,
        false => Coverage::Single,
    };
    let (segmentation, outline) = match given(fields.segmentation) {
        Some(raw) => Segmentation::parse(&place, raw)?,
        None => (Segmentation::Absent, Oddities::default()),
    };
    let mut oddities = Vec::new();
    let no_polygon =
        matches!(&segmentation, Segmentation::Polygons(polygons) if polygons.is_empty());
    for (found, kind) in [
        (outline.short_polygon, FindingKind::ShortPolygon),
        (outline.flat_polygon, FindingKind::FlatPolygon),
        (no_polygon && !outline.short_polygon, FindingKind::NoPolygon),
        (outline.short_rle, FindingKind::ShortRle),
    ] {
        if found {
            oddities.push(kind);
        }
    }
    let bbox = match (given(fields.bbox), segmentation.extent()) {
        (Some(raw), _) => place.value("bbox", raw, "four numbers x, y, width, height")?,
        (None, Some(extent)) => {
            oddities.push(FindingKind::MissingBox);
            extent
        }
        (None, None) => {
            return Err(place.fault("`bbox` is missing, and no outline stands in for it"));
        }
    };
    let [_, _, width, height] = bbox;
    if width < 0.0 || height < 0.0 {
        let found = format!("{bbox:?}");
        return Err(place.wrong("bbox", &found, "x, y, width, height with no negative size"));
    }
    if width == 0.0 || height == 0.0 {
        oddities.push(FindingKind::EmptyBox);
    }
    let area: Option<f64> = match given(fields.area) {
        Some(raw) => {
            let expected = "a number of square pixels from 0 on";
            let area = place.value("area", raw, expected)?;
            if area < 0.0 {
                return Err(place.wrong("area", raw.get(), expected));
            }
            Some(area)
        }
        None => {
            oddities.push(FindingKind::MissingArea);
            None
        }
    };
    let keypoints = keypoints::parse(&place, fields.keypoints)?;
    let labelled = keypoints.iter().filter(|point| point.visibility.is_labelled()).count();
    let num_keypoints = match given(fields.num_keypoints) {
        Some(raw) => place.whole("num_keypoints", raw)? as usize,
        None => labelled,
    };
    if !keypoints.is_empty() && num_keypoints != labelled {
        oddities.push(FindingKind::KeypointCount);
    }
    let annotation = CocoAnnotation {
        id,
        image_id,
        category_id,
        bbox,
        area: area.unwrap_or_default(),
        coverage,
        segmentation,
        keypoints,
        num_keypoints,
    };
    Ok(ParsedAnnotation { annotation, area_missing: area.is_none(), oddities })
}
