//! COCO data sets and figures that can be trusted: the same as pycocotools', or an error that names the entry at fault.
//!
//! In: an annotation file, images or a results file. Out: a [`CocoReport`]. This room knows nothing of networks; it
//! takes finished [`Detections`](crate::structures::Detections). `docs/evaluation.md` is the guide.

mod dataset;
mod engine;
mod evaluation;
mod metrics;
mod results;
mod segmentation;

pub use dataset::{
    CocoAnnotation, CocoCategory, CocoDataset, CocoImage, CocoSample, Coverage, Finding,
    FindingKind, Tolerance,
};
pub use evaluation::{CocoEvaluation, evaluate_results};
pub use metrics::{
    CategoryMetrics, CocoMetrics, CocoReport, IOU_THRESHOLDS, IouKind, MaxDetections, PrCurve,
    Unlisted,
};
pub use results::{CocoResult, MASK_THRESHOLD, ResultsFile, write_results};
pub use segmentation::Segmentation;
