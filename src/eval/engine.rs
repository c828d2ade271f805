//! The metric engine behind this room: the crate hotcoco, and nothing of it passes this file.
//!
//! It follows pycocotools to the last bit on well-formed input. What differs on purpose is decided by the callers:
//! input is validated before it arrives here, so that nothing is silently dropped.

use std::path::Path;

use hotcoco::primitives::greedy::{self, GtMasks};
use hotcoco::primitives::sim;
use hotcoco::{Annotation, Category, EvalMode, Image, IouType, Params, StreamingEval};

use super::metrics::{CategoryMetrics, CocoMetrics, PrCurve};
use super::options::{EvalOptions, KEYPOINT_DETECTIONS};
use super::results::CocoResult;
use super::{IOU_THRESHOLDS, IouKind};
use crate::dataset::run_lengths::foreign;
use crate::dataset::{CocoAnnotation, CocoCategory, CocoImage, CocoKeypoint, Coverage};
use crate::error::{Error, Result};
use crate::structures::ImageSize;

/// Images matched in one call: enough work for every core, little enough to be forgotten in memory.
const BATCH: usize = 64;

/// One metric family in the making: images go in, figures come out.
pub(super) struct Engine {
    kind: IouKind,
    max_detections: Vec<usize>,
    stream: StreamingEval,
    images: Vec<Image>,
    truths: Vec<Annotation>,
    results: Vec<Annotation>,
    counts: Vec<(u64, Counts)>,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    objects: usize,
    detections: usize,
}

impl Engine {
    pub fn new(kind: IouKind, categories: &[CocoCategory], options: &EvalOptions) -> Result<Self> {
        let mut params = Params::new(match kind {
            IouKind::Box => IouType::Bbox,
            IouKind::Mask => IouType::Segm,
            IouKind::Keypoints => IouType::Keypoints,
        });
        let max_detections = match kind {
            IouKind::Keypoints => vec![KEYPOINT_DETECTIONS],
            IouKind::Box | IouKind::Mask => options.max_detections.limits().to_vec(),
        };
        params.max_dets.clone_from(&max_detections);
        params.kpt_oks_sigmas = options.sigmas.values().to_vec();
        let known = categories
            .iter()
            .map(|category| Category {
                id: category.id,
                name: category.name.clone(),
                ..Default::default()
            })
            .collect();
        let stream = StreamingEval::new(params, EvalMode::Coco, known)
            .map_err(|error| internal(Path::new("evaluation"), &error))?;
        Ok(Self {
            kind,
            max_detections,
            stream,
            images: Vec::new(),
            truths: Vec::new(),
            results: Vec::new(),
            counts: categories.iter().map(|category| (category.id, Counts::default())).collect(),
        })
    }

    /// Takes one image. Every category is known, every result finite; both have a mask when masks are compared, and
    /// keypoints when those are.
    pub fn add(
        &mut self,
        path: &Path,
        image: &CocoImage,
        truths: &[CocoAnnotation],
        results: &[CocoResult],
    ) -> Result<()> {
        let size = image.size.unwrap_or(ImageSize { height: 0, width: 0 });
        self.images.push(Image {
            id: image.id,
            height: size.height as u32,
            width: size.width as u32,
            ..Default::default()
        });
        for truth in truths {
            let labelled = self.kind != IouKind::Keypoints || truth.num_keypoints > 0;
            let counts = labelled && truth.coverage == Coverage::Single;
            self.count(truth.category_id, |all| all.objects += usize::from(counts));
        }
        for result in results {
            self.count(result.category_id, |counts| counts.detections += 1);
        }
        let with_mask = self.kind == IouKind::Mask;
        let with_keypoints = self.kind == IouKind::Keypoints;
        self.truths.extend(truths.iter().map(|truth| Annotation {
            image_id: image.id,
            category_id: truth.category_id,
            bbox: Some(truth.bbox),
            area: Some(truth.area),
            iscrowd: truth.coverage == Coverage::Crowd,
            segmentation: with_mask.then(|| foreign(&truth.segmentation)).flatten(),
            keypoints: with_keypoints.then(|| numbers_of(truth)),
            num_keypoints:
                with_keypoints.then(|| u32::try_from(truth.num_keypoints).unwrap_or(u32::MAX)),
            ..Default::default()
        }));
        self.results.extend(results.iter().map(|result| {
            Annotation {
                image_id: image.id,
                category_id: result.category_id,
                // A result without a box gets that of its mask, else of its keypoints, as in pycocotools.
                bbox: match self.kind {
                    IouKind::Box => result.extent(),
                    IouKind::Mask | IouKind::Keypoints => result.bbox,
                },
                score: Some(result.score),
                segmentation: (with_mask || with_keypoints)
                    .then(|| foreign(&result.segmentation))
                    .flatten(),
                keypoints: with_keypoints
                    .then(|| result.keypoints.as_ref().map(|points| points.as_flattened().to_vec()))
                    .flatten(),
                ..Default::default()
            }
        }));
        if self.images.len() >= BATCH { self.flush(path) } else { Ok(()) }
    }

    fn count(&mut self, category: u64, change: impl FnOnce(&mut Counts)) {
        if let Ok(position) = self.counts.binary_search_by_key(&category, |&(id, _)| id) {
            change(&mut self.counts[position].1);
        }
    }

