//! From detections to figures, one image at a time.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::engine::Engine;
use super::metrics::Unlisted;
use super::results::{CocoResult, ResultsFile};
use super::{CocoDataset, CocoReport, EvalOptions, IouKind};
use crate::dataset::Segmentation;
use crate::dataset::first_ids;
use crate::error::{Error, Result};
use crate::structures::Detections;

/// An evaluation in progress. About twenty bytes are kept per detection; masks are compared and forgotten.
///
/// ```no_run
/// # use candle_detection::eval::{CocoDataset, CocoEvaluation, IouKind};
/// # fn detections_of(_: u64) -> candle_detection::structures::Detections { unimplemented!() }
/// # fn main() -> candle_detection::Result<()> {
/// let dataset = CocoDataset::open("instances_val2017.json".as_ref(), "val2017".as_ref())?;
/// let mut evaluation = CocoEvaluation::new(&dataset, &[IouKind::Box, IouKind::Mask])?;
/// for image in dataset.images() {
///     evaluation.record(image.id, &detections_of(image.id))?;
/// }
/// println!("{}", evaluation.finish()?);
/// # Ok(())
/// # }
/// ```
pub struct CocoEvaluation<'a> {
    dataset: &'a CocoDataset,
    engines: BTreeMap<IouKind, Engine>,
    /// Keypoints of an object, when they are compared.
    keypoints: usize,
    recorded: HashSet<u64>,
    detections: usize,
    unlisted: usize,
    unlisted_categories: BTreeSet<u64>,
}

impl<'a> CocoEvaluation<'a> {
    /// Begins an evaluation with COCO's limits of 1, 10 and 100 detections, 20 for keypoints, and its 17 sigmas.
    ///
    /// # Errors
    /// [`Error::Dataset`] when masks are to be compared and an annotation has none, or an image with polygons has no size;
    /// when keypoints are to be compared and an annotation does not have one for each sigma.
    pub fn new(dataset: &'a CocoDataset, kinds: &[IouKind]) -> Result<Self> {
        Self::with_options(dataset, kinds, EvalOptions::default())
    }

    /// Begins an evaluation with other limits or sigmas.
    ///
    /// # Errors
    /// Those of [`Self::new`].
    pub fn with_options(
        dataset: &'a CocoDataset,
        kinds: &[IouKind],
        options: impl Into<EvalOptions>,
    ) -> Result<Self> {
        let options = options.into();
        let keypoints = options.sigmas.values().len();
        if kinds.contains(&IouKind::Mask) {
            check_masks(dataset)?;
        }
        if kinds.contains(&IouKind::Keypoints) {
            check_keypoints(dataset, keypoints)?;
        }
        let mut engines = BTreeMap::new();
        for &kind in kinds {
            engines.insert(kind, Engine::new(kind, dataset.categories(), &options)?);
        }
        Ok(Self {
            dataset,
            engines,
            keypoints,
            recorded: HashSet::new(),
            detections: 0,
            unlisted: 0,
            unlisted_categories: BTreeSet::new(),
        })
    }

    /// Takes the detections of an image; none is a result too, and must be recorded.
    ///
    /// # Errors
    /// [`Error::Dataset`] for an image that the data set does not have or that was recorded before, for NaN or infinity in a
    /// score, box or keypoint, for masks of another size than the image, or none where masks are compared, and for
    /// keypoints that are not as many as the sigmas where those are compared.
    pub fn record(&mut self, image_id: u64, detections: &Detections) -> Result<()> {
        if self.engines.contains_key(&IouKind::Mask) && !detections.parts.masks {
            return Err(self.fault(
                format!("detections of image {image_id}"),
                "they have no masks, but masks are to be compared; evaluate `IouKind::Box` only"
                    .to_owned(),
            ));
        }
        if self.engines.contains_key(&IouKind::Keypoints) && detections.parts.keypoints.is_none() {
            return Err(self.fault(
                format!("detections of image {image_id}"),
                "they have no keypoints, but keypoints are to be compared; leave out `IouKind::Keypoints`"
                    .to_owned(),
            ));
        }
        self.record_results(image_id, &CocoResult::from_detections(image_id, detections))
    }

    /// The same for detections in COCO's results format.
    ///
    /// # Errors
    /// Those of [`Self::record`], and [`Error::Dataset`] for a result of another image.
    pub fn record_results(&mut self, image_id: u64, results: &[CocoResult]) -> Result<()> {
        let Some(image) = self.dataset.image(image_id) else {
            return Err(self.fault(
                format!("detections of image {image_id}"),
                "the data set has no such image".to_owned(),
            ));
        };
        for (index, result) in results.iter().enumerate() {
            if let Some(problem) = self.objection(image_id, result) {
                return Err(self.fault(format!("detections[{index}] of image {image_id}"), problem));
            }
        }
        if !self.recorded.insert(image_id) {
            return Err(self.fault(
                format!("detections of image {image_id}"),
                "the image was recorded before; each counts once".to_owned(),
            ));
        }
        let (listed, unlisted): (Vec<CocoResult>, Vec<CocoResult>) = results
            .iter()
            .cloned()
            .partition(|result| self.dataset.category(result.category_id).is_some());
        self.detections += listed.len();
        self.unlisted += unlisted.len();
        self.unlisted_categories.extend(unlisted.iter().map(|result| result.category_id));
        let truths = self.dataset.annotations(image_id);
        for engine in self.engines.values_mut() {
            engine.add(self.dataset.path(), image, truths, &listed)?;
        }
        Ok(())
    }

