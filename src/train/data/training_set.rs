//! Which images and objects of a data set a model learns from.

use std::fmt;

use rayon::prelude::*;

use super::keypoints;
use crate::dataset::{CocoAnnotation, CocoDataset, CocoSample, Coverage, Segmentation};
use crate::error::{Error, Result};
use crate::structures::{BoxXyxy, ImageSize, KeypointUse, MaskUse, TargetNeeds};
use crate::train::augment::{LabelledImage, Object, extent};

/// What happens to images without an object to learn from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Unlabelled {
    /// They are left out, as torchvision's references do.
    #[default]
    Skip,
    /// They are shown: a model learns from them where nothing is.
    Keep,
}

/// Ids of annotations that nothing can be learned from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Crowds: several objects in one outline.
    pub crowds: Vec<u64>,
    /// Boxes without width or height inside the image.
    pub empty_boxes: Vec<u64>,
    /// Outlines without a pixel, where masks are learned.
    pub empty_masks: Vec<u64>,
    /// Ids of images left out, see [`Unlabelled`].
    pub images: Vec<u64>,
    /// Ids of images left out because too few keypoints are labelled in them, where keypoints are learned.
    pub few_keypoints: Vec<u64>,
}

/// A data set, cut down to what a model can learn from.
#[derive(Debug, Clone)]
pub struct TrainingSet {
    dataset: CocoDataset,
    needs: TargetNeeds,
    /// Ids of images to show, ascending.
    images: Vec<u64>,
    left_out: LeftOut,
}

impl TrainingSet {
    /// Checks that a model of `num_classes` classes, the background included, can learn from a data set, and notes what
    /// is left out. Labels are the data set's category ids.
    ///
    /// # Errors
    /// [`Error::Dataset`], naming the entry: a category id that is 0 or not below `num_classes`, a file that is missing,
    /// an object without an outline where masks are needed, or without the model's keypoints where those are, nothing left
    /// to learn from.
    pub fn new(
        dataset: CocoDataset,
        num_classes: usize,
        needs: TargetNeeds,
        unlabelled: Unlabelled,
    ) -> Result<Self> {
        check_categories(&dataset, num_classes)?;
        dataset.check_files()?;
        if needs.masks == MaskUse::Needed {
            check_outlines(&dataset)?;
        }
        if let KeypointUse::Needed(count) = needs.keypoints {
            keypoints::check(&dataset, count)?;
        }
        let mut left_out = LeftOut::default();
        let mut images = Vec::new();
        let judged: Vec<Vec<Usable>> = dataset
            .images()
            .par_iter()
            .map(|image| {
                let annotations = dataset.annotations(image.id).iter();
                annotations.map(|annotation| judge(annotation, image.size, needs.masks)).collect()
            })
            .collect();
        for (image, judged) in dataset.images().iter().zip(judged) {
            let mut usable = 0;
            for (annotation, verdict) in dataset.annotations(image.id).iter().zip(judged) {
                match verdict {
                    Usable::Yes => usable += 1,
                    Usable::Crowd => left_out.crowds.push(annotation.id),
                    Usable::EmptyBox => left_out.empty_boxes.push(annotation.id),
                    Usable::EmptyMask => left_out.empty_masks.push(annotation.id),
                }
            }
            match (usable, unlabelled) {
                (0, Unlabelled::Skip) => left_out.images.push(image.id),
                (_, Unlabelled::Skip)
                    if keypoints::are_few(&dataset, image.id, needs.keypoints) =>
                {
                    left_out.few_keypoints.push(image.id);
                }
                _ => images.push(image.id),
            }
        }
        if images.is_empty() {
            return Err(Error::Dataset {
                path: dataset.path().to_owned(),
                entry: "annotations".to_owned(),
                problem: format!(
                    "none of the {} images has an object to learn from",
                    dataset.images().len()
                ),
            });
        }
        Ok(Self { dataset, needs, images, left_out })
    }

    /// Ids of the images to show, ascending; at least one.
    pub fn images(&self) -> &[u64] {
        &self.images
    }

    /// The whole data set.
    pub fn dataset(&self) -> &CocoDataset {
        &self.dataset
    }

    /// What nothing can be learned from.
    pub fn left_out(&self) -> &LeftOut {
        &self.left_out
    }

    /// Decodes an image of [`Self::images`] with its objects. Boxes are clipped to the image, and drawn from the mask
    /// nowhere: the file's count.
    ///
    /// # Errors
    /// [`Error::TrainingImage`], naming the image.
    pub fn load(&self, image_id: u64) -> Result<LabelledImage> {
        self.decode(image_id)
            .map_err(|source| Error::TrainingImage { image_id, source: Box::new(source) })
    }

    fn decode(&self, image_id: u64) -> Result<LabelledImage> {
        let unknown = || Error::Dataset {
            path: self.dataset.path().to_owned(),
            entry: "images".to_owned(),
            problem: "there is no such id".to_owned(),
        };
        let image = self.dataset.image(image_id).ok_or_else(unknown)?;
        let sample = CocoSample::new(&self.dataset, image);
        let pixels = sample.image()?.to_rgb8()?;
        let mut labelled = LabelledImage { image_id, pixels, objects: Vec::new() };
        let size = labelled.size();
        for annotation in sample.annotations {
            if judge_box(annotation, Some(size)) == Usable::Yes {
                labelled.objects.extend(self.object(annotation, size)?);
            }
        }
        Ok(labelled)
    }

