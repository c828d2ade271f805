//! Keypoints of annotations and of categories, as COCO files have them.

use serde_json::value::RawValue;

use super::fields::{Place, given};
use super::{CocoAnnotation, CocoCategory};
use crate::error::Result;
use crate::structures::Visibility;

/// A keypoint of an annotated object.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CocoKeypoint {
    /// Column in pixels.
    pub x: f64,
    /// Row in pixels.
    pub y: f64,
    /// Whether it is labelled, and to be seen.
    pub visibility: Visibility,
}

/// Numbers in threes, as results and annotations have them: `x, y, v, x, y, v, …`.
pub(crate) fn triples(place: &Place<'_>, raw: &RawValue) -> Result<Vec<[f64; 3]>> {
    let expected = "a list of finite numbers x, y, v, x, y, v, …";
    let numbers: Vec<f64> = place.value("keypoints", raw, expected)?;
    match numbers.as_chunks::<3>() {
        (triples, []) => Ok(triples.to_vec()),
        _ => Err(place.fault(format!(
            "`keypoints` has {} numbers, expected three for each keypoint",
            numbers.len()
        ))),
    }
}

/// The keypoints of an annotation; an empty list counts as none.
pub(super) fn parse(place: &Place<'_>, raw: Option<&RawValue>) -> Result<Vec<CocoKeypoint>> {
    let Some(raw) = given(raw) else { return Ok(Vec::new()) };
    let convert = |(index, [x, y, v]): (usize, [f64; 3])| match Visibility::from_number(v) {
        Some(visibility) => Ok(CocoKeypoint { x, y, visibility }),
        None => Err(place.wrong(
            &format!("keypoints[{}]", 3 * index + 2),
            &v.to_string(),
            "a visibility: 0 (not labelled), 1 (hidden) or 2 (visible)",
        )),
    };
    triples(place, raw)?.into_iter().enumerate().map(convert).collect()
}

/// Limbs of a category, which the file counts from 1.
pub(super) fn skeleton(
    place: &Place<'_>,
    raw: Option<&RawValue>,
    keypoints: usize,
) -> Result<Vec<[usize; 2]>> {
    let Some(raw) = given(raw) else { return Ok(Vec::new()) };
    let limbs: Vec<[usize; 2]> = place.value("skeleton", raw, "a list of pairs of keypoints")?;
    let exists = |end: &usize| (1..=keypoints).contains(end);
    match limbs.iter().find(|limb| !limb.iter().all(exists)) {
        Some([a, b]) => Err(place.fault(format!(
            "`skeleton` has the limb [{a}, {b}], expected numbers from 1 to {keypoints}, the category's keypoints"
        ))),
        None => Ok(limbs.into_iter().map(|limb| limb.map(|end| end - 1)).collect()),
    }
}

/// Checks that an annotation has as many keypoints as its category.
pub(super) fn check_count(
    place: &Place<'_>,
    annotation: &CocoAnnotation,
    category: &CocoCategory,
) -> Result<()> {
    let (found, named) = (annotation.keypoints.len(), category.keypoints.len());
    if found == 0 || named == 0 || found == named {
        return Ok(());
    }
    Err(place.fault(format!(
        "`keypoints` has {found} keypoints, but category {} (`{}`) has {named}",
        category.id, category.name
    )))
}
