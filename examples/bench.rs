//! Times whole forward passes, photo to detections, or whole training steps, and prints the figures as text or as one
//! JSON object.
//!
//! ```text
//! bench --weights FILE --image photo.jpg --iterations 5
//! bench --mode train --weights FILE --annotations instances_val2017.json --image-dir val2017
//! ```

#[path = "bench/gpu.rs"]
mod gpu;
#[path = "bench/growth.rs"]
mod growth;
#[path = "bench/train.rs"]
mod train;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use candle_detection::dataset::CocoDataset;
use candle_detection::rcnn::GeneralizedRcnn;
use candle_detection::{Detector, ImageInput, Weights, device, transform};
use clap::{Parser, ValueEnum};
use serde_json::{Value, json};

/// Feature maps are dropped and made anew all the time; see its documentation.
#[global_allocator]
static ALLOCATOR: candle_detection::memory::ReusingAllocator =
    candle_detection::memory::ReusingAllocator::new();

/// Time Mask R-CNN on one image.
#[derive(Debug, Parser)]
struct Args {
    /// What is timed.
    #[arg(long, value_enum, default_value = "eval")]
    mode: Mode,
    /// A model of the catalogue.
    #[arg(long, default_value = "maskrcnn_resnet50_fpn")]
    model: String,
    /// cpu, cuda or cuda:N.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// f32 or bf16.
    #[arg(long, default_value = "f32")]
    dtype: String,
    /// A safetensors file or PyTorch checkpoint; random weights without it.
    #[arg(long)]
    weights: Option<PathBuf>,
    /// The photo; a grey square of 480×640 without it. In training it has synthetic objects.
    #[arg(long)]
    image: Option<PathBuf>,
    /// COCO annotations, whose first photo is taken instead; in training the first with objects.
    #[arg(long, requires = "image_dir", conflicts_with = "growth")]
    annotations: Option<PathBuf>,
    /// Folder of the photos of --annotations.
    #[arg(long, requires = "annotations")]
    image_dir: Option<PathBuf>,
    /// A JSON list of the ids of --annotations to choose from.
    #[arg(long, requires = "annotations")]
    ids: Option<PathBuf>,
    /// Pixels of the shorter side after resizing.
    #[arg(long)]
    min_size: Option<usize>,
    /// Cap on the longer side after resizing.
    #[arg(long)]
    max_size: Option<usize>,
    /// Passes or steps that count, after one that does not.
    #[arg(long, default_value_t = 3)]
    iterations: usize,
    /// Times of each stage as well.
    #[arg(long)]
    stages: bool,
    /// Time other sizes, batches and numbers of detections instead, and draw them to this SVG file.
    #[arg(long)]
    growth: Option<PathBuf>,
    /// Write one JSON object to this file, or to standard output for `-`.
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, ValueEnum)]
enum Mode {
    /// A forward pass, photo to detections.
    Eval,
    /// A training step: forward, losses, backward, update.
    Train,
}

fn main() -> Result<()> {
    let args = Args::parse();
    ensure!(args.iterations > 0, "--iterations is 0, expected at least 1");
    if args.mode == Mode::Train {
        return train::run(&args);
    }
    let detector = load(&args)?;
    let image = photo(&args)?;
    if let Some(chart) = &args.growth {
        return growth::run(&detector, &image, args.iterations, chart);
    }
    let detections = detector.detect(&image)?.instances.len();
    let seconds = sorted_times(args.iterations, || detector.detect(&image).map(drop))?;
    let (median_s, min_s, max_s) = median(seconds);
    let settings = detector.settings();
    let dispatch = sorted_times(args.iterations, || {
        let batch = detector.detect_on_device(std::slice::from_ref(&image), &settings);
        batch.map(drop)
    })?;
    let mut figures = json!({
        "mode": "eval",
        "device": args.device,
        "dtype": args.dtype,
        "threads": rayon::current_num_threads(),
        "iterations": args.iterations,
        "median_s": median_s,
        "min_s": min_s,
        "max_s": max_s,
        "cpu_dispatch_ms": dispatch[dispatch.len() / 2] * 1e3,
        "cpu_wall_ms": median_s * 1e3,
        "images_per_s": 1.0 / median_s,
        "peak_memory_bytes": peak_memory(),
        "detections": detections,
    });
    let forward = || Ok(detector.detect(&image).map(drop)?);
    let on_gpu = gpu::figures(detector.device(), args.iterations, forward)?;
    figures.as_object_mut().into_iter().for_each(|all| all.extend(on_gpu.clone()));
    report(&args, &figures)?;
    if args.stages {
        print_stages(&detector, &image, args.iterations)?;
    }
    Ok(())
}

