//! COCO data sets and figures that can be trusted: the same as pycocotools', or an error that names the entry at fault.
//!
//! In: an annotation file, images or a results file. Out: a [`CocoReport`]. This room knows nothing of networks; it
//! takes finished [`Detections`](crate::structures::Detections), from any model. `docs/evaluation.md` is the guide.

mod analysis;
mod engine;
mod evaluation;
mod journal;
mod metrics;
mod options;
pub mod report;
mod results;
mod run;
mod shard;

pub use crate::dataset::{
    CocoAnnotation, CocoCategory, CocoDataset, CocoImage, CocoKeypoint, CocoSample, Coverage,
    Finding, FindingKind, Segmentation, Tolerance,
};
pub use analysis::{Analysis, Bin, Fate, ImageOutcome, Judgement, SCORE_BINS, SIZE_BINS, Verdict};
pub use evaluation::{CocoEvaluation, evaluate_results};
pub use journal::{Journal, Merged, RunSettings, Start};
pub use metrics::{
    CategoryMetrics, CocoMetrics, CocoReport, IOU_THRESHOLDS, IouKind, MaxDetections, PrCurve,
    Unlisted,
};
pub use options::{EvalOptions, KEYPOINT_DETECTIONS, KeypointSigmas};
pub use results::{CocoResult, KEYPOINT_THRESHOLD, MASK_THRESHOLD, ResultsFile, write_results};
pub use run::detect_images;
pub use shard::{Plan, Shard};

use std::num::NonZeroUsize;

use crate::detector::Detector;
use crate::error::Result;
use crate::progress::Progress;
use crate::structures::InstanceParts;

/// Runs a detector over a data set and computes COCO's figures: of boxes, and of masks and keypoints where both sides have
/// them.
///
/// Images go through one by one, decoded ahead on another thread. For results on disk, resumption and shards see
/// [`detect_images`] and [`Journal`].
///
/// # Errors
/// Those of [`detect_images`] and [`CocoEvaluation`].
pub fn evaluate(
    detector: &Detector,
    dataset: &CocoDataset,
    progress: &dyn Progress,
) -> Result<CocoReport> {
    let kinds = comparable(detector, dataset);
    let mut evaluation = CocoEvaluation::new(dataset, &kinds)?;
    detect_images(
        dataset,
        &Plan::new(dataset, NonZeroUsize::MIN),
        &|_| true,
        &mut |images| detector.detect_batch(images),
        &mut |id, detections| evaluation.record(id, &detections),
        progress,
    )?;
    evaluation.finish()
}

/// What can be compared: boxes always, masks when the model makes them and the data set has outlines, keypoints when the
/// model finds them and the data set has some.
pub fn comparable(detector: &Detector, dataset: &CocoDataset) -> Vec<IouKind> {
    comparable_parts(detector.config().architecture.parts(), dataset)
}

/// The same for any model, from what it says of instances.
pub fn comparable_parts(parts: InstanceParts, dataset: &CocoDataset) -> Vec<IouKind> {
    [
        (true, IouKind::Box),
        (parts.masks && dataset.has_masks(), IouKind::Mask),
        (parts.keypoints.is_some() && dataset.has_keypoints(), IouKind::Keypoints),
    ]
    .into_iter()
    .filter_map(|(both, kind)| both.then_some(kind))
    .collect()
}
