//! Detections in COCO's results format: one JSON list, each entry with image, category, score, box, mask and
//! keypoints.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{CocoDataset, IouKind};
use crate::dataset::Segmentation;
use crate::dataset::fields::{Place, given};
use crate::dataset::keypoints::triples;
use crate::dataset::reader;
use crate::error::{Error, Result};
use crate::structures::Detections;

/// A pixel belongs to a mask when its probability is strictly above this.
pub const MASK_THRESHOLD: f32 = 0.5;

/// A keypoint is taken to show when its score is strictly above this: where the peak of its heatmap is a positive logit.
pub const KEYPOINT_THRESHOLD: f32 = 0.0;

/// One detection, as COCO's results format has it.
#[derive(Debug, Clone, PartialEq)]
pub struct CocoResult {
    /// The image it was found in.
    pub image_id: u64,
    /// What it is.
    pub category_id: u64,
    /// `x, y, width, height` in pixels of the image.
    pub bbox: Option<[f64; 4]>,
    /// Confidence; only the order matters to the figures.
    pub score: f64,
    /// Its outline.
    pub segmentation: Segmentation,
    /// Its keypoints, each x, y in pixels of the image, and a number that no figure depends on: above 0 for those to be
    /// drawn.
    pub keypoints: Option<Vec<[f64; 3]>>,
}

impl CocoResult {
    /// The detections of one image, in their order; masks are the pixels above [`MASK_THRESHOLD`], and keypoints have a 1
    /// where their score is above [`KEYPOINT_THRESHOLD`], else a 0.
    pub fn from_detections(image_id: u64, detections: &Detections) -> Vec<Self> {
        let convert = |instance: &crate::structures::Instance| Self {
            image_id,
            category_id: u64::from(instance.label),
            bbox: Some(instance.bbox.to_xywh().map(f64::from)),
            score: f64::from(instance.score),
            segmentation: instance.mask.as_ref().map_or(Segmentation::Absent, |mask| {
                let rle = mask.to_rle(MASK_THRESHOLD);
                Segmentation::Rle { size: rle.size, counts: rle.to_coco_string() }
            }),
            keypoints: instance.keypoints.as_ref().map(|points| {
                let shows = |score: f32| f64::from(u8::from(score > KEYPOINT_THRESHOLD));
                points.iter().map(|p| [f64::from(p.x), f64::from(p.y), shows(p.score)]).collect()
            }),
        };
        detections.instances.iter().map(convert).collect()
    }

    /// The box given, or that around the mask, or that around all keypoints.
    pub fn extent(&self) -> Option<[f64; 4]> {
        let around_keypoints = || self.keypoints.as_deref().and_then(around);
        self.bbox.or_else(|| self.segmentation.extent()).or_else(around_keypoints)
    }

    /// Whether nothing says where it is.
    pub(super) fn is_nowhere(&self) -> bool {
        let points = self.keypoints.as_ref().map_or(0, Vec::len);
        self.bbox.is_none() && self.segmentation == Segmentation::Absent && points == 0
    }

    /// What forbids evaluating it on a data set, in words.
    pub(super) fn objection(&self, dataset: &CocoDataset) -> Option<String> {
        if !self.score.is_finite() {
            return Some(format!("`score` is {}, expected a finite number", self.score));
        }
        if let Some(bbox) = self.bbox {
            if bbox.iter().any(|value| !value.is_finite()) {
                return Some(format!("`bbox` is {bbox:?}, expected four finite numbers"));
            }
            if bbox[2] < 0.0 || bbox[3] < 0.0 {
                return Some(format!(
                    "`bbox` is {bbox:?}, expected x, y, width, height with no negative size"
                ));
            }
        }
        let unplaced = |point: &&[f64; 3]| point.iter().any(|value| !value.is_finite());
        if let Some(point) = self.keypoints.iter().flatten().find(unplaced) {
            return Some(format!("`keypoints` has {point:?}, expected finite x, y, v"));
        }
        let size = dataset.image(self.image_id).and_then(|image| image.size);
        if let (Segmentation::Rle { size: mask, .. }, Some(size)) = (&self.segmentation, size)
            && *mask != size
        {
            return Some(format!(
                "the mask's `size` is {mask}, but image {} is {size}",
                self.image_id
            ));
        }
        None
    }

    pub(super) fn parse(mut place: Place<'_>, text: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Fields<'a> {
            #[serde(borrow)]
            image_id: Option<&'a RawValue>,
            #[serde(borrow)]
            category_id: Option<&'a RawValue>,
            #[serde(borrow)]
            bbox: Option<&'a RawValue>,
            #[serde(borrow)]
            score: Option<&'a RawValue>,
            #[serde(borrow)]
            segmentation: Option<&'a RawValue>,
            #[serde(borrow)]
            keypoints: Option<&'a RawValue>,
        }
        let fields: Fields<'_> = serde_json::from_str(text)
            .map_err(|_| place.wrong("the entry", text, "an object that has no field twice"))?;
        place.id = None;
        let image_id = place.required_whole("image_id", fields.image_id)?;
        let category_id = place.required_whole("category_id", fields.category_id)?;
        let score = place.required("score", fields.score)?;
        let score = place.value("score", score, "a finite number")?;
        let bbox = match given(fields.bbox) {
            Some(raw) => {
                Some(place.value("bbox", raw, "four finite numbers x, y, width, height")?)
            }
            None => None,
        };
        let segmentation = match given(fields.segmentation) {
            Some(raw) => Segmentation::parse(&place, raw)?.0,
            None => Segmentation::Absent,
        };
        let keypoints = match given(fields.keypoints) {
            Some(raw) => Some(triples(&place, raw)?),
            None => None,
        };
        let result = Self { image_id, category_id, bbox, score, segmentation, keypoints };
        if result.is_nowhere() {
            return Err(place.fault("it has neither `bbox` nor `segmentation` nor `keypoints`"));
        }
        Ok(result)
    }
}

