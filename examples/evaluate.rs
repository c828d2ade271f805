//! COCO figures of a model, of a results file, or of the parts of a divided run.
//!
//! ```text
//! evaluate --annotations instances_val2017.json --images val2017 --results out.json --report report
//! evaluate --annotations instances_val2017.json --from-results out.json
//! evaluate --annotations instances_val2017.json --merge parts
//! ```
//! `docs/evaluation.md` is the guide.

#[path = "evaluate/args.rs"]
mod args;
#[path = "evaluate/model.rs"]
mod model;
#[path = "evaluate/output.rs"]
mod output;

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use candle_detection::eval::{
    CocoDataset, CocoEvaluation, CocoReport, CocoResult, IouKind, Merged, ResultsFile, RunSettings,
    evaluate_results,
};
use clap::Parser;

use args::{Args, Mode};

/// Feature maps are dropped and made anew all the time; see its documentation.
#[global_allocator]
static ALLOCATOR: candle_detection::memory::ReusingAllocator =
    candle_detection::memory::ReusingAllocator::new();

/// What every way of working ends with.
struct Outcome {
    report: CocoReport,
    settings: RunSettings,
    /// By image; filled when a report needs them.
    results: HashMap<u64, Vec<CocoResult>>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let dataset = open(&args)?;
    for finding in dataset.findings() {
        eprintln!("note: {finding}");
    }
    let (dataset, outcome) = match args.mode()? {
        Mode::Results(path) => {
            let outcome = from_results(&args, &dataset, &path)?;
            (dataset, outcome)
        }
        Mode::Merge(folder) => merge(&args, dataset, &folder)?,
        Mode::Model(shard) => model::run(&args, dataset, shard)?,
    };
    output::print(&args, &dataset, &outcome);
    if let Some(path) = &args.json {
        output::write_json(path, &outcome.report)?;
    }
    if let Some(folder) = &args.report {
        output::write_report(&args, folder, &dataset, &outcome)?;
    }
    Ok(())
}

fn open(args: &Args) -> Result<CocoDataset> {
    let folder = args.images.clone().unwrap_or_default();
    let mut dataset = CocoDataset::open(&args.annotations, &folder)?;
    if let Some(path) = &args.ids {
        let text =
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let ids: Vec<u64> = serde_json::from_slice(&text)
            .with_context(|| format!("{} is not a JSON list of image ids", path.display()))?;
        dataset = dataset.restrict_to(&ids)?;
    }
    if let Some(limit) = args.limit {
        dataset = dataset.first(limit);
    }
    ensure!(!dataset.images().is_empty(), "no image is left to evaluate");
    Ok(dataset)
}

fn from_results(args: &Args, dataset: &CocoDataset, path: &std::path::Path) -> Result<Outcome> {
    let file = ResultsFile::read(path)?;
    let report = evaluate_results(dataset, &file, args.options()?)?;
    let mut results: HashMap<u64, Vec<CocoResult>> = HashMap::new();
    if args.report.is_some() {
        for result in file.results() {
            results.entry(result.image_id).or_default().push(result.clone());
        }
    }
    let settings = RunSettings::new().set("results", path.display());
    Ok(Outcome { report, settings, results })
}

fn merge(
    args: &Args,
    dataset: CocoDataset,
    folder: &std::path::Path,
) -> Result<(CocoDataset, Outcome)> {
    let merged = Merged::read(folder)?;
    model::check_annotations(args, &merged.settings)?;
    if let Some(path) = &args.results {
        merged.write(path)?;
    }
    let dataset = dataset.restrict_to(&merged.image_ids())?;
    let kinds = model::kinds_of(&merged.settings);
    let mut evaluation = CocoEvaluation::with_options(&dataset, &kinds, args.options()?)?;
    for (id, results) in &merged.images {
        evaluation.record_results(*id, results)?;
    }
    let report = evaluation.finish()?;
    let results = merged.images.into_iter().collect();
    Ok((dataset, Outcome { report, settings: merged.settings, results }))
}

/// COCO's names of what is compared, for settings.
fn kind_names(kinds: &[IouKind]) -> String {
    kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(",")
}
