//! COCO data sets: images, categories and annotated objects.
//!
//! In: an `instances_*.json` or `person_keypoints_*.json` and a folder of
//! images. Out: a validated [`CocoDataset`]. `docs/evaluation.md` lists what is accepted and what is an error. This
//! room knows nothing of models and metrics.

pub(crate) mod fields;
mod findings;
mod folder;
pub(crate) mod keypoints;
mod open;
mod outline_fields;
mod parse;
pub(crate) mod reader;
pub(crate) mod run_lengths;
mod sample;
mod segmentation;

use std::path::{Path, PathBuf};

pub use findings::{Finding, FindingKind, Tolerance};
pub use keypoints::CocoKeypoint;
pub use sample::CocoSample;
pub use segmentation::Segmentation;

use crate::error::{Error, Result};
use crate::structures::ImageSize;

/// An image of a data set.
#[derive(Debug, Clone, PartialEq)]
pub struct CocoImage {
    /// Its id; unique.
    pub id: u64,
    /// Its file, relative to the folder of images.
    pub file_name: String,
    /// Size in pixels, where the file tells.
    pub size: Option<ImageSize>,
}

/// A category of a data set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CocoCategory {
    /// Its id; unique, with gaps in COCO's own files.
    pub id: u64,
    /// Its name, or `category ID` where the file has none.
    pub name: String,
    /// Names of its keypoints, in the order of annotations; empty where the file has none.
    pub keypoints: Vec<String>,
    /// Limbs: pairs of keypoints by position, from 0 on (files count from 1).
    pub skeleton: Vec<[usize; 2]>,
}

/// What an annotation covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coverage {
    /// One object.
    Single,
    /// A crowd of objects that nobody outlined one by one (`iscrowd`): detections in it are neither right nor wrong.
    Crowd,
}

/// An annotated object.
#[derive(Debug, Clone, PartialEq)]
pub struct CocoAnnotation {
    /// Its id; unique, any number from 0 on.
    pub id: u64,
    /// The image it lies in.
    pub image_id: u64,
    /// What it is.
    pub category_id: u64,
    /// `x, y, width, height` in pixels, as the file has it: it may leave the image.
    pub bbox: [f64; 4],
    /// Size in square pixels that sorts it into small, medium and large: the file's value, else that of mask or box.
    pub area: f64,
    /// One object or a crowd.
    pub coverage: Coverage,
    /// Its outline.
    pub segmentation: Segmentation,
    /// Its keypoints, in the order of the category's; empty where none were given. Such an object has no part in keypoint
    /// figures.
    pub keypoints: Vec<CocoKeypoint>,
    /// How many of them are labelled: the file's value, else counted. With 0, keypoint figures ignore the object.
    pub num_keypoints: usize,
}

/// A COCO data set, validated and indexed; nothing is decoded until asked for.
#[derive(Debug, Clone)]
pub struct CocoDataset {
    path: PathBuf,
    folder: PathBuf,
    /// By ascending id.
    images: Vec<CocoImage>,
    /// By ascending id.
    categories: Vec<CocoCategory>,
    /// By image, in the order of the file within one.
    annotations: Vec<CocoAnnotation>,
    /// Annotations of image `i` are `starts[i]..starts[i + 1]`.
    starts: Vec<usize>,
    /// Ids of images left out by [`Self::restrict_to`], ascending.
    left_out: Vec<u64>,
    findings: Vec<Finding>,
}

impl CocoDataset {
    /// The annotation file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of images.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// All images, by ascending id.
    pub fn images(&self) -> &[CocoImage] {
        &self.images
    }

    /// All categories, by ascending id.
    pub fn categories(&self) -> &[CocoCategory] {
        &self.categories
    }

    /// All annotations, by image.
    pub fn all_annotations(&self) -> &[CocoAnnotation] {
        &self.annotations
    }

    /// What is odd about the annotations, though no error.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// The image with an id.
    pub fn image(&self, id: u64) -> Option<&CocoImage> {
        self.position(id).map(|at| &self.images[at])
    }

    /// The category with an id.
    pub fn category(&self, id: u64) -> Option<&CocoCategory> {
        let at = self.categories.binary_search_by_key(&id, |category| category.id).ok()?;
        Some(&self.categories[at])
    }

    /// The objects in an image, in the order of the file; none for an unknown id.
    pub fn annotations(&self, image_id: u64) -> &[CocoAnnotation] {
        match self.position(image_id) {
            Some(at) => &self.annotations[self.starts[at]..self.starts[at + 1]],
            None => &[],
        }
    }

