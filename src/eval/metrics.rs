//! COCO's figures, typed.

use std::collections::BTreeMap;
use std::fmt;

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::error::{Error, Result};

/// The IoU thresholds over which AP and AR are averaged: 0.50, 0.55, … 0.95. Look a threshold up by its position: the
/// values are COCO's own, some of them a rounding away from the decimal.
pub const IOU_THRESHOLDS: [f64; 10] = iou_thresholds();

/// What numpy's `linspace(0.5, 0.95, 10)` computes, to the last bit.
const fn iou_thresholds() -> [f64; 10] {
    let step = (0.95 - 0.5) / 9.0;
    let mut thresholds = [0.95; 10];
    let mut at = 0;
    while at < 9 {
        thresholds[at] = at as f64 * step + 0.5;
        at += 1;
    }
    thresholds
}

/// What is compared when a detection is matched to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IouKind {
    /// Boxes; COCO calls it `bbox`.
    Box,
    /// Masks; COCO calls it `segm`.
    Mask,
    /// Keypoints, by their similarity (OKS) in place of an IoU; COCO calls it `keypoints`.
    Keypoints,
}

impl IouKind {
    /// COCO's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Box => "bbox",
            Self::Mask => "segm",
            Self::Keypoints => "keypoints",
        }
    }
}

/// How many detections of a category count in an image, best first: three limits, ascending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxDetections([usize; 3]);

impl Default for MaxDetections {
    /// COCO's 1, 10 and 100.
    fn default() -> Self {
        Self([1, 10, 100])
    }
}

impl MaxDetections {
    /// Three different limits, at least 1. AP, and AR by size, are reported at the largest.
    ///
    /// # Errors
    /// [`Error::Config`] when the limits are not ascending.
    pub fn new(limits: [usize; 3]) -> Result<Self> {
        if limits[0] == 0 || !limits.is_sorted_by(|a, b| a < b) {
            return Err(Error::Config {
                origin: "evaluation".to_owned(),
                field: "max_dets".to_owned(),
                found: format!("{limits:?}"),
                expected: "three ascending limits from 1 on, such as [1, 10, 100]".to_owned(),
            });
        }
        Ok(Self(limits))
    }

    /// The limits, ascending.
    pub fn limits(self) -> [usize; 3] {
        self.0
    }
}

/// Precision over recall at one IoU threshold, at the largest limit and over all sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct PrCurve {
    /// The IoU from which a detection counts as right.
    pub iou: f64,
    /// 101 values: the best precision at recall 0.00, 0.01, … 1.00 or beyond, 0 where that recall is never reached.
    pub precision: Vec<f64>,
    /// The score at which each of these is reached; 0 where it never is.
    pub scores: Vec<f64>,
    /// The recall that all detections together reach.
    pub max_recall: f64,
}

/// The figures of one category, at the largest limit and over all sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct CategoryMetrics {
    /// AP over all thresholds; none for a category without objects.
    pub ap: Option<f64>,
    /// AP at IoU 0.50.
    pub ap50: Option<f64>,
    /// AP at IoU 0.75.
    pub ap75: Option<f64>,
    /// AR over all thresholds.
    pub ar: Option<f64>,
    /// Objects in the data set, crowds not counted.
    pub objects: usize,
    /// Detections, beyond the limit too.
    pub detections: usize,
    /// One curve per entry of [`IOU_THRESHOLDS`]; none for a category without objects.
    pub curves: Vec<PrCurve>,
}

