//! Data sets, and how images are varied.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use candle_detection::config::ModelConfig;
use candle_detection::dataset::CocoDataset;
use candle_detection::structures::ImageSize;
use candle_detection::train::augment::{Augmentation, ColorJitter, CopyPaste, LargeScaleJitter};
use candle_detection::train::{Loader, LoaderOptions, Part, TrainingSet, Unlabelled};

use super::args::{Args, VarietyArgs};

/// A folder that holds a data set, or an annotation file with the folder of its images.
pub fn open(place: &Path, images: Option<&Path>) -> Result<CocoDataset> {
    let dataset = match (place.is_dir(), images) {
        (true, None) => CocoDataset::open_folder(place)?,
        (false, Some(images)) => CocoDataset::open(place, images)?,
        (true, Some(_)) => {
            bail!(
                "{} is a folder, which holds its images; give the annotation file",
                place.display()
            )
        }
        (false, None) => bail!("{} is no folder; say where its images are", place.display()),
    };
    for finding in dataset.findings() {
        eprintln!("note: {}: {finding}", dataset.path().display());
    }
    Ok(dataset)
}

pub fn validation(args: &Args) -> Result<Option<CocoDataset>> {
    let Some(place) = &args.data.val else { return Ok(None) };
    let mut dataset = open(place, args.data.val_images.as_deref())?;
    if let Some(limit) = args.data.val_limit {
        dataset = dataset.first(limit);
    }
    dataset.check_files()?;
    Ok(Some(dataset))
}

pub fn training_set(
    args: &Args,
    dataset: CocoDataset,
    config: &ModelConfig,
) -> Result<TrainingSet> {
    let needs = config.architecture.parts().into();
    let unlabelled = if args.data.keep_empty { Unlabelled::Keep } else { Unlabelled::Skip };
    let set = TrainingSet::new(dataset, config.num_classes, needs, unlabelled)?;
    let left_out = set.left_out().to_string();
    if !left_out.is_empty() {
        eprintln!("{left_out}");
    }
    Ok(set)
}

pub fn loader(
    args: &Args,
    part: Part,
    set: Arc<TrainingSet>,
    config: &ModelConfig,
) -> Result<Loader> {
    let options = LoaderOptions {
        augmentation: augmentation(&args.variety, config)?,
        min_sizes: min_sizes(&args.variety, config)?,
        threads: args.threads,
        ahead: args.threads.get() + 2,
        part,
        ..LoaderOptions::new(args.course.batch_size, args.seed)
    };
    Ok(Loader::new(set, options)?)
}

/// With a canvas of fixed size, images are not resized again.
fn min_sizes(variety: &VarietyArgs, config: &ModelConfig) -> Result<Vec<usize>> {
    let Some(side) = canvas(variety, config) else {
        let chosen = [&variety.multi_scale, &config.image.training_min_sizes];
        return Ok(chosen.into_iter().find(|sizes| !sizes.is_empty()).cloned().unwrap_or_default());
    };
    ensure!(
        side <= config.image.max_size,
        "--large-scale-jitter {side} is beyond the model's max_size, {}",
        config.image.max_size
    );
    Ok(vec![side])
}

fn canvas(variety: &VarietyArgs, config: &ModelConfig) -> Option<usize> {
    let usual = (config.image.min_size * 5 / 4).next_multiple_of(config.image.size_divisor);
    variety.large_scale_jitter.map(|side| side.unwrap_or(usual))
}

fn augmentation(variety: &VarietyArgs, config: &ModelConfig) -> Result<Augmentation> {
    ensure!((0.0..=1.0).contains(&variety.flip), "--flip is a probability, from 0 to 1");
    let large_scale = match canvas(variety, config) {
        None => None,
        Some(side) => {
            let [least, most] = variety.jitter_scale[..] else {
                bail!("--jitter-scale takes two factors, such as 0.1,2");
            };
            ensure!(0.0 < least && least <= most, "--jitter-scale ascends from above 0");
            Some(LargeScaleJitter {
                size: ImageSize { height: side, width: side },
                scale: (least, most),
                fill: config.image.mean.map(|mean| (mean * 255.0).round() as u8),
                copy_paste: variety.copy_paste.then(CopyPaste::default),
            })
        }
    };
    Ok(Augmentation {
        flip: variety.flip,
        color: variety.color_jitter.then(ColorJitter::default),
        large_scale,
    })
}
