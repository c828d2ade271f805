//! COCO data sets and figures that can be trusted: the same as pycocotools', or an error that names the entry at fault.
//!
//! In: an annotation file, images or a results file. Out: a [`CocoReport`]. This room knows nothing of networks; it
//! takes finished [`Detections`](crate::structures::Detections). `docs/evaluation.md` is the guide.

mod analysis;
mod dataset;
mod engine;
mod evaluation;
mod journal;
mod metrics;
pub mod report;
mod results;
mod run;
mod segmentation;
mod shard;

pub use analysis::{Analysis, Bin, Fate, ImageOutcome, Judgement, SCORE_BINS, SIZE_BINS, Verdict};
pub use dataset::{
    CocoAnnotation, CocoCategory, CocoDataset, CocoImage, CocoSample, Coverage, Finding,
    FindingKind, Tolerance,
};
pub use evaluation::{CocoEvaluation, evaluate_results};
pub use journal::{Journal, Merged, RunSettings, Start};
pub use metrics::{
    CategoryMetrics, CocoMetrics, CocoReport, IOU_THRESHOLDS, IouKind, MaxDetections, PrCurve,
    Unlisted,
};
pub use results::{CocoResult, MASK_THRESHOLD, ResultsFile, write_results};
pub use run::detect_images;
pub use segmentation::Segmentation;
pub use shard::{Plan, Shard};
