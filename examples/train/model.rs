//! The model that is trained: a description that fits the data, and first weights.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use candle_core::Device;
use candle_detection::checkpoint::{self, Checkpoint};
use candle_detection::config::{self, CategorySource, ModelConfig};
use candle_detection::dataset::CocoDataset;
use candle_detection::train::{Freezing, Network};
use candle_detection::{LoadReport, Loading, Mismatches, Silent};

use super::args::{Args, ModelArgs};

/// Parts of a backbone that learn, from the last on, where the first weights come from a file: torchvision's default.
const USUALLY_TRAINED: usize = 3;
/// More classes than this are a mistake, such as ids that are not counted from 1.
const MOST_CLASSES: u64 = 10_000;

/// Describes the model of a data set: that of the command line, with the data set's categories and the sizes wanted.
pub fn describe(args: &ModelArgs, dataset: &CocoDataset) -> Result<ModelConfig> {
    let mut config = config::find(&args.model)?;
    config.image.min_size = args.min_size.unwrap_or(config.image.min_size);
    config.image.max_size = args.max_size.unwrap_or(config.image.max_size);
    if starts_at_random(args, &config) {
        learn_norms(&mut config);
    }
    config.validate(&config.name)?;
    let names: BTreeMap<u64, &str> =
        dataset.categories().iter().map(|category| (category.id, category.name.as_str())).collect();
    let known = config.label_map()?;
    let fits = names
        .iter()
        .all(|(&id, name)| u32::try_from(id).is_ok_and(|id| known.name(id) == Some(*name)));
    if fits {
        return Ok(config);
    }
    let last = names.keys().next_back().copied().unwrap_or(0);
    ensure!(
        !names.contains_key(&0),
        "category 0 (`{}`): 0 is the background; number the categories from 1 on",
        names[&0]
    );
    ensure!(
        (1..MOST_CLASSES).contains(&last),
        "category ids go up to {last}; number the categories from 1 on"
    );
    config.num_classes = last as usize + 1;
    let entries = names.iter().map(|(id, name)| (id.to_string(), (*name).to_owned()));
    config.categories = CategorySource::Inline(entries.collect());
    config.name = format!("{}_{}", config.name, "finetuned");
    // What is claimed of the published files is not true of this model.
    config.weights.clear();
    config.validate(&config.name)?;
    Ok(config)
}

fn starts_at_random(args: &ModelArgs, config: &ModelConfig) -> bool {
    args.from_scratch || (args.weights.is_none() && config.weights.is_empty())
}

/// Fixed norms repeat the statistics of the weights they came with; without such weights they would norm nothing.
fn learn_norms(config: &mut ModelConfig) {
    config.body.learn_norms();
    config.weights.clear();
}

/// Where first weights come from.
pub enum Start {
    File(PathBuf),
    Random,
}

impl Start {
    pub fn new(args: &ModelArgs) -> Result<Self> {
        if args.from_scratch {
            return Ok(Self::Random);
        }
        if let Some(path) = &args.weights {
            return Ok(Self::File(path.clone()));
        }
        let published = config::find(&args.model)?.weights;
        match published.first() {
            Some(weights) => Ok(Self::File(checkpoint::fetch(weights, &Silent)?)),
            None => Ok(Self::Random),
        }
    }
}

/// Builds the network with its first weights, and says what became of the file's.
pub fn load(args: &Args, config: &ModelConfig, device: &Device) -> Result<Network> {
    let start = Start::new(&args.model)?;
    let parts = config.backbone_parts().len();
    let usual = match start {
        Start::File(_) => parts.saturating_sub(USUALLY_TRAINED),
        Start::Random => 0,
    };
    let frozen = args.model.freeze.map_or(usual, usize::from);
    let freezing = Freezing::backbone(config, parts.saturating_sub(frozen));
    let path = match start {
        Start::Random => {
            eprintln!(
                "{}: random weights, all of the backbone but {frozen} stages trained",
                config.name
            );
            return Ok(Network::from_random(config, args.seed, freezing, device)?);
        }
        Start::File(path) => path,
    };
    let checkpoint = Checkpoint::open(&path)?;
    let loading = Loading::Partial { seed: args.seed };
    let (network, report) =
        Network::from_checkpoint(config, checkpoint, loading, freezing, device)?;
    eprintln!("{}: {} stages of the backbone are frozen", path.display(), frozen);
    say(&path, &report)?;
    Ok(network)
}

/// Layers whose shape follows from the number of classes.
const PREDICTORS: [&str; 2] =
    ["roi_heads.box_predictor.", "roi_heads.mask_predictor.mask_fcn_logits."];

/// What starts anew must be seen: a file of another model would train, too, and never well.
fn say(path: &Path, report: &LoadReport) -> Result<()> {
    let Mismatches { missing, wrong_shape, unexpected, .. } = &report.mismatches;
    ensure!(report.loaded > 0, "{} has no tensor of this model", path.display());
    let fresh: Vec<&str> = missing
        .iter()
        .map(|(name, _)| name.as_str())
        .chain(wrong_shape.iter().map(|tensor| tensor.name.as_str()))
        .collect();
    let (predictors, others): (Vec<&str>, Vec<&str>) =
        fresh.iter().partition(|name| PREDICTORS.iter().any(|prefix| name.starts_with(prefix)));
    eprintln!("{} tensors from {}", report.loaded, path.display());
    if !predictors.is_empty() {
        eprintln!(
            "the number of classes differs: the predictors start from random weights ({})",
            predictors.join(", ")
        );
    }
    if !others.is_empty() {
        eprintln!("not in the file, so from random weights: {}", others.join(", "));
    }
    if !unexpected.is_empty() {
        eprintln!("{} tensors of the file are of no use to the model", unexpected.len());
    }
    Ok(())
}
