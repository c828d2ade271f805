//! How well the weights of a file detect.

use std::path::Path;

use candle_core::Device;
use candle_detection::config::ModelConfig;
use candle_detection::dataset::CocoDataset;
use candle_detection::eval::{self, CocoReport, IouKind};
use candle_detection::{DetectorBuilder, Result, Silent, Weights};

/// Names of the figures of an evaluation, as the logs have them.
pub const FIGURES: [&str; 6] =
    ["box_ap", "box_ap50", "mask_ap", "mask_ap50", "keypoint_ap", "keypoint_ap50"];

/// COCO's figures in percent, in the order of [`FIGURES`]; `None` for what the model or the data set does not have.
pub type Figures = [Option<f64>; 6];

pub fn evaluate(
    config: &ModelConfig,
    weights: &Path,
    dataset: &CocoDataset,
    device: &Device,
) -> Result<Figures> {
    let detector = DetectorBuilder::new(config.clone())
        .weights(Weights::File(weights.to_owned()))
        .device(device.clone())
        .build()?;
    Ok(figures(&eval::evaluate(&detector, dataset, &Silent)?))
}

fn figures(report: &CocoReport) -> Figures {
    let percent = |kind: IouKind| {
        let metrics = report.per_kind.get(&kind);
        let figure = |value: Option<f64>| value.map(|value| 100.0 * value);
        [figure(metrics.and_then(|m| m.ap)), figure(metrics.and_then(|m| m.ap50))]
    };
    let [box_ap, box_ap50] = percent(IouKind::Box);
    let [mask_ap, mask_ap50] = percent(IouKind::Mask);
    let [keypoint_ap, keypoint_ap50] = percent(IouKind::Keypoints);
    [box_ap, box_ap50, mask_ap, mask_ap50, keypoint_ap, keypoint_ap50]
}

/// What the best weights are best at: AP of the keypoints, else of the masks, else of the boxes.
pub fn score([box_ap, _, mask_ap, _, keypoint_ap, _]: Figures) -> f64 {
    keypoint_ap.or(mask_ap).or(box_ap).unwrap_or(0.0)
}

pub fn describe(figures: Figures) -> String {
    let named = FIGURES.iter().zip(figures);
    let shown =
        named.filter_map(|(name, value)| Some(format!("{} {:.1}", name.replace('_', " "), value?)));
    shown.collect::<Vec<_>>().join(", ")
}
