//! Trains a model on a data set in COCO's format, from published weights, weights of your own, or nothing.
//!
//! ```text
//! train --train cards/train --val cards/val --out runs/cards --epochs 12
//! train --train cards/train --val cards/val --out runs/cards --epochs 12 --resume
//! detect --model runs/cards/model.toml --weights runs/cards/best.safetensors photo.jpg
//! ```
//! Started by torchrun, srun or mpirun, the processes train together, on a GPU each (feature `nccl`).
//! `docs/fine-tuning.md` is the guide.

#[path = "train/args.rs"]
mod args;
#[path = "train/course.rs"]
mod course;
#[path = "train/data.rs"]
mod data;
#[path = "train/evaluation.rs"]
mod evaluation;
#[path = "train/logs.rs"]
mod logs;
#[path = "train/model.rs"]
mod model;
#[path = "train/progress.rs"]
mod progress;
#[path = "train/ranks.rs"]
mod ranks;
#[path = "train/run.rs"]
mod run;
#[path = "train/settings.rs"]
mod settings;

use anyhow::Result;
use clap::Parser;

use args::Args;
use ranks::Ranks;

/// Feature maps and gradients are dropped and made anew all the time; see its documentation.
#[global_allocator]
static ALLOCATOR: candle_detection::memory::ReusingAllocator =
    candle_detection::memory::ReusingAllocator::new();

fn main() -> Result<()> {
    let args = Args::parse();
    let ranks = Ranks::from_environment()?;
    let device = ranks.device(&args.device)?;
    let dataset = data::open(&args.data.train, args.data.images.as_deref())?;
    let config = model::describe(&args.model, &dataset)?;
    let set = data::training_set(&args, dataset, &config)?;
    let validation = if ranks.is_first() { data::validation(&args)? } else { None };
    if ranks.is_first() {
        settings::open_folder(&args, &ranks, &config, set.dataset().path())?;
    }
    let network = model::load(&args, &config, &device)?;
    eprintln!(
        "{} images, {} classes, {} values to train",
        set.images().len(),
        config.num_classes - 1,
        network.parameters().trainable().iter().map(|p| p.var.elem_count()).sum::<usize>()
    );
    run::run(&args, &ranks, &config, network, run::Data { set, validation }, device)
}
