//! The command line.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args as Group, Parser, ValueEnum};
use serde::Serialize;

/// Trains a model on a data set in COCO's format.
#[derive(Debug, Parser)]
pub struct Args {
    #[command(flatten)]
    pub data: DataArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub course: CourseArgs,
    #[command(flatten)]
    pub variety: VarietyArgs,
    /// Folder of the run: snapshots, weights, model file, logs.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Go on with the run in --out.
    #[arg(long)]
    pub resume: bool,
    /// Epochs between two evaluations; the last epoch is always evaluated.
    #[arg(long, default_value = "1", value_name = "N")]
    pub evaluate_every: NonZeroUsize,
    /// Updates between two snapshots within an epoch; there is one after each epoch.
    #[arg(long, value_name = "N")]
    pub save_every: Option<NonZeroUsize>,
    /// Snapshots to keep.
    #[arg(long, default_value = "2", value_name = "N")]
    pub keep: usize,
    /// Updates between two lines of the logs; on a GPU, losses are read and shown only then.
    #[arg(long, default_value = "10", value_name = "N")]
    pub log_every: NonZeroUsize,
    /// Everything that is random follows from it.
    #[arg(long, default_value = "1", value_name = "N")]
    pub seed: u64,
    /// Threads that decode and vary images.
    #[arg(long, default_value = "2", value_name = "N")]
    pub threads: NonZeroUsize,
    /// cpu, cuda or cuda:N; for processes started by torchrun, srun or mpirun, cuda, which is then a GPU for each.
    #[arg(long, default_value = "cpu", value_name = "D")]
    pub device: String,
}

#[derive(Debug, Group)]
#[command(next_help_heading = "Data")]
pub struct DataArgs {
    /// Training set: a folder with annotations.json and images, or an annotation file.
    #[arg(long, value_name = "DIR|FILE")]
    pub train: PathBuf,
    /// Folder of the training set's images, where --train is a file.
    #[arg(long, value_name = "DIR")]
    pub images: Option<PathBuf>,
    /// Validation set, in either form; without one nothing is evaluated.
    #[arg(long, value_name = "DIR|FILE")]
    pub val: Option<PathBuf>,
    /// Folder of the validation set's images, where --val is a file.
    #[arg(long, value_name = "DIR", requires = "val")]
    pub val_images: Option<PathBuf>,
    /// Evaluate the first images by id only.
    #[arg(long, value_name = "N", requires = "val")]
    pub val_limit: Option<usize>,
    /// Train on images without objects too.
    #[arg(long)]
    pub keep_empty: bool,
}

#[derive(Debug, Group)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// Name of a built-in model, or a model file (.toml).
    #[arg(long, default_value = "maskrcnn_resnet50_fpn", value_name = "NAME|FILE")]
    pub model: String,
    /// Weights to start from; the model's published ones if not given.
    #[arg(long, value_name = "FILE", conflicts_with = "from_scratch")]
    pub weights: Option<PathBuf>,
    /// Start from random weights.
    #[arg(long)]
    pub from_scratch: bool,
    /// Stages of the backbone that stay as they are, of five (the stem counts): 2, or 0 from scratch, if not given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=5))]
    pub freeze: Option<u8>,
    /// Pixels of the shorter side after resizing, in place of the model's; part of the trained model.
    #[arg(long, value_name = "N")]
    pub min_size: Option<usize>,
    /// Cap on the longer side after resizing, likewise.
    #[arg(long, value_name = "N")]
    pub max_size: Option<usize>,
}

#[derive(Debug, Group, Serialize)]
#[command(next_help_heading = "Course")]
pub struct CourseArgs {
    /// Passes over the training set.
    #[arg(long, default_value = "12", value_name = "N", conflicts_with = "iterations")]
    pub epochs: u64,
    /// Updates, in place of epochs.
    #[arg(long, value_name = "N")]
    pub iterations: Option<u64>,
    /// Images of a batch, for each process.
    #[arg(long, default_value = "2", value_name = "N")]
    pub batch_size: NonZeroUsize,
    /// Batches whose gradients make one update.
    #[arg(long, default_value = "1", value_name = "N")]
    pub accumulate: NonZeroUsize,
    /// How gradients change the weights.
    #[arg(long, value_enum, default_value = "sgd", value_name = "O")]
    pub optimizer: OptimizerName,
    /// Learning rate; if not given, 0.02 per 16 images of an update for sgd, 0.0001 for adamw.
    #[arg(long, value_name = "X")]
    pub lr: Option<f64>,
    /// Momentum of sgd.
    #[arg(long, default_value = "0.9", value_name = "X")]
    pub momentum: f64,
    /// Decay of the weights; if not given, 0.0001 for sgd, 0.05 for adamw.
    #[arg(long, value_name = "X")]
    pub weight_decay: Option<f64>,
    /// The learning rate over the run: constant; a tenth after two thirds and again after eight ninths; half a cosine.
    #[arg(long, value_enum, default_value = "steps", value_name = "S")]
    pub schedule: ScheduleName,
    /// Updates until the rate is whole; 1000, or one epoch where that is shorter, if not given.
    #[arg(long, value_name = "N")]
    pub warm_up: Option<u64>,
    /// Longest gradient, over all parameters; longer ones are shortened to it.
    #[arg(long, value_name = "X")]
    pub clip: Option<f64>,
    /// Keep a running average of the weights with this decay, such as 0.9998, and evaluate that.
    #[arg(long, value_name = "X")]
    pub ema: Option<f64>,
}

#[derive(Debug, Group, Serialize)]
#[command(next_help_heading = "Variety")]
pub struct VarietyArgs {
    /// How often images are mirrored.
    #[arg(long, default_value = "0.5", value_name = "P")]
    pub flip: f64,
    /// Shorter sides in pixels, one of which is drawn for each batch, such as 640,672,704,736,768,800.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "A,B,…",
        conflicts_with = "large_scale_jitter"
    )]
    pub multi_scale: Vec<usize>,
    /// Vary brightness, contrast, saturation and hue.
    #[arg(long)]
    pub color_jitter: bool,
    /// Scale by 0.1 to 2 and show a part on a square canvas, whose side may be given; five fourths of the model's shorter
    /// side if not.
    #[arg(long, value_name = "SIDE", num_args = 0..=1)]
    #[expect(clippy::option_option, reason = "how clap spells a flag that may have a value")]
    pub large_scale_jitter: Option<Option<usize>>,
    /// Least and largest scale of that.
    #[arg(long, value_delimiter = ',', default_value = "0.1,2", value_name = "A,B")]
    pub jitter_scale: Vec<f64>,
    /// Paste objects of other images, in half of the images.
    #[arg(long, requires = "large_scale_jitter")]
    pub copy_paste: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerName {
    /// Gradient descent with momentum.
    Sgd,
    /// The same with Nesterov's momentum.
    Nesterov,
    /// Adam with decay apart from the gradient.
    Adamw,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ScheduleName {
    Constant,
    Steps,
    Cosine,
}
