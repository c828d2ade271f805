//! The run: what of the command line goes into a `Trainer`, and what becomes of its reports.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use candle_core::Device;
use candle_detection::Error;
use candle_detection::config::ModelConfig;
use candle_detection::dataset::CocoDataset;
use candle_detection::train::{
    BatchSource, Flow, Losses, Milestone, Network, Observer, RunFolder, Snapshot, StepReport,
    Trainer, TrainingSet,
};

use super::args::Args;
use super::logs::{Logs, StepFigures};
use super::progress::Meter;
use super::ranks::{Connection, Ranks};
use super::{course, data, evaluation};

/// What is learned from, and what is evaluated.
pub struct Data {
    pub set: TrainingSet,
    pub validation: Option<CocoDataset>,
}

/// Trains to the end of the run, from its last snapshot on where it is resumed.
pub fn run(
    args: &Args,
    ranks: &Ranks,
    config: &ModelConfig,
    network: Network,
    data: Data,
    device: Device,
) -> Result<()> {
    let mut loader = data::loader(args, ranks.part(), Arc::new(data.set), config)?;
    let batches = loader.batches_per_epoch();
    let options = course::options(args, batches, ranks.count(), &device);
    let total = options.length.updates(options.updates_per_epoch(batches));
    let folder = RunFolder::new(&args.out, args.keep);
    // Last, as ranks that are connected wait for each other, also for one that has failed.
    let Connection { communicator, close } = ranks.connect(&device)?;
    let losses = network.loss_names().clone();
    let mut trainer = Trainer::new(network, options, Some(folder.clone()), communicator)?;
    if args.resume {
        match trainer.resume()? {
            Some(step) => eprintln!("going on after {step} of {total} updates"),
            None => {
                eprintln!("{} has no snapshot: starting from the beginning", args.out.display())
            }
        }
    }
    if !ranks.is_first() {
        trainer.run(&mut loader, &mut Quiet)?;
        return Ok(close()?);
    }
    let step = trainer.numbers().step;
    let mut reporter = Reporter {
        log_every: args.log_every.get() as u64,
        config,
        validation: data.validation,
        device,
        folder: folder.clone(),
        logs: Logs::open(&args.out, step, &losses)?,
        meter: Meter::new(total, step, ranks.count()),
        window: Vec::new(),
    };
    if let Err(error) = trainer.run(&mut loader, &mut reporter) {
        return Err(explain(error, &folder));
    }
    reporter.meter.finish();
    reporter.logs.summarize()?;
    keep_last(&folder)?;
    Ok(close()?)
}

/// What other ranks than the first have to say.
struct Quiet;

impl Observer for Quiet {
    fn step(&mut self, _: &StepReport) -> candle_detection::Result<Flow> {
        Ok(Flow::Continue)
    }

    fn evaluate(&mut self, _: &Milestone<'_>) -> candle_detection::Result<Option<f64>> {
        Ok(None)
    }
}

/// Logs, evaluates, and tells how the run is doing.
struct Reporter<'a> {
    log_every: u64,
    config: &'a ModelConfig,
    validation: Option<CocoDataset>,
    device: Device,
    folder: RunFolder,
    logs: Logs,
    meter: Meter,
    /// Losses since the last line of the log.
    window: Vec<Losses>,
}

impl Observer for Reporter<'_> {
    fn step(&mut self, report: &StepReport) -> candle_detection::Result<Flow> {
        self.meter.update(report);
        self.window.push(report.losses.clone());
        if report.step.is_multiple_of(self.log_every) || report.step == report.steps {
            let mean = Losses::mean(&self.window).unwrap_or_else(|| report.losses.clone());
            let figures = StepFigures {
                epoch: report.epochs,
                rate: report.rate,
                images_per_second: self.meter.speed(),
                losses: mean,
            };
            self.logs.step(report.step, &figures)?;
            self.window.clear();
        }
        Ok(Flow::Continue)
    }

    fn evaluate(&mut self, milestone: &Milestone<'_>) -> candle_detection::Result<Option<f64>> {
        let (Some(dataset), Some(weights)) = (&self.validation, milestone.weights()) else {
            return Ok(None);
        };
        let Milestone { step, epochs, .. } = *milestone;
        // A resumed run has its last evaluation already, unless it was interrupted just before.
        if let Some(figures) = self.logs.evaluated(step)? {
            return Ok(Some(evaluation::score(figures)));
        }
        let figures = evaluation::evaluate(self.config, &weights, dataset, &self.device)?;
        self.logs.evaluation(step, epochs, figures)?;
        self.logs.summarize()?;
        let score = evaluation::score(figures);
        let is_best = self.folder.best_score()?.is_none_or(|best| score > best);
        let mark = if is_best { " (the best so far)" } else { "" };
        let figures = evaluation::describe(figures);
        self.meter.say(&format!("after {step} updates, {epochs:.1} epochs: {figures}{mark}"));
        self.meter.pause();
        Ok(Some(score))
    }
}

/// Says what to do about losses that are not finite, and where the state before them is.
fn explain(error: Error, folder: &RunFolder) -> anyhow::Error {
    if !matches!(error, Error::NonFinite { .. }) {
        return error.into();
    }
    let failed = folder.failed();
    let state = match failed.snapshots() {
        Ok(found) if !found.is_empty() => format!("the state is in {}", failed.path().display()),
        _ => "the state could not be saved".to_owned(),
    };
    anyhow::Error::from(error)
        .context(format!("stopped; {state}; try a lower --lr, a longer --warm-up, or --clip"))
}

/// The weights of the end, under a name that doesn't depend on the length of the run.
fn keep_last(folder: &RunFolder) -> Result<()> {
    let snapshots = folder.snapshots()?;
    let last = snapshots.last().map(Snapshot::weights).context("the run left no snapshot")?;
    let path = folder.path().join("last.safetensors");
    copy(&last, &path)?;
    eprintln!("last weights: {}", path.display());
    if folder.best().exists() {
        eprintln!("best weights: {}", folder.best().display());
    }
    Ok(())
}

/// Copies a file so that its place never holds half of it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let beside = to.with_extension("tmp");
    fs::copy(from, &beside)
        .and_then(|_| fs::rename(&beside, to))
        .with_context(|| format!("cannot write {}", to.display()))
}