    fn flush(&mut self, path: &Path) -> Result<()> {
        let images = std::mem::take(&mut self.images);
        let truths = std::mem::take(&mut self.truths);
        let results = std::mem::take(&mut self.results);
        self.stream.update(images, truths, results).map_err(|error| internal(path, &error))
    }

    /// The figures of all images taken.
    pub fn finish(mut self, path: &Path) -> Result<CocoMetrics> {
        self.flush(path)?;
        let mut eval = self.stream.finalize();
        eval.accumulate();
        eval.summarize_lines();
        let (Some(stats), Some(accumulated)) = (eval.stats(), eval.accumulated()) else {
            return Err(internal(path, &"no figures were computed"));
        };
        let shape = accumulated.shape;
        let limit = shape.m - 1;
        let mut per_category = std::collections::BTreeMap::new();
        for (k, &id) in accumulated.cat_ids.iter().enumerate() {
            let curves = (0..shape.t)
                .map(|t| {
                    let at = |r| accumulated.precision_idx(t, r, k, 0, limit);
                    PrCurve {
                        iou: IOU_THRESHOLDS[t],
                        precision: (0..shape.r).map(|r| accumulated.precision[at(r)]).collect(),
                        scores: (0..shape.r).map(|r| accumulated.scores[at(r)]).collect(),
                        max_recall: accumulated.recall[accumulated.recall_idx(t, k, 0, limit)],
                    }
                })
                .collect();
            let position = self.counts.binary_search_by_key(&id, |&(id, _)| id);
            let counts = position.map(|at| self.counts[at].1).unwrap_or_default();
            per_category
                .insert(id, CategoryMetrics::new(curves, counts.objects, counts.detections));
        }
        let (kind, max_detections) = (self.kind, self.max_detections);
        let names: &[&str] = match kind {
            IouKind::Box | IouKind::Mask => &CocoMetrics::NAMES,
            IouKind::Keypoints => &CocoMetrics::KEYPOINT_NAMES,
        };
        // None where this kind has no such figure, and where there is nothing to find.
        let figure = |name: &str| {
            let at = names.iter().position(|known| *known == name)?;
            stats.get(at).copied().filter(|&value| value >= 0.0)
        };
        Ok(CocoMetrics {
            kind,
            ap: figure("ap"),
            ap50: figure("ap50"),
            ap75: figure("ap75"),
            ap_small: figure("ap_small"),
            ap_medium: figure("ap_medium"),
            ap_large: figure("ap_large"),
            ar1: figure("ar1"),
            ar10: figure("ar10"),
            ar100: figure("ar100").or_else(|| figure("ar")),
            ar50: figure("ar50"),
            ar75: figure("ar75"),
            ar_small: figure("ar_small"),
            ar_medium: figure("ar_medium"),
            ar_large: figure("ar_large"),
            max_detections,
            per_category,
        })
    }
}

/// Keypoints as files have them: `x, y, v, …`.
fn numbers_of(truth: &CocoAnnotation) -> Vec<f64> {
    let number = |point: &CocoKeypoint| [point.x, point.y, f64::from(point.visibility.number())];
    truth.keypoints.iter().flat_map(number).collect()
}

/// Which truth each result found in one image, category by category or across them.
pub(super) struct Matching {
    /// Per result, in the order given: position of its truth.
    pub truth_of: Vec<Option<usize>>,
    /// Per result: lies in a crowd, so that it is neither right nor wrong.
    pub in_crowd: Vec<bool>,
}

/// Matches boxes at one IoU threshold (≥), best score first as the caller ordered them; each truth is found once.
pub(super) fn match_boxes(
    results: &[[f64; 4]],
    truths: &[([f64; 4], Coverage)],
    threshold: f64,
) -> Matching {
    let single: Vec<usize> =
        (0..truths.len()).filter(|&at| truths[at].1 == Coverage::Single).collect();
    let crowds: Vec<[f64; 4]> =
        truths.iter().filter(|truth| truth.1 == Coverage::Crowd).map(|truth| truth.0).collect();
    let boxes: Vec<[f64; 4]> = single.iter().map(|&at| truths[at].0).collect();
    let overlap = sim::bbox_iou_flat(results, &boxes, &vec![false; boxes.len()]);
    let greedy = greedy::greedy_match_masked(
        &overlap,
        results.len(),
        boxes.len(),
        boxes.len(),
        GtMasks::default(),
        &[threshold],
    );
    let truth_of: Vec<Option<usize>> = (0..results.len())
        .map(|at| greedy.dt_gt.row(0).get(at).copied().flatten().map(|found| single[found]))
        .collect();
    let in_crowd = (0..results.len())
        .map(|at| {
            truth_of[at].is_none()
                && crowds
                    .iter()
                    .any(|&crowd| sim::bbox_iou_pair(results[at], crowd, true) >= threshold)
        })
        .collect();
    Matching { truth_of, in_crowd }
}

/// An objection of the engine; input was validated, so it names what was being evaluated and no entry.
fn internal(path: &Path, error: &dyn std::fmt::Display) -> Error {
    Error::Dataset {
        path: path.to_owned(),
        entry: "evaluation".to_owned(),
        problem: error.to_string(),
    }
}
