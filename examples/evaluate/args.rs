//! The command line.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use candle_detection::eval::{EvalOptions, KeypointSigmas, MaxDetections, Shard};
use clap::Parser;

/// COCO figures of a model, of a results file, or of the parts of a divided run.
#[derive(Debug, Parser)]
pub struct Args {
    /// Name of a built-in model, or a model file (.toml); maskrcnn_resnet50_fpn if not given.
    #[arg(long, value_name = "NAME|FILE")]
    pub model: Option<String>,
    /// Weights; the model's published ones if not given.
    #[arg(long, value_name = "FILE")]
    pub weights: Option<PathBuf>,
    /// COCO annotation file.
    #[arg(long, value_name = "FILE")]
    pub annotations: PathBuf,
    /// Folder that the annotation file's names of images are relative to.
    #[arg(long, value_name = "DIR")]
    pub images: Option<PathBuf>,
    /// Only these images: a JSON list of ids.
    #[arg(long, value_name = "FILE")]
    pub ids: Option<PathBuf>,
    /// Only the first images by id.
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Shorter side of a resized image in pixels; the model's own if not given.
    #[arg(long, value_name = "N")]
    pub min_size: Option<usize>,
    /// Longest side of a resized image in pixels; the model's own if not given.
    #[arg(long, value_name = "N")]
    pub max_size: Option<usize>,
    /// Images looked at together.
    #[arg(long, default_value = "1", value_name = "N")]
    pub batch: NonZeroUsize,
    /// cpu, cuda or cuda:N.
    #[arg(long, default_value = "cpu", value_name = "D")]
    pub device: String,
    /// Write the detections in COCO's results format; they are kept in OUT.json.journal as they come.
    #[arg(long, value_name = "OUT.json")]
    pub results: Option<PathBuf>,
    /// Go on with an interrupted run.
    #[arg(long, requires = "results")]
    pub resume: bool,
    /// Do part I of N, counted from 0; taken from Slurm's or Kubernetes' environment if not given.
    #[arg(long, value_name = "I/N", requires = "results")]
    pub shard: Option<String>,
    /// Put the parts of a divided run together: a folder with their results.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["from_results", "resume", "shard"])]
    pub merge: Option<PathBuf>,
    /// Evaluate a results file; no model is needed.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["results", "resume", "shard"])]
    pub from_results: Option<PathBuf>,
    /// Write a report page to DIR/index.html.
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// Three limits on detections per image and category.
    #[arg(long, default_value = "1,10,100", value_delimiter = ',', value_name = "A,B,C")]
    pub max_dets: Vec<usize>,
    /// How far each keypoint may be off, in shares of the square root of the object's area; COCO's 17 if not given.
    #[arg(long, value_delimiter = ',', value_name = "A,B,…")]
    pub sigmas: Vec<f64>,
    /// Write every figure as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Where detections come from.
pub enum Mode {
    /// A results file.
    Results(PathBuf),
    /// A folder with the parts of a run.
    Merge(PathBuf),
    /// A model, looking at all images or a part of them.
    Model(Shard),
}

impl Args {
    pub fn mode(&self) -> Result<Mode> {
        if let Some(path) = &self.from_results {
            return Ok(Mode::Results(path.clone()));
        }
        if let Some(folder) = &self.merge {
            return Ok(Mode::Merge(folder.clone()));
        }
        ensure!(self.images.is_some(), "--images DIR is needed to run a model");
        let shard = match &self.shard {
            Some(text) => Some(Shard::parse(text)?),
            None => Shard::from_environment(|name| std::env::var(name).ok())?,
        };
        let shard = shard.unwrap_or(Shard::WHOLE);
        if shard != Shard::WHOLE && self.results.is_none() {
            bail!("shard {shard} needs --results OUT.json, for --merge to find it");
        }
        Ok(Mode::Model(shard))
    }

    /// How figures are taken.
    pub fn options(&self) -> Result<EvalOptions> {
        let [few, some, most] = self.max_dets[..] else {
            bail!("--max-dets takes three limits, such as 1,10,100");
        };
        let sigmas = match self.sigmas.is_empty() {
            true => KeypointSigmas::default(),
            false => KeypointSigmas::new(self.sigmas.clone())?,
        };
        Ok(EvalOptions { max_detections: MaxDetections::new([few, some, most])?, sigmas })
    }
}