impl CategoryMetrics {
    pub(super) fn new(curves: Vec<PrCurve>, objects: usize, detections: usize) -> Self {
        let known = |curve: &&PrCurve| curve.precision.iter().all(|&value| value >= 0.0);
        let curves: Vec<PrCurve> =
            if curves.iter().all(|curve| known(&curve)) { curves } else { Vec::new() };
        let ap_at = |at: usize| curves.get(at).map(|curve| mean(&curve.precision));
        let over_all = |values: Vec<f64>| (!values.is_empty()).then(|| mean(&values));
        Self {
            ap: over_all(curves.iter().flat_map(|curve| curve.precision.clone()).collect()),
            ap50: ap_at(0),
            ap75: ap_at(5),
            ar: over_all(curves.iter().map(|curve| curve.max_recall).collect()),
            objects,
            detections,
            curves,
        }
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// COCO's figures, twelve of boxes or masks and ten of keypoints, and what they are made of: fractions, none where there
/// is nothing to find (pycocotools has −1), or where the kind of comparison has no such figure.
#[derive(Debug, Clone, PartialEq)]
pub struct CocoMetrics {
    /// What was compared.
    pub kind: IouKind,
    /// AP over all thresholds.
    pub ap: Option<f64>,
    /// AP at IoU 0.50.
    pub ap50: Option<f64>,
    /// AP at IoU 0.75.
    pub ap75: Option<f64>,
    /// AP of objects up to 32² square pixels; not of keypoints.
    pub ap_small: Option<f64>,
    /// AP of objects from 32² to 96² square pixels.
    pub ap_medium: Option<f64>,
    /// AP of objects from 96² square pixels on.
    pub ap_large: Option<f64>,
    /// AR at the smallest limit of [`Self::max_detections`], 1 by default; not of keypoints.
    pub ar1: Option<f64>,
    /// AR at the middle limit, 10 by default; not of keypoints.
    pub ar10: Option<f64>,
    /// AR at the largest limit, 100 by default; of keypoints at their only one, 20.
    pub ar100: Option<f64>,
    /// AR at OKS 0.50; of keypoints only.
    pub ar50: Option<f64>,
    /// AR at OKS 0.75; of keypoints only.
    pub ar75: Option<f64>,
    /// AR of small objects; not of keypoints.
    pub ar_small: Option<f64>,
    /// AR of medium objects.
    pub ar_medium: Option<f64>,
    /// AR of large objects.
    pub ar_large: Option<f64>,
    /// The limits the figures were taken at, ascending: three, or one for keypoints.
    pub max_detections: Vec<usize>,
    /// The figures of each category of the data set, by id.
    pub per_category: BTreeMap<u64, CategoryMetrics>,
}

impl CocoMetrics {
    /// The figures in pycocotools' order, −1 where there is nothing to find: twelve, or ten of keypoints.
    pub fn stats(&self) -> Vec<f64> {
        let of_keypoints = [
            self.ap,
            self.ap50,
            self.ap75,
            self.ap_medium,
            self.ap_large,
            self.ar100,
            self.ar50,
            self.ar75,
            self.ar_medium,
            self.ar_large,
        ];
        let of_others = [
            self.ap,
            self.ap50,
            self.ap75,
            self.ap_small,
            self.ap_medium,
            self.ap_large,
            self.ar1,
            self.ar10,
            self.ar100,
            self.ar_small,
            self.ar_medium,
            self.ar_large,
        ];
        let figures = match self.kind {
            IouKind::Keypoints => &of_keypoints[..],
            IouKind::Box | IouKind::Mask => &of_others,
        };
        figures.iter().map(|figure| figure.unwrap_or(-1.0)).collect()
    }

    /// Thresholds, sizes and limits of the figures, in the words of pycocotools.
    fn rows(&self) -> Vec<(&'static str, &'static str, usize)> {
        let all = "0.50:0.95";
        let most = self.max_detections.last().copied().unwrap_or_default();
        let limit = |at: usize| self.max_detections.get(at).copied().unwrap_or(most);
        match self.kind {
            IouKind::Keypoints => {
                [(all, "all"), ("0.50", "all"), ("0.75", "all"), (all, "medium"), (all, "large")]
                    .repeat(2)
                    .into_iter()
                    .map(|(iou, size)| (iou, size, most))
                    .collect()
            }
            IouKind::Box | IouKind::Mask => vec![
                (all, "all", most),
                ("0.50", "all", most),
                ("0.75", "all", most),
                (all, "small", most),
                (all, "medium", most),
                (all, "large", most),
                (all, "all", limit(0)),
                (all, "all", limit(1)),
                (all, "all", most),
                (all, "small", most),
                (all, "medium", most),
                (all, "large", most),
            ],
        }
    }

    /// Names of the figures in JSON, in the order of [`Self::stats`].
    pub fn names(&self) -> &'static [&'static str] {
        match self.kind {
            IouKind::Keypoints => &Self::KEYPOINT_NAMES,
            IouKind::Box | IouKind::Mask => &Self::NAMES,
        }
    }

    /// The mean of all categories' curves at one entry of [`IOU_THRESHOLDS`]; none when there is nothing to find.
    pub fn mean_curve(&self, threshold: usize) -> Option<PrCurve> {
        let curves: Vec<&PrCurve> = self
            .per_category
            .values()
            .filter_map(|category| category.curves.get(threshold))
            .collect();
        let over = |value: &dyn Fn(&PrCurve) -> f64| {
            curves.iter().map(|curve| value(curve)).sum::<f64>() / curves.len() as f64
        };
        let first = curves.first()?;
        let points = 0..first.precision.len();
        Some(PrCurve {
            iou: first.iou,
            precision: points.clone().map(|at| over(&|curve| curve.precision[at])).collect(),
            scores: points.map(|at| over(&|curve| curve.scores[at])).collect(),
            max_recall: over(&|curve| curve.max_recall),
        })
    }

    /// Names of the ten figures of keypoints in JSON; `ar` is [`Self::ar100`].
    pub const KEYPOINT_NAMES: [&'static str; 10] = [
        "ap",
        "ap50",
        "ap75",
        "ap_medium",
        "ap_large",
        "ar",
        "ar50",
        "ar75",
        "ar_medium",
        "ar_large",
    ];

    /// Names of the twelve figures of boxes and masks in JSON.
    pub const NAMES: [&'static str; 12] = [
        "ap",
        "ap50",
        "ap75",
        "ap_small",
        "ap_medium",
        "ap_large",
        "ar1",
        "ar10",
        "ar100",
        "ar_small",
        "ar_medium",
        "ar_large",
    ];
}

impl fmt::Display for CocoMetrics {
    /// pycocotools' table, line by line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((iou, size, limit), (name, figure)) in
            self.rows().into_iter().zip(self.names().iter().zip(self.stats()))
        {
            let (name, short) = match name.starts_with("ap") {
                true => ("Average Precision", "(AP)"),
                false => ("Average Recall", "(AR)"),
            };
            writeln!(
                f,
                " {name:<18} {short} @[ IoU={iou:<9} | area={size:>6} | maxDets={limit:>3} ] = {figure:.3}"
            )?;
        }
        Ok(())
    }
}

