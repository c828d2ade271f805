//! The section `detections` of a model file, and the last step of every architecture: of overlapping candidates of a
//! class the best stays, and of these the best of the image.
//!
//! In: candidates, in whatever way they were found. Out: [`Instances`]. This room knows nothing of networks.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::ops::{Candidates, NmsParams, gather_slots, nms};
use crate::section::Checks;
use crate::structures::Instances;

/// Which candidates become detections. May be changed from call to call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DetectionsConfig {
    /// A candidate stays when its score is strictly greater.
    pub score_threshold: f32,
    /// A candidate is dropped when its IoU with a better one of its class is greater.
    pub nms_threshold: f64,
    /// Best detections kept per image: the capacity D of `Instances`.
    pub per_image: usize,
}

impl DetectionsConfig {
    /// Checks the numbers of the section.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), naming the field at fault.
    pub fn validate(&self, checks: &Checks) -> Result<()> {
        checks.at_least_one(&[("per_image", self.per_image)])?;
        checks.fractions(&[
            ("score_threshold", f64::from(self.score_threshold)),
            ("nms_threshold", self.nms_threshold),
        ])
    }
}

/// The candidates that no better one of their label overlaps; of these the best of each image, by descending score.
///
/// # Errors
/// Those of [`nms`] and [`gather_slots`].
pub fn best_instances(candidates: &Candidates, config: &DetectionsConfig) -> Result<Instances> {
    let Candidates { boxes, scores, labels, valid } = candidates;
    let params = NmsParams { iou_threshold: config.nms_threshold, capacity: config.per_image };
    let kept = nms(boxes, scores, labels, valid, &params)?;
    Ok(Instances {
        boxes: gather_slots(boxes, &kept.index, &kept.counts)?,
        scores: gather_slots(scores, &kept.index, &kept.counts)?,
        labels: gather_slots(labels, &kept.index, &kept.counts)?,
        counts: kept.counts,
    })
}
