//! What a data set must have for a model that learns keypoints.

use crate::dataset::{CocoAnnotation, CocoDataset, CocoKeypoint, Coverage};
use crate::error::{Error, Result};
use crate::structures::{KeypointUse, TargetKeypoint};
use crate::train::augment::{Mirror, ObjectKeypoints};

/// Labelled keypoints that an image needs, of each 17: torchvision's references have 10 for persons.
///
/// Reference: torchvision `references/detection/coco_utils.py`, `min_keypoints_per_image`.
const LEAST: (usize, usize) = (10, 17);

/// Checks that every object has as many keypoints as the model learns, and that it is known how they are mirrored.
pub(super) fn check(dataset: &CocoDataset, count: usize) -> Result<()> {
    let single = |one: &&CocoAnnotation| one.coverage == Coverage::Single;
    for annotation in dataset.all_annotations().iter().filter(single) {
        let problem = match annotation.keypoints.len() {
            0 => "it has no `keypoints`, but the model learns keypoints; use a faster_rcnn model, or label them"
                .to_owned(),
            found if found != count => {
                format!("it has {found} keypoints, but the model learns {count}")
            }
            _ => continue,
        };
        return Err(fault(dataset, annotation, problem));
    }
    for annotation in dataset.all_annotations().iter().filter(single) {
        mirror(dataset, annotation)?;
    }
    Ok(())
}

/// Whether too few keypoints are labelled in an image to learn from it; never where none are learned.
pub(super) fn are_few(dataset: &CocoDataset, image_id: u64, keypoints: KeypointUse) -> bool {
    let KeypointUse::Needed(count) = keypoints else { return false };
    let annotations = dataset.annotations(image_id).iter();
    let points = annotations.flat_map(|annotation| &annotation.keypoints);
    let labelled = points.filter(|point| point.visibility.is_labelled()).count();
    let (least, of) = LEAST;
    labelled < (count * least).div_ceil(of)
}

/// The keypoints of an object that [`check`] has passed.
pub(super) fn of_object(
    dataset: &CocoDataset,
    annotation: &CocoAnnotation,
) -> Result<ObjectKeypoints> {
    let convert = |&CocoKeypoint { x, y, visibility }: &CocoKeypoint| match visibility.is_labelled()
    {
        true => TargetKeypoint { x: x as f32, y: y as f32, visibility },
        false => TargetKeypoint::default(),
    };
    let points = annotation.keypoints.iter().map(convert).collect();
    Ok(ObjectKeypoints { points, mirror: mirror(dataset, annotation)? })
}

fn mirror(dataset: &CocoDataset, annotation: &CocoAnnotation) -> Result<Mirror> {
    let names = dataset.category(annotation.category_id).map(|category| &category.keypoints);
    let mirror = match names {
        Some(names) if !names.is_empty() => Some(Mirror::from_names(names)),
        _ => Mirror::of_count(annotation.keypoints.len()),
    };
    mirror.ok_or_else(|| {
        let problem = format!(
            "category {} has no names of its {} keypoints, which tell left from right in mirrored images; give it `keypoints`, such as [\"nose\", \"left_eye\", \"right_eye\"]",
            annotation.category_id,
            annotation.keypoints.len()
        );
        fault(dataset, annotation, problem)
    })
}

fn fault(dataset: &CocoDataset, annotation: &CocoAnnotation, problem: String) -> Error {
    Error::Dataset {
        path: dataset.path().to_owned(),
        entry: format!("annotation {}", annotation.id),
        problem,
    }
}