    /// Computes the figures.
    ///
    /// # Errors
    /// [`Error::Dataset`] when images were never recorded, with the first ids and their number: they would count as images
    /// in which nothing was found. Use [`CocoDataset::restrict_to`] to evaluate a part.
    pub fn finish(self) -> Result<CocoReport> {
        let missing: Vec<u64> = self
            .dataset
            .images()
            .iter()
            .map(|image| image.id)
            .filter(|id| !self.recorded.contains(id))
            .collect();
        if !missing.is_empty() {
            return Err(self.fault(
                "images".to_owned(),
                format!(
                    "{} of {} were never recorded, the first ids: {}; restrict the data set to evaluate a part of it",
                    missing.len(),
                    self.dataset.images().len(),
                    first_ids(&missing)
                ),
            ));
        }
        let mut per_kind = BTreeMap::new();
        for (kind, engine) in self.engines {
            per_kind.insert(kind, engine.finish(self.dataset.path())?);
        }
        Ok(CocoReport {
            per_kind,
            images: self.recorded.len(),
            detections: self.detections,
            unlisted: Unlisted {
                detections: self.unlisted,
                categories: self.unlisted_categories.into_iter().collect(),
            },
        })
    }

    fn objection(&self, image_id: u64, result: &CocoResult) -> Option<String> {
        if result.image_id != image_id {
            return Some(format!("it is of image {}", result.image_id));
        }
        if self.engines.contains_key(&IouKind::Mask) && result.segmentation == Segmentation::Absent
        {
            return Some("it has no mask, but masks are to be compared".to_owned());
        }
        if self.engines.contains_key(&IouKind::Keypoints) {
            let found = result.keypoints.as_ref().map_or(0, Vec::len);
            if found != self.keypoints {
                let expected = self.keypoints;
                return Some(format!("it has {found} keypoints, but {expected} are compared"));
            }
        }
        if result.is_nowhere() {
            return Some("it has neither box nor mask nor keypoints".to_owned());
        }
        result.objection(self.dataset)
    }

    fn fault(&self, entry: String, problem: String) -> Error {
        Error::Dataset { path: self.dataset.path().to_owned(), entry, problem }
    }
}

/// Masks can be compared when every object has one and every polygon a canvas.
fn check_masks(dataset: &CocoDataset) -> Result<()> {
    let fault = |entry: String, problem: &str| Error::Dataset {
        path: dataset.path().to_owned(),
        entry,
        problem: problem.to_owned(),
    };
    for annotation in dataset.all_annotations() {
        match &annotation.segmentation {
            Segmentation::Absent => {
                return Err(fault(
                    format!("annotation {}", annotation.id),
                    "it has no `segmentation`, but masks are to be compared; evaluate boxes only",
                ));
            }
            Segmentation::Polygons(_)
                if dataset.image(annotation.image_id).is_some_and(|image| image.size.is_none()) =>
            {
                return Err(fault(
                    format!("image {}", annotation.image_id),
                    "it has no `height` and `width`, which its polygons need to become masks",
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Keypoints can be compared when every object has as many as there are sigmas.
fn check_keypoints(dataset: &CocoDataset, sigmas: usize) -> Result<()> {
    let fits = |found: usize| found == sigmas;
    let annotations = dataset.all_annotations();
    let Some(wrong) = annotations.iter().find(|one| !fits(one.keypoints.len())) else {
        return Ok(());
    };
    let problem = match wrong.keypoints.len() {
        0 => "it has no `keypoints`, but keypoints are to be compared; evaluate boxes only"
            .to_owned(),
        found => format!(
            "it has {found} keypoints, but {sigmas} sigmas tell how they are compared; give as many sigmas as keypoints"
        ),
    };
    Err(Error::Dataset {
        path: dataset.path().to_owned(),
        entry: format!("annotation {}", wrong.id),
        problem,
    })
}

/// Evaluates a results file: all images of the data set count, those without an entry as images in which nothing was found.
/// Masks are compared when both sides have them, and so are keypoints. Entries of images that were left out of the data set are passed over.
///
/// # Errors
/// [`Error::Dataset`]: entries for images that the data set does not have (first ids and count), NaN or infinity, masks that
/// don't fit their image, masks or keypoints to compare with annotations of which only some have them, results of nothing
/// but keypoints for a data set without.
pub fn evaluate_results(
    dataset: &CocoDataset,
    file: &ResultsFile,
    options: impl Into<EvalOptions>,
) -> Result<CocoReport> {
    file.check(dataset)?;
    let mut by_image: BTreeMap<u64, Vec<CocoResult>> = BTreeMap::new();
    for result in file.results() {
        by_image.entry(result.image_id).or_default().push(result.clone());
    }
    let mut kinds = file.kinds();
    kinds.retain(|kind| match kind {
        IouKind::Box => true,
        IouKind::Mask => dataset.has_masks(),
        IouKind::Keypoints => dataset.has_keypoints(),
    });
    if kinds.is_empty() {
        return Err(Error::Dataset {
            path: file.path().to_owned(),
            entry: "results".to_owned(),
            problem: format!(
                "they have nothing but `keypoints`, and {} has none to compare them with",
                dataset.path().display()
            ),
        });
    }
    let mut evaluation = CocoEvaluation::with_options(dataset, &kinds, options)?;
    for image in dataset.images() {
        let results = by_image.remove(&image.id).unwrap_or_default();
        evaluation.record_results(image.id, &results)?;
    }
    evaluation.finish()
}
