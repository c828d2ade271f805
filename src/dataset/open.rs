//! From an annotation file to an indexed data set: everything that needs more than one entry.

use std::path::Path;

use super::fields::Place;
use super::findings::Findings;
use super::{
    CocoAnnotation, CocoCategory, CocoDataset, CocoImage, FindingKind, Segmentation, Tolerance,
    keypoints, parse, reader, run_lengths, starts,
};
use crate::error::{Error, Result};
use crate::structures::ImageSize;

const LISTS: [&str; 3] = ["images", "annotations", "categories"];

/// A box may leave its image by this many pixels before it is odd: annotators round.
const BORDER: f64 = 1.0;

impl CocoDataset {
    /// Reads an annotation file; `images` is the folder that its file names are relative to.
    ///
    /// Oddities that pycocotools accepts are accepted and listed in [`Self::findings`].
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Dataset`] with the entry at fault: JSON that is damaged or cut off, a field that is
    /// missing or of the wrong type, ids that occur twice, annotations of unknown images or categories, boxes of
    /// negative size, masks whose size or run lengths don't fit, keypoints that are not as many as their category's or
    /// whose visibility is none.
    pub fn open(annotations: &Path, images: &Path) -> Result<Self> {
        Self::open_with(annotations, images, Tolerance::Report)
    }

    /// The same with a choice of what happens to oddities.
    ///
    /// # Errors
    /// Those of [`Self::open`]; with [`Tolerance::Reject`] also empty boxes, degenerate polygons, run lengths that stop
    /// early and wrong numbers of keypoints.
    pub fn open_with(annotations: &Path, images: &Path, tolerance: Tolerance) -> Result<Self> {
        let mut loader = Loader::new(annotations);
        let met =
            reader::read_object(annotations, &LISTS, &mut |list, chunk| loader.take(list, &chunk))?;
        if let Some(absent) = LISTS.iter().find(|name| !met.contains(name)) {
            return Err(Error::Dataset {
                path: annotations.to_owned(),
                entry: "the file".to_owned(),
                problem: format!(
                    "it has no list `{absent}`; a COCO annotation file has `images`, `annotations` and `categories`"
                ),
            });
        }
        loader.finish(images, tolerance)
    }
}

struct Loader<'p> {
    path: &'p Path,
    images: Vec<CocoImage>,
    categories: Vec<CocoCategory>,
    annotations: Vec<CocoAnnotation>,
    /// Positions of annotations whose area has to be computed.
    without_area: Vec<usize>,
    findings: Findings,
}

impl<'p> Loader<'p> {
    fn new(path: &'p Path) -> Self {
        Self {
            path,
            images: Vec::new(),
            categories: Vec::new(),
            annotations: Vec::new(),
            without_area: Vec::new(),
            findings: Findings::default(),
        }
    }

    fn take(&mut self, list: &str, chunk: &reader::Chunk) -> Result<()> {
        let path = self.path;
        let place = |list, index| Place { path, list, index, id: None };
        match list {
            "images" => self
                .images
                .extend(chunk.parse(|index, text| parse::image(place("images", index), text))?),
            "categories" => self.categories.extend(
                chunk.parse(|index, text| parse::category(place("categories", index), text))?,
            ),
            _ => {
                let parsed = chunk
                    .parse(|index, text| parse::annotation(place("annotations", index), text))?;
                for parsed in parsed {
                    let position = self.annotations.len();
                    for kind in parsed.oddities {
                        self.findings.note(kind, position, parsed.annotation.id);
                    }
                    if parsed.area_missing {
                        self.without_area.push(position);
                    }
                    self.annotations.push(parsed.annotation);
                }
            }
        }
        Ok(())
    }

    fn place(&self, list: &'static str, index: usize, id: u64) -> Place<'_> {
        Place { path: self.path, list, index, id: Some(id) }
    }

    fn finish(mut self, folder: &Path, tolerance: Tolerance) -> Result<CocoDataset> {
        self.unique("images", self.images.iter().map(|image| image.id))?;
        self.unique("categories", self.categories.iter().map(|category| category.id))?;
        self.unique("annotations", self.annotations.iter().map(|annotation| annotation.id))?;
        self.images.sort_unstable_by_key(|image| image.id);
        self.categories.sort_unstable_by_key(|category| category.id);
        self.check_references()?;
        self.compute_areas();
        let findings = std::mem::take(&mut self.findings).into_vec();
        if tolerance == Tolerance::Reject
            && let Some(fault) = findings.iter().find(|finding| finding.kind.is_fault())
        {
            let (index, id) = fault.first[0];
            let others = match fault.count {
                1 => String::new(),
                count => format!("; {count} annotations are like it"),
            };
            return Err(self
                .place("annotations", index, id)
                .fault(format!("{}{others}", fault.kind.describe())));
        }
        let Self { path, images, categories, mut annotations, .. } = self;
        annotations.sort_by_key(|annotation| annotation.image_id);
        annotations.shrink_to_fit();
        Ok(CocoDataset {
            path: path.to_owned(),
            folder: folder.to_owned(),
            starts: starts(&images, &annotations),
            images,
            categories,
            annotations,
            left_out: Vec::new(),
            findings,
        })
    }

    /// No id may occur twice: whichever entry won, the other would be lost without a trace.
    fn unique(&self, list: &'static str, ids: impl Iterator<Item = u64>) -> Result<()> {
        let mut ids: Vec<(u64, usize)> = ids.zip(0..).collect();
        ids.sort_unstable();
        match ids.windows(2).filter(|pair| pair[0].0 == pair[1].0).min_by_key(|pair| pair[1].1) {
            None => Ok(()),
            Some(pair) => Err(self.place(list, pair[1].1, pair[1].0).fault(format!(
                "the id is taken by {list}[{}] already; ids must be unique",
                pair[0].1
            ))),
        }
    }

    fn check_references(&mut self) -> Result<()> {
        let mut outside = Findings::default();
        let mut leaving = 0;
        for (index, annotation) in self.annotations.iter().enumerate() {
            let place = self.place("annotations", index, annotation.id);
            let unknown = |field: &str, id: u64, list: &str| {
                place.fault(format!("`{field}` is {id}, but `{list}` has no such id"))
            };
            let category = self.categories.binary_search_by_key(&annotation.category_id, |c| c.id);
            let Ok(category) = category else {
                return Err(unknown("category_id", annotation.category_id, "categories"));
            };
            keypoints::check_count(&place, annotation, &self.categories[category])?;
            let Ok(image) = self.images.binary_search_by_key(&annotation.image_id, |i| i.id) else {
                return Err(unknown("image_id", annotation.image_id, "images"));
            };
            let Some(size) = self.images[image].size else { continue };
            if let Segmentation::Rle { size: mask, .. } = &annotation.segmentation
                && *mask != size
            {
                return Err(place.fault(format!(
                    "the mask's `size` is {mask}, but image {} is {size}",
                    annotation.image_id
                )));
            }
            if leaves(annotation.bbox, size) {
                leaving += 1;
                outside.note(FindingKind::OutsideImage, index, annotation.id);
            }
        }
        if leaving * 10 > self.annotations.len() {
            self.findings.extend(outside);
        }
        Ok(())
    }

    fn compute_areas(&mut self) {
        for &position in &self.without_area {
            let annotation = &mut self.annotations[position];
            let size = self
                .images
                .binary_search_by_key(&annotation.image_id, |image| image.id)
                .ok()
                .and_then(|at| self.images[at].size);
            let from_mask = match (&annotation.segmentation, size) {
                (Segmentation::Absent, _) | (Segmentation::Polygons(_), None) => 0,
                (outline, size) => {
                    let canvas = size.unwrap_or(ImageSize { height: 0, width: 0 });
                    run_lengths::area(outline, canvas)
                }
            };
            // A mask without pixels says nothing about the object's size.
            annotation.area = match from_mask {
                0 => annotation.bbox[2] * annotation.bbox[3],
                pixels => pixels as f64,
            };
        }
    }
}

fn leaves([x, y, width, height]: [f64; 4], size: ImageSize) -> bool {
    x < -BORDER
        || y < -BORDER
        || x + width > size.width as f64 + BORDER
        || y + height > size.height as f64 + BORDER
}
