//! Times whole forward passes, photo to detections, and prints the figures as text or as one JSON object.
//!
//!     cargo run --release --example bench -- --weights FILE --image photo.jpg --iterations 5

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use candle_detection::{Detector, ImageInput, Weights, device, transform};
use clap::{Parser, ValueEnum};
use serde_json::{Value, json};

/// Time Mask R-CNN on one image.
#[derive(Debug, Parser)]
struct Args {
    /// What is timed.
    #[arg(long, value_enum, default_value = "eval")]
    mode: Mode,
    /// A model of the catalogue.
    #[arg(long, default_value = "maskrcnn_resnet50_fpn")]
    model: String,
    /// cpu.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// f32.
    #[arg(long, default_value = "f32")]
    dtype: String,
    /// A safetensors file or PyTorch checkpoint; random weights without it.
    #[arg(long)]
    weights: Option<PathBuf>,
    /// The photo; a grey square of 480×640 without it.
    #[arg(long)]
    image: Option<PathBuf>,
    /// Pixels of the shorter side after resizing.
    #[arg(long)]
    min_size: Option<usize>,
    /// Cap on the longer side after resizing.
    #[arg(long)]
    max_size: Option<usize>,
    /// Forward passes that count, after one that does not.
    #[arg(long, default_value_t = 3)]
    iterations: usize,
    /// Times of each stage as well.
    #[arg(long)]
    stages: bool,
    /// Write one JSON object to this file, or to standard output for `-`.
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, ValueEnum)]
enum Mode {
    Eval,
    Train,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if args.mode == Mode::Train {
        bail!("--mode train: training is not built yet");
    }
    ensure!(args.dtype == "f32", "--dtype {}: only f32 is built", args.dtype);
    ensure!(args.iterations > 0, "--iterations is 0, expected at least 1");
    let detector = load(&args)?;
    let image = match &args.image {
        Some(path) => ImageInput::open(path)?,
        None => ImageInput::from_rgb8(640, 480, vec![128; 640 * 480 * 3])?,
    };
    let detections = detector.detect(&image)?.instances.len();
    let seconds = sorted_times(args.iterations, || detector.detect(&image).map(drop))?;
    let median = seconds[seconds.len() / 2];
    let figures = json!({
        "mode": "eval",
        "device": args.device,
        "dtype": args.dtype,
        "threads": rayon::current_num_threads(),
        "iterations": args.iterations,
        "median_s": median,
        "min_s": seconds[0],
        "max_s": seconds[seconds.len() - 1],
        "cpu_wall_ms": median * 1e3,
        "peak_memory_bytes": peak_memory(),
        "detections": detections,
    });
    report(&args, &figures)?;
    if args.stages {
        print_stages(&detector, &image, args.iterations)?;
    }
    Ok(())
}

fn load(args: &Args) -> Result<Detector> {
    let weights = match &args.weights {
        Some(path) => Weights::File(path.clone()),
        None => Weights::Random { seed: 0 },
    };
    let builder = Detector::builder(&args.model)?
        .weights(weights)
        .device(device::parse(&args.device)?)
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
    let predicted = network.rpn.predict(&features)?;
    let proposals = network.rpn.propose(&predicted, &batch.geometry)?.trim_to_counts()?;
    let detect = || {
        let config = &settings.detections;
        network.roi_heads.detect(&features, &proposals, &batch.geometry, config)?.trim_to_counts()
    };
    let instances = detect()?;

    let stage = |name: &str, work: &dyn Fn() -> candle_detection::Result<()>| -> Result<()> {
        let seconds = sorted_times(iterations, work)?;
        eprintln!("{name:>18}  {:8.2} ms", seconds[seconds.len() / 2] * 1e3);
        Ok(())
    };
    stage("transform", &|| to_batch().map(drop))?;
    stage("backbone", &|| network.backbone.forward(&batch.pixels).map(drop))?;
    stage("rpn head", &|| network.rpn.predict(&features).map(drop))?;
    stage("rpn proposals", &|| network.rpn.propose(&predicted, &batch.geometry).map(drop))?;
    stage("roi heads", &|| detect().map(drop))?;
    for head in &network.instance_heads {
        stage(head.name(), &|| head.forward(&features, &instances, &batch.geometry).map(drop))?;
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
