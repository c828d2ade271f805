//! The folder of a run, and what must not change when the run is resumed.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use candle_detection::checkpoint::sha256;
use candle_detection::config::ModelConfig;
use candle_detection::eval::RunSettings;

use super::args::Args;
use super::ranks::Ranks;

/// Processes of the run; folders that don't say are of one.
const RANKS: &str = "ranks";

/// Makes the folder of a run with its model file, or checks that it is the folder of this one.
pub fn open_folder(
    args: &Args,
    ranks: &Ranks,
    config: &ModelConfig,
    annotations: &Path,
) -> Result<()> {
    let settings = settings(args, config, annotations)?.set(RANKS, ranks.count());
    let path = args.out.join("settings.json");
    if !path.exists() {
        fs::create_dir_all(&args.out)
            .with_context(|| format!("cannot make {}", args.out.display()))?;
        write(&args.out.join("model.toml"), &toml::to_string(config)?)?;
        return write(&path, &serde_json::to_string_pretty(&settings)?);
    }
    let out = args.out.display();
    if !args.resume {
        bail!("{out} holds a run; add --resume to go on with it, or give another --out");
    }
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let before: RunSettings =
        serde_json::from_str(&text).with_context(|| format!("{} is damaged", path.display()))?;
    for (name, value) in settings.iter() {
        let unsaid = if name == RANKS { "1" } else { "not set" };
        let old = before.get(name).unwrap_or(unsaid);
        if old != value {
            bail!(
                "the run in {out} has {name} {old}, not {value}; it can be resumed as it was begun"
            );
        }
    }
    Ok(())
}

/// Everything on which the weights depend. Files count by content, so that they may be moved.
fn settings(args: &Args, config: &ModelConfig, annotations: &Path) -> Result<RunSettings> {
    let Args { data, model, course, variety, .. } = args;
    let weights = match &model.weights {
        Some(path) => sha256(path)?,
        None if model.from_scratch => "random".to_owned(),
        None => "published".to_owned(),
    };
    let mut settings = RunSettings::new()
        .set("annotations", sha256(annotations)?)
        .set("keep_empty", data.keep_empty)
        .set("model", toml::to_string(config)?)
        .set("weights", weights)
        .set("freeze", model.freeze.map_or("usual".to_owned(), |stages| stages.to_string()))
        .set("seed", args.seed);
    for flags in [serde_json::to_value(course)?, serde_json::to_value(variety)?] {
        for (name, value) in flags.as_object().into_iter().flatten() {
            settings = settings.set(name, value);
        }
    }
    Ok(settings)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
