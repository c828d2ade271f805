//! The model: which one, with which weights.

use anyhow::{Context, Result};
use candle_detection::{Detector, DetectorBuilder, Event, Weights, config, device};
use indicatif::{ProgressBar, ProgressStyle};

use super::Args;

/// The model that lies in this repository with its weights.
const SHAPES: &str = "maskrcnn_shapes";
const SHAPES_WEIGHTS: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/weights/maskrcnn_shapes.safetensors");
/// The model that weight files are taken for.
const USUAL: &str = "maskrcnn_resnet50_fpn";

/// The name of the model, and its weights.
fn choose(args: &Args) -> (&str, Weights) {
    match (args.model.as_deref(), &args.weights) {
        (model, Some(file)) => (model.unwrap_or(USUAL), Weights::File(file.clone())),
        (Some(SHAPES), None) => (SHAPES, Weights::File(SHAPES_WEIGHTS.into())),
        (Some(model), None) => (model, Weights::Published),
        (None, None) => {
            eprintln!(
                "{SHAPES}, the model that comes along, knows drawn shapes only; for photos, --model {USUAL}"
            );
            (SHAPES, Weights::File(SHAPES_WEIGHTS.into()))
        }
    }
}

/// Loads the model that the command line asks for.
pub fn load(args: &Args) -> Result<Detector> {
    let (name, weights) = choose(args);
    let bar = ProgressBar::hidden();
    let builder = DetectorBuilder::new(config::find(name)?)
        .weights(weights)
        .device(device::parse(&args.device)?)
        .dtype(args.dtype.parse().with_context(|| format!("--dtype {}", args.dtype))?)
        .score_threshold(args.score_threshold)
        .configure(|config| {
            config.image.min_size = args.min_size.unwrap_or(config.image.min_size);
            config.image.max_size = args.max_size.unwrap_or(config.image.max_size);
        })
        .progress(move |event: Event<'_>| {
            if let Event::Downloading { file, done, total } = event {
                if bar.is_hidden() {
                    bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
                    bar.set_style(download_style());
                    bar.set_message(file.to_owned());
                }
                bar.set_length(total.unwrap_or(done));
                bar.set_position(done);
            }
            std::ops::ControlFlow::Continue(())
        });
    builder.build().with_context(|| format!("cannot load {name}"))
}

fn download_style() -> ProgressStyle {
    let template = "{msg} {bar:40} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left";
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
