//! How figures are taken.

use super::MaxDetections;
use crate::error::{Error, Result};

/// Limits and tolerances of the figures; COCO's by default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EvalOptions {
    /// Detections that count, of boxes and masks. Keypoints have one limit, 20 ([`KEYPOINT_DETECTIONS`]).
    pub max_detections: MaxDetections,
    /// How far each keypoint may be off.
    pub sigmas: KeypointSigmas,
}

impl From<MaxDetections> for EvalOptions {
    fn from(max_detections: MaxDetections) -> Self {
        Self { max_detections, ..Self::default() }
    }
}

/// How many detections of a category count in an image when keypoints are compared, best first.
pub const KEYPOINT_DETECTIONS: usize = 20;

/// How far each keypoint may be off, relative to the object's size: the standard deviation of several annotators'
/// places, in shares of the square root of the object's area.
#[derive(Debug, Clone, PartialEq)]
pub struct KeypointSigmas(Vec<f64>);

/// COCO's, of a person's 17 keypoints.
///
/// Source: pycocotools `cocoeval.py`, `setKpParams`.
const COCO: [f64; 17] = [
    0.26, 0.25, 0.25, 0.35, 0.35, 0.79, 0.79, 0.72, 0.72, 0.62, 0.62, 1.07, 1.07, 0.87, 0.87, 0.89,
    0.89,
];

impl Default for KeypointSigmas {
    /// COCO's, of a person's 17 keypoints.
    fn default() -> Self {
        Self(COCO.iter().map(|tenfold| tenfold / 10.0).collect())
    }
}

impl KeypointSigmas {
    /// One for each keypoint, above 0.
    ///
    /// # Errors
    /// [`Error::Config`] when there is none, or one is not a finite number above 0.
    pub fn new(sigmas: Vec<f64>) -> Result<Self> {
        let fault = |found: String| Error::Config {
            origin: "evaluation".to_owned(),
            field: "sigmas".to_owned(),
            found,
            expected: "a finite number above 0 for each keypoint, such as 0.05".to_owned(),
        };
        if sigmas.is_empty() {
            return Err(fault("empty".to_owned()));
        }
        match sigmas.iter().find(|&&sigma| !(sigma.is_finite() && sigma > 0.0)) {
            Some(wrong) => Err(fault(wrong.to_string())),
            None => Ok(Self(sigmas)),
        }
    }

    /// One for each keypoint, in order.
    pub fn values(&self) -> &[f64] {
        &self.0
    }
}
