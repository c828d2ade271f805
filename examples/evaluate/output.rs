//! What is printed and written at the end.

use std::path::Path;

use anyhow::{Context, Result};
use candle_detection::config;
use candle_detection::eval::report::ReportPage;
use candle_detection::eval::{Analysis, CocoDataset, CocoReport, IouKind};

use super::Outcome;
use super::args::Args;

/// Detections below this score are not shown as mistakes in the report.
const SHOWN_FROM: f64 = 0.5;

/// Images of COCO val2017.
const VAL2017: usize = 5000;

pub fn print(args: &Args, dataset: &CocoDataset, outcome: &Outcome) {
    let report = &outcome.report;
    print!("{report}");
    if !report.per_kind.contains_key(&IouKind::Mask) && !dataset.has_masks() {
        let instead = match report.per_kind.contains_key(&IouKind::Keypoints) {
            true => "masks were not compared",
            false => "only boxes were compared",
        };
        eprintln!("note: the data set has no outlines; {instead}");
    }
    if report.unlisted.detections > 0 {
        eprintln!(
            "note: {} detections are of categories that the data set does not list ({:?}); they were left out",
            report.unlisted.detections, report.unlisted.categories
        );
    }
    if dataset.images().len() == VAL2017 {
        print_published(args, outcome);
    }
}

/// What is claimed of a model's published weights, beside what was measured.
fn print_published(args: &Args, outcome: &Outcome) {
    let model = args.model.as_deref().or(outcome.settings.get("model"));
    // Results may be of any model; nothing is claimed of one that isn't known.
    let Some(config) = model.and_then(|model| config::find(model).ok()) else { return };
    let report = &outcome.report;
    for weights in config.weights {
        for (kind, published) in [
            (IouKind::Box, weights.box_ap),
            (IouKind::Mask, weights.mask_ap),
            (IouKind::Keypoints, weights.keypoint_ap),
        ] {
            let measured = report.per_kind.get(&kind).and_then(|metrics| metrics.ap);
            if let (Some(measured), Some(published)) = (measured, published) {
                println!(
                    "{} {}, {} AP: measured {:.2}, published {published:.1}",
                    config.name,
                    weights.version,
                    kind.name(),
                    100.0 * measured
                );
            }
        }
    }
}

pub fn write_json(path: &Path, report: &CocoReport) -> Result<()> {
    let text = serde_json::to_string_pretty(report)?;
    std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
}

pub fn write_report(
    args: &Args,
    folder: &Path,
    dataset: &CocoDataset,
    outcome: &Outcome,
) -> Result<()> {
    let results_of = |id: u64| outcome.results.get(&id).map_or(&[][..], Vec::as_slice);
    let analysis = Analysis::new(dataset, &results_of, SHOWN_FROM);
    let name = args.annotations.file_stem().unwrap_or_default().to_string_lossy();
    let title = match outcome.settings.get("model") {
        Some(model) => format!("{model} on {name}"),
        None => format!("Results on {name}"),
    };
    let page = ReportPage {
        title: &title,
        settings: &outcome.settings,
        dataset,
        report: &outcome.report,
        analysis: &analysis,
        results_of: &results_of,
    };
    let path = page.write(folder)?;
    eprintln!("report: {}", path.display());
    Ok(())
}