/// The photo that the command line names.
fn photo(args: &Args) -> Result<ImageInput> {
    if let Some(dataset) = dataset(args)? {
        let sample = dataset.samples().next().context("--annotations has no image")?;
        return Ok(sample.image()?);
    }
    Ok(match &args.image {
        Some(path) => ImageInput::open(path)?,
        None => ImageInput::from_rgb8(640, 480, vec![128; 640 * 480 * 3])?,
    })
}

fn dataset(args: &Args) -> Result<Option<CocoDataset>> {
    let (Some(annotations), Some(images)) = (&args.annotations, &args.image_dir) else {
        return Ok(None);
    };
    let dataset = CocoDataset::open(annotations, images)?;
    let Some(path) = &args.ids else { return Ok(Some(dataset)) };
    let cannot = || format!("--ids {}", path.display());
    let text = std::fs::read_to_string(path).with_context(cannot)?;
    let ids: Vec<u64> = serde_json::from_str(&text).with_context(cannot)?;
    Ok(Some(dataset.restrict_to(&ids)?))
}

fn load(args: &Args) -> Result<Detector> {
    let weights = match &args.weights {
        Some(path) => Weights::File(path.clone()),
        None => Weights::Random { seed: 0 },
    };
    let builder = Detector::builder(&args.model)?
        .weights(weights)
        .device(device::parse(&args.device)?)
        .dtype(args.dtype.parse().with_context(|| format!("--dtype {}", args.dtype))?)
        .configure(|config| {
            config.image.min_size = args.min_size.unwrap_or(config.image.min_size);
            config.image.max_size = args.max_size.unwrap_or(config.image.max_size);
        });
    builder.build().with_context(|| format!("cannot load {}", args.model))
}

fn sorted_times(
    iterations: usize,
    mut work: impl FnMut() -> candle_detection::Result<()>,
) -> Result<Vec<f64>> {
    let mut seconds = Vec::with_capacity(iterations);
    for _ in 0..iterations {
        let start = Instant::now();
        work()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds)
}

/// Median, least and largest of at least one.
fn median(mut seconds: Vec<f64>) -> (f64, f64, f64) {
    seconds.sort_by(f64::total_cmp);
    let middle = seconds.len() / 2;
    let lower = if seconds.len().is_multiple_of(2) { middle - 1 } else { middle };
    let median = (seconds[lower] + seconds[middle]) / 2.0;
    (median, seconds[0], seconds[seconds.len() - 1])
}

fn report(args: &Args, figures: &Value) -> Result<()> {
    match &args.json {
        Some(path) if path.as_os_str() == "-" => println!("{figures}"),
        Some(path) => std::fs::write(path, format!("{figures}\n"))
            .with_context(|| format!("cannot write {}", path.display()))?,
        None => {
            for (name, value) in figures.as_object().into_iter().flatten() {
                println!("{name:>18}  {value}");
            }
        }
    }
    Ok(())
}

/// The stages on the same input, each timed alone; medians in milliseconds, on standard error.
fn print_stages(detector: &Detector, image: &ImageInput, iterations: usize) -> Result<()> {
    let network = detector.network();
    let settings = detector.settings();
    let images = std::slice::from_ref(image);
    let to_batch =
        || transform::to_batch(images, &settings.image, detector.device(), detector.dtype());
    let batch = to_batch()?;
    let features = network.backbone.forward(&batch.pixels)?;
    let config = &settings.detections;
    let detect = || network.architecture.detect(&features, &batch.geometry, config);

    let stage = |name: &str, work: &dyn Fn() -> candle_detection::Result<()>| -> Result<()> {
        let seconds = sorted_times(iterations, work)?;
        eprintln!("{name:>18}  {:8.2} ms", seconds[seconds.len() / 2] * 1e3);
        Ok(())
    };
    stage("transform", &|| to_batch().map(drop))?;
    stage("backbone", &|| network.backbone.forward(&batch.pixels).map(drop))?;
    stage("architecture", &|| detect().map(drop))?;
    if let Some(rcnn) = network.parts::<GeneralizedRcnn>() {
        let (geometry, limits) = (&batch.geometry, rcnn.rpn.limits());
        let predicted = rcnn.rpn.predict(&features)?;
        let propose = || rcnn.rpn.propose(&predicted, geometry, limits);
        let proposals = propose()?.trim_to_counts()?;
        let detect = || rcnn.roi_heads.detect(&features, &proposals, geometry, config);
        let instances = detect()?.trim_to_counts()?;
        stage("rpn head", &|| rcnn.rpn.predict(&features).map(drop))?;
        stage("rpn proposals", &|| propose().map(drop))?;
        stage("roi heads", &|| detect().map(drop))?;
        for head in &rcnn.instance_heads {
            stage(head.name(), &|| head.forward(&features, &instances, geometry).map(drop))?;
        }
    }
    Ok(())
}

/// The most memory that the process held, where the system tells.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes * 1024)
}