impl Serialize for CocoResult {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a> {
            image_id: u64,
            category_id: u64,
            #[serde(skip_serializing_if = "Option::is_none")]
            bbox: Option<[f64; 4]>,
            score: f64,
            #[serde(skip_serializing_if = "is_absent")]
            segmentation: &'a Segmentation,
            #[serde(skip_serializing_if = "Option::is_none")]
            keypoints: Option<&'a [f64]>,
        }
        fn is_absent(segmentation: &Segmentation) -> bool {
            *segmentation == Segmentation::Absent
        }
        Fields {
            image_id: self.image_id,
            category_id: self.category_id,
            bbox: self.bbox,
            score: self.score,
            segmentation: &self.segmentation,
            keypoints: self.keypoints.as_deref().map(<[[f64; 3]]>::as_flattened),
        }
        .serialize(serializer)
    }
}

/// The smallest upright box around points, `x, y, width, height`.
fn around(points: &[[f64; 3]]) -> Option<[f64; 4]> {
    let [x, y, _] = *points.first()?;
    let [left, top, right, bottom] = points.iter().fold([x, y, x, y], |all, &[x, y, _]| {
        [all[0].min(x), all[1].min(y), all[2].max(x), all[3].max(y)]
    });
    Some([left, top, right - left, bottom - top])
}

/// The contents of a results file.
#[derive(Debug, Clone)]
pub struct ResultsFile {
    path: PathBuf,
    results: Vec<CocoResult>,
}

impl ResultsFile {
    /// Reads a results file.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Dataset`] with the entry at fault: JSON that is damaged or cut off, NaN or infinity, a
    /// field that is missing or of the wrong type, run lengths that don't fit, or a box, a mask or keypoints that some
    /// entries have and others lack.
    pub fn read(path: &Path) -> Result<Self> {
        let mut results: Vec<CocoResult> = Vec::new();
        reader::read_list(path, "results", &mut |_, chunk| {
            results.extend(chunk.parse(|index, text| {
                CocoResult::parse(Place { path, list: "results", index, id: None }, text)
            })?);
            Ok(())
        })?;
        results.shrink_to_fit();
        let file = Self { path: path.to_owned(), results };
        file.check_uniform()?;
        Ok(file)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All entries, in the order of the file.
    pub fn results(&self) -> &[CocoResult] {
        &self.results
    }

    /// What can be compared: masks and keypoints when the entries have them, and boxes unless they have nothing but
    /// keypoints.
    pub fn kinds(&self) -> Vec<IouKind> {
        let Some(first) = self.results.first() else { return vec![IouKind::Box] };
        let masks = first.segmentation != Segmentation::Absent;
        let boxes = masks || first.bbox.is_some();
        [
            (boxes, IouKind::Box),
            (masks, IouKind::Mask),
            (first.keypoints.is_some(), IouKind::Keypoints),
        ]
        .into_iter()
        .filter_map(|(there, kind)| there.then_some(kind))
        .collect()
    }

    fn place(&self, index: usize) -> Place<'_> {
        Place { path: &self.path, list: "results", index, id: None }
    }

    /// pycocotools looks at the first entry and takes all others for its like.
    fn check_uniform(&self) -> Result<()> {
        let Some(first) = self.results.first() else { return Ok(()) };
        let form = |result: &CocoResult| {
            [
                ("bbox", result.bbox.is_some()),
                ("segmentation", result.segmentation != Segmentation::Absent),
                ("keypoints", result.keypoints.is_some()),
            ]
        };
        for (index, result) in self.results.iter().enumerate() {
            for ((field, here), (_, there)) in form(result).into_iter().zip(form(first)) {
                if here != there {
                    let (one, other) = if here { ("a", "none") } else { ("no", "one") };
                    return Err(self.place(index).fault(format!(
                        "it has {one} `{field}`, but results[0] has {other}; all entries must have the same fields"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Checks every entry against a data set; entries of images that were left out of it pass.
    pub(super) fn check(&self, dataset: &CocoDataset) -> Result<()> {
        let mut unknown: Vec<u64> = Vec::new();
        for result in &self.results {
            if dataset.image(result.image_id).is_none() && !dataset.leaves_out(result.image_id) {
                unknown.push(result.image_id);
            }
        }
        if !unknown.is_empty() {
            let entries = unknown.len();
            unknown.sort_unstable();
            unknown.dedup();
            return Err(Error::Dataset {
                path: self.path.clone(),
                entry: "image_id".to_owned(),
                problem: format!(
                    "{entries} of {} entries are for {} images that {} does not have, the first ids: {}; do file and data set belong together?",
                    self.results.len(),
                    unknown.len(),
                    dataset.path().display(),
                    crate::dataset::first_ids(&unknown)
                ),
            });
        }
        for (index, result) in self.results.iter().enumerate() {
            if let Some(problem) = result.objection(dataset) {
                return Err(self.place(index).fault(problem));
            }
        }
        Ok(())
    }
}

/// Writes results as COCO's list, one entry a line, in the order given.
///
/// # Errors
/// Those of the writer.
pub fn write_results<'r>(
    writer: &mut dyn Write,
    results: impl IntoIterator<Item = &'r CocoResult>,
) -> std::io::Result<()> {
    writer.write_all(b"[")?;
    let mut separator: &[u8] = b"\n";
    for result in results {
        writer.write_all(separator)?;
        serde_json::to_writer(&mut *writer, result)?;
        separator = b",\n";
    }
    writer.write_all(b"\n]\n")
}