    /// `None` where the outline has no pixel.
    fn object(&self, annotation: &CocoAnnotation, size: ImageSize) -> Result<Option<Object>> {
        let mask = match self.needs.masks {
            MaskUse::Ignored => None,
            MaskUse::Needed => {
                let rle = annotation.segmentation.to_rle(size);
                if rle.size != size {
                    return Err(Error::Dataset {
                        path: self.dataset.path().to_owned(),
                        entry: format!("annotation {}", annotation.id),
                        problem: format!("its mask is {}, but the image is {size}", rle.size),
                    });
                }
                let mask = rle.to_bitmap()?;
                if extent(&mask).is_none() {
                    return Ok(None);
                }
                Some(mask)
            }
        };
        // `check_categories` has seen every category.
        let label = annotation.category_id as u32;
        let keypoints = match self.needs.keypoints {
            KeypointUse::Ignored => None,
            KeypointUse::Needed(_) => Some(keypoints::of_object(&self.dataset, annotation)?),
        };
        Ok(Some(Object { label, bbox: clipped(annotation.bbox, size), mask, keypoints }))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Usable {
    Yes,
    Crowd,
    EmptyBox,
    EmptyMask,
}

fn judge(annotation: &CocoAnnotation, size: Option<ImageSize>, masks: MaskUse) -> Usable {
    match judge_box(annotation, size) {
        Usable::Yes if masks == MaskUse::Needed && is_empty(annotation, size) => Usable::EmptyMask,
        verdict => verdict,
    }
}

fn judge_box(annotation: &CocoAnnotation, size: Option<ImageSize>) -> Usable {
    if annotation.coverage == Coverage::Crowd {
        return Usable::Crowd;
    }
    // Sides, not the area that the file claims: sets without masks often have 0 there.
    let unbounded = ImageSize { height: usize::MAX, width: usize::MAX };
    let bbox = clipped(annotation.bbox, size.unwrap_or(unbounded));
    match bbox.x2 > bbox.x1 && bbox.y2 > bbox.y1 {
        true => Usable::Yes,
        false => Usable::EmptyBox,
    }
}

/// Side of a box, in pixels, from which on its outline is taken to have a pixel without a look.
const LARGE: f64 = 8.0;

fn is_empty(annotation: &CocoAnnotation, size: Option<ImageSize>) -> bool {
    let [_, _, width, height] = annotation.bbox;
    match &annotation.segmentation {
        Segmentation::Absent => true,
        Segmentation::Polygons(_) if annotation.area > 1.0 && width.min(height) > LARGE => false,
        // Where the size is not known, a canvas that reaches past the box does.
        outline => {
            let reach = |start: f64, side: f64| (start + side + 2.0).clamp(1.0, 65536.0) as usize;
            let [x, y, ..] = annotation.bbox;
            let canvas = ImageSize { height: reach(y, height), width: reach(x, width) };
            outline.to_rle(size.unwrap_or(canvas)).area() == 0
        }
    }
}

/// To `x1, y1, x2, y2` inside the image.
fn clipped([x, y, width, height]: [f64; 4], size: ImageSize) -> BoxXyxy {
    let (right, bottom) = (size.width as f64, size.height as f64);
    BoxXyxy {
        x1: x.clamp(0.0, right) as f32,
        y1: y.clamp(0.0, bottom) as f32,
        x2: (x + width).clamp(0.0, right) as f32,
        y2: (y + height).clamp(0.0, bottom) as f32,
    }
}

fn check_categories(dataset: &CocoDataset, num_classes: usize) -> Result<()> {
    let fits = |id: u64| id >= 1 && id < num_classes as u64;
    match dataset.categories().iter().find(|category| !fits(category.id)) {
        None => Ok(()),
        Some(category) => Err(Error::Dataset {
            path: dataset.path().to_owned(),
            entry: format!("category {} (`{}`)", category.id, category.name),
            problem: format!(
                "ids from 1 to {} fit the model's {num_classes} classes, of which 0 is the background",
                num_classes.saturating_sub(1)
            ),
        }),
    }
}

fn check_outlines(dataset: &CocoDataset) -> Result<()> {
    let bare = dataset.all_annotations().iter().find(|annotation| {
        annotation.coverage == Coverage::Single && annotation.segmentation == Segmentation::Absent
    });
    match bare {
        None => Ok(()),
        Some(annotation) => Err(Error::Dataset {
            path: dataset.path().to_owned(),
            entry: format!("annotation {}", annotation.id),
            problem: "it has no `segmentation`, but the model learns masks; use a faster_rcnn model, or outline it"
                .to_owned(),
        }),
    }
}

impl fmt::Display for LeftOut {
    /// One line per reason, with the first ids; nothing when nothing is left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reasons = [
            (&self.crowds, "annotations of crowds"),
            (&self.empty_boxes, "annotations whose box is empty inside the image"),
            (&self.empty_masks, "annotations whose outline has no pixel"),
            (&self.images, "images without an object to learn from"),
            (&self.few_keypoints, "images with few labelled keypoints"),
        ];
        let mut lines = reasons.iter().filter(|(ids, _)| !ids.is_empty()).map(|(ids, reason)| {
            format!("left out: {} {reason} (ids {})", ids.len(), crate::dataset::first_ids(ids))
        });
        f.write_str(&lines.next().unwrap_or_default())?;
        lines.try_for_each(|line| write!(f, "\n{line}"))
    }
}
