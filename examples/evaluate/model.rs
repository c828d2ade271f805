//! Running a model over the images.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use candle_detection::checkpoint::sha256;
use candle_detection::config;
use candle_detection::eval::{
    CocoDataset, CocoEvaluation, CocoResult, IouKind, Journal, Plan, RunSettings, Shard, Start,
    comparable, detect_images,
};
use candle_detection::{Detector, DetectorBuilder, Event, Weights, device};
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};

use super::args::Args;
use super::{Outcome, kind_names};

pub fn run(args: &Args, dataset: CocoDataset, shard: Shard) -> Result<(CocoDataset, Outcome)> {
    dataset.check_files()?;
    let plan = Plan::new(&dataset, args.batch);
    let detector = build(args)?;
    let kinds = comparable(&detector, &dataset);
    let settings = settings(args, &detector, &plan, &kinds)?;
    let plan = plan.part(shard);
    let order = plan.image_ids();
    let mut journal = match &args.results {
        Some(path) => {
            let start = if args.resume { Start::Resume } else { Start::New };
            Some(Journal::open(path, &settings, shard, start)?)
        }
        None => None,
    };
    let kept = journal.as_ref().map_or(0, Journal::len);
    if kept > 0 {
        eprintln!("resuming after {kept} of {} images", order.len());
    }
    let mut results: HashMap<u64, Vec<CocoResult>> =
        journal.as_ref().map(Journal::read).transpose()?.unwrap_or_default().into_iter().collect();
    let done: std::collections::HashSet<u64> = results.keys().copied().collect();
    let bar = Bar::new(order.len(), kept);
    detect_images(
        &dataset,
        &plan,
        &|id| !done.contains(&id),
        &mut |images| detector.detect_batch(images),
        &mut |id, detections| {
            bar.detections.fetch_add(detections.instances.len(), Ordering::Relaxed);
            let found = CocoResult::from_detections(id, &detections);
            if let Some(journal) = &mut journal {
                journal.append(id, &found)?;
            }
            results.insert(id, found);
            Ok(())
        },
        &|event: Event<'_>| bar.report(event),
    )?;
    bar.bar.finish_and_clear();
    if let Some(journal) = journal {
        journal.finish(&order)?;
    }
    let dataset = dataset.restrict_to(&order)?;
    let mut evaluation = CocoEvaluation::with_options(&dataset, &kinds, args.options()?)?;
    for id in &order {
        evaluation.record_results(*id, &results[id])?;
    }
    let report = evaluation.finish()?;
    if shard != Shard::WHOLE {
        eprintln!("shard {shard}: these are the figures of {} images only", order.len());
    }
    Ok((dataset, Outcome { report, settings, results }))
}

/// The model evaluated when none is named.
const DEFAULT: &str = "maskrcnn_resnet50_fpn";

fn build(args: &Args) -> Result<Detector> {
    let weights = match &args.weights {
        Some(path) => Weights::File(path.clone()),
        None => Weights::Published,
    };
    let detector = DetectorBuilder::new(config::find(args.model.as_deref().unwrap_or(DEFAULT))?)
        .weights(weights)
        .device(device::parse(&args.device)?)
        .configure(|config| {
            config.image.min_size = args.min_size.unwrap_or(config.image.min_size);
            config.image.max_size = args.max_size.unwrap_or(config.image.max_size);
        });
    Ok(detector.build()?)
}

pub fn kinds_of(settings: &RunSettings) -> Vec<IouKind> {
    let names = settings.get("compares").unwrap_or_default();
    [IouKind::Box, IouKind::Mask, IouKind::Keypoints]
        .into_iter()
        .filter(|kind| names.split(',').any(|name| name == kind.name()))
        .collect()
}

/// Everything on which detections depend. Files count by content, so that they may be moved.
fn settings(
    args: &Args,
    detector: &Detector,
    plan: &Plan,
    kinds: &[IouKind],
) -> Result<RunSettings> {
    let config = detector.config();
    let weights = match &args.weights {
        Some(path) => sha256(path)?,
        None => "published".to_owned(),
    };
    let ids = plan.image_ids();
    let list: String = ids.iter().map(|id| format!("{id},")).collect();
    Ok(RunSettings::new()
        .set("model", &config.name)
        .set("model file", hex(&Sha256::digest(toml::to_string(config)?.as_bytes())))
        .set("weights", weights)
        .set("min_size", config.image.min_size)
        .set("max_size", config.image.max_size)
        .set("annotations", sha256(&args.annotations)?)
        .set("images", format!("{} ids, {}", ids.len(), hex(&Sha256::digest(list.as_bytes()))))
        .set("batch", args.batch)
        .set("device", if detector.device().is_cpu() { "cpu" } else { "cuda" })
        .set("compares", kind_names(kinds)))
}

/// The parts must have been made with the annotations that they are compared with.
pub fn check_annotations(args: &Args, settings: &RunSettings) -> Result<()> {
    let found = sha256(&args.annotations)?;
    let made_with = settings.get("annotations").unwrap_or("others");
    ensure!(
        found == made_with,
        "the shards were made with other annotations (sha256 {made_with}) than {} (sha256 {found})",
        args.annotations.display()
    );
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A progress bar; where there is no terminal, a line now and then.
struct Bar {
    bar: ProgressBar,
    detections: AtomicUsize,
    begun: Instant,
    kept: usize,
    lines: AtomicUsize,
}

impl Bar {
    /// Seconds between lines where there is no terminal.
    const PAUSE: u64 = 10;

    fn new(total: usize, kept: usize) -> Self {
        let style = "{bar:28} {pos}/{len} images · {msg} · {eta} left";
        let style =
            ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(total as u64).with_style(style).with_position(kept as u64);
        bar.reset_eta();
        bar.enable_steady_tick(Duration::from_millis(500));
        Self {
            bar,
            detections: AtomicUsize::new(0),
            begun: Instant::now(),
            kept,
            lines: AtomicUsize::new(0),
        }
    }

    fn report(&self, event: Event<'_>) -> ControlFlow<()> {
        if let Event::Evaluating { done, total, .. } = event {
            let seconds = self.begun.elapsed().as_secs_f64();
            let speed = done.saturating_sub(self.kept) as f64 / seconds.max(1e-9);
            let detections = self.detections.load(Ordering::Relaxed);
            let message = format!("{speed:.2} images/s · {detections} detections");
            let line = seconds as usize / Self::PAUSE as usize;
            if self.bar.is_hidden() && line > self.lines.fetch_max(line, Ordering::Relaxed) {
                let left = (total - done) as f64 / speed.max(1e-9);
                eprintln!("{done}/{total} images · {message} · {left:.0} s left");
            }
            self.bar.set_message(message);
            self.bar.set_position(done as u64);
        }
        ControlFlow::Continue(())
    }
}
