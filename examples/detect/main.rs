//! Finds the objects of photos: an annotated copy and a line per image, and COCO results as JSON.
//!
//!     cargo run --release --example detect
//!     cargo run --release --example detect -- --model maskrcnn_resnet50_fpn photo.jpg

mod inputs;
mod model;
mod output;
mod results;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::sync_channel;
use std::thread;

use anyhow::{Context, Result, ensure};
use candle_detection::structures::Detections;
use candle_detection::{DecodeOptions, Detector, ImageInput, Orientation};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};

/// Feature maps are dropped and made anew all the time; see its documentation.
#[global_allocator]
static ALLOCATOR: candle_detection::memory::ReusingAllocator =
    candle_detection::memory::ReusingAllocator::new();

/// Find the objects of photos with Mask R-CNN or Faster R-CNN.
#[derive(Debug, Parser)]
struct Args {
    /// A model of the catalogue, or a model file; without it, maskrcnn_resnet50_fpn where --weights are given, else
    /// maskrcnn_shapes, which comes with its weights and knows drawn shapes only.
    #[arg(long)]
    model: Option<String>,
    /// A safetensors file or PyTorch checkpoint; without it, the published weights are downloaded once.
    #[arg(long)]
    weights: Option<PathBuf>,
    /// cpu, cuda or cuda:N.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// What the network computes in, f32 or bf16. bf16 is faster and rounds: scores may differ by a few hundredths.
    #[arg(long, default_value = "f32")]
    dtype: String,
    /// Pixels of the shorter side after resizing; the model's own by default.
    #[arg(long)]
    min_size: Option<usize>,
    /// Cap on the longer side after resizing; the model's own by default.
    #[arg(long)]
    max_size: Option<usize>,
    /// Report objects with a score strictly above this.
    #[arg(long, default_value_t = 0.5)]
    score_threshold: f32,
    /// Images per forward pass.
    #[arg(long, default_value_t = 1)]
    batch: usize,
    /// Folder for the annotated copies.
    #[arg(long, default_value = "detections")]
    output: PathBuf,
    /// Write COCO results to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Take pixels as they are stored, instead of turning the picture upright.
    #[arg(long)]
    no_exif: bool,
    /// Images, folders or globs; without any, a drawn scene.
    #[arg(default_value = inputs::SCENE)]
    paths: Vec<String>,
}

/// An image on its way through the threads.
struct Job {
    path: PathBuf,
    image: Result<ImageInput>,
}

/// What became of an image.
struct Outcome {
    path: PathBuf,
    found: Result<(ImageInput, Detections)>,
}

/// Decoded images and finished ones that may wait: enough to keep all threads busy, little memory.
const WAITING: usize = 4;

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    ensure!(args.batch > 0, "--batch is 0, expected at least 1");
    let paths = inputs::expand(&args.paths)?;
    let images = paths.len() as u64;
    let (to_detect, decoded) = sync_channel::<Job>(WAITING.max(args.batch));
    let (to_write, finished) = sync_channel::<Outcome>(WAITING.max(args.batch));
    let options = decode_options(&args);

    // Decoding, inference, and drawing overlap, each on a thread of its own. The first images are decoded while the model
    // is loaded; should that fail, the receiver goes, which ends the thread.
    thread::spawn(move || {
        for path in paths {
            let image = ImageInput::open_with(&path, &options).map_err(anyhow::Error::from);
            if to_detect.send(Job { path, image }).is_err() {
                return;
            }
        }
    });
    let detector = model::load(&args)?;
    let mut writer =
        output::Writer::new(&args.output, args.json.as_deref(), detector.categories())?;
    let bar = progress_bar(images);
    let failures = thread::scope(|scope| -> Result<usize> {
        let detector = &detector;
        scope.spawn(move || {
            let mut batch = Vec::with_capacity(args.batch);
            loop {
                let job = decoded.recv().ok();
                let last = job.is_none();
                batch.extend(job);
                if batch.len() == args.batch || last {
                    for outcome in detect(detector, std::mem::take(&mut batch)) {
                        if to_write.send(outcome).is_err() {
                            return;
                        }
                    }
                }
                if last {
                    return;
                }
            }
        });
        let mut failures = 0;
        for outcome in finished {
            let line = outcome
                .found
                .and_then(|(image, found)| writer.write(&outcome.path, &image, &found));
            match line {
                Ok(line) => bar.suspend(|| println!("{line}")),
                Err(error) => {
                    failures += 1;
                    bar.suspend(|| eprintln!("{}: {error:#}", outcome.path.display()));
                }
            }
            bar.inc(1);
        }
        Ok(failures)
    })?;
    bar.finish_and_clear();
    writer.finish()?;
    if failures > 0 {
        eprintln!("{failures} images could not be processed");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn decode_options(args: &Args) -> DecodeOptions {
    let orientation = if args.no_exif { Orientation::Raw } else { Orientation::Upright };
    DecodeOptions { orientation, ..DecodeOptions::default() }
}

/// Runs the readable images of a batch together; an image that could not be read keeps its place and its error.
fn detect(detector: &Detector, batch: Vec<Job>) -> Vec<Outcome> {
    let images: Vec<ImageInput> =
        batch.iter().filter_map(|job| job.image.as_ref().ok().cloned()).collect();
    match detector.detect_batch(&images) {
        Ok(found) => {
            let mut found = found.into_iter();
            let outcome = |job: Job| Outcome {
                path: job.path,
                found: job.image.and_then(|image| {
                    let detections = found.next().context("an image without a result")?;
                    Ok((image, detections))
                }),
            };
            batch.into_iter().map(outcome).collect()
        }
        Err(error) => {
            let message = format!("{:#}", anyhow::Error::from(error));
            let failed = |job: Job| Outcome {
                path: job.path,
                found: job.image.and_then(|_| Err(anyhow::anyhow!(message.clone()))),
            };
            batch.into_iter().map(failed).collect()
        }
    }
}

fn progress_bar(images: u64) -> ProgressBar {
    if images < 2 {
        return ProgressBar::hidden();
    }
    let template = "{bar:40} {pos}/{len} images, {per_sec}, {eta} left";
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(images).with_style(style)
}