    /// The images with the means to decode them, by ascending id.
    pub fn samples(&self) -> impl ExactSizeIterator<Item = CocoSample<'_>> {
        self.images.iter().map(|image| CocoSample::new(self, image))
    }

    /// The part with the images named; the rest is forgotten, results for it are passed over.
    ///
    /// # Errors
    /// [`Error::Dataset`] when the data set has no such image, with the first ids and their number.
    pub fn restrict_to(self, image_ids: &[u64]) -> Result<Self> {
        let unknown: Vec<u64> =
            image_ids.iter().copied().filter(|&id| self.position(id).is_none()).collect();
        if !unknown.is_empty() {
            return Err(Error::Dataset {
                path: self.path,
                entry: "images".to_owned(),
                problem: format!(
                    "{} of the {} ids asked for are not in the data set: {}",
                    unknown.len(),
                    image_ids.len(),
                    first_ids(&unknown)
                ),
            });
        }
        let mut wanted = image_ids.to_vec();
        wanted.sort_unstable();
        Ok(self.keep(|image| wanted.binary_search(&image.id).is_ok()))
    }

    /// The part with the first `count` images by id.
    pub fn first(self, count: usize) -> Self {
        match self.images.get(count).map(|image| image.id) {
            Some(end) => self.keep(|image| image.id < end),
            None => self,
        }
    }

    /// Whether the folder has every image's file; better known before a long run than in the middle of it.
    ///
    /// # Errors
    /// [`Error::Dataset`] with the first files that are missing and their number.
    pub fn check_files(&self) -> Result<()> {
        let missing: Vec<&CocoImage> = self
            .images
            .iter()
            .filter(|image| !self.folder.join(&image.file_name).is_file())
            .collect();
        let Some(first) = missing.first() else { return Ok(()) };
        let names: Vec<&str> =
            missing.iter().take(3).map(|image| image.file_name.as_str()).collect();
        Err(Error::Dataset {
            path: self.path.clone(),
            entry: format!("image {}", first.id),
            problem: format!(
                "{} of {} files are not in {}, the first: {}",
                missing.len(),
                self.images.len(),
                self.folder.display(),
                names.join(", ")
            ),
        })
    }

    /// Whether any annotation has an outline, or none is needed because there are no annotations.
    pub fn has_masks(&self) -> bool {
        self.annotations.is_empty()
            || self.annotations.iter().any(|one| one.segmentation != Segmentation::Absent)
    }

    /// Whether any annotation has keypoints, or none is needed because there are no annotations of a category that has
    /// them.
    pub fn has_keypoints(&self) -> bool {
        match self.annotations.is_empty() {
            true => self.categories.iter().any(|one| !one.keypoints.is_empty()),
            false => self.annotations.iter().any(|one| !one.keypoints.is_empty()),
        }
    }

    /// Whether an image was left out by [`Self::restrict_to`] or [`Self::first`].
    pub(crate) fn leaves_out(&self, image_id: u64) -> bool {
        self.left_out.binary_search(&image_id).is_ok()
    }

    fn position(&self, image_id: u64) -> Option<usize> {
        self.images.binary_search_by_key(&image_id, |image| image.id).ok()
    }

    fn keep(mut self, wanted: impl Fn(&CocoImage) -> bool) -> Self {
        let (images, left_out): (Vec<_>, Vec<_>) = self.images.into_iter().partition(wanted);
        self.images = images;
        self.left_out.extend(left_out.into_iter().map(|image| image.id));
        self.left_out.sort_unstable();
        let left_out = &self.left_out;
        self.annotations.retain(|annotation| left_out.binary_search(&annotation.image_id).is_err());
        self.starts = starts(&self.images, &self.annotations);
        self
    }
}

/// Where each image's annotations begin; both are sorted by image.
fn starts(images: &[CocoImage], annotations: &[CocoAnnotation]) -> Vec<usize> {
    let mut starts = Vec::with_capacity(images.len() + 1);
    let mut at = 0;
    for image in images {
        starts.push(at);
        at += annotations[at..].partition_point(|annotation| annotation.image_id == image.id);
    }
    starts.push(at);
    starts
}

/// The first few of many ids, in words.
pub(crate) fn first_ids(ids: &[u64]) -> String {
    const LISTED: usize = 10;
    let listed: Vec<String> = ids.iter().take(LISTED).map(u64::to_string).collect();
    let more = if ids.len() > LISTED { ", …" } else { "" };
    listed.join(", ") + more
}