impl Serialize for CocoMetrics {
    /// The figures by name, then `per_category` with the AP of each id; −1 where there is nothing to find.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, figure) in self.names().iter().zip(self.stats()) {
            map.serialize_entry(name, &figure)?;
        }
        let per_category: BTreeMap<u64, f64> =
            self.per_category.iter().map(|(&id, c)| (id, c.ap.unwrap_or(-1.0))).collect();
        map.serialize_entry("per_category", &per_category)?;
        map.end()
    }
}

/// Detections of categories that the data set does not list: they cannot be right or wrong, and are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unlisted {
    /// How many.
    pub detections: usize,
    /// Of which categories.
    pub categories: Vec<u64>,
}

/// The outcome of an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct CocoReport {
    /// The figures of each kind of comparison.
    pub per_kind: BTreeMap<IouKind, CocoMetrics>,
    /// Images evaluated.
    pub images: usize,
    /// Detections evaluated.
    pub detections: usize,
    /// Detections left out.
    pub unlisted: Unlisted,
}

impl fmt::Display for CocoReport {
    /// pycocotools' table for each kind.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (kind, metrics) in &self.per_kind {
            write!(f, "Evaluate annotation type *{}*\n{metrics}", kind.name())?;
        }
        Ok(())
    }
}

impl Serialize for CocoReport {
    /// `{"bbox": {…}, "segm": {…}, "keypoints": {…}}`, a kind only where it was compared.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.per_kind.iter().map(|(kind, metrics)| (kind.name(), metrics)))
    }
}
