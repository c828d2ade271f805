//! Batches of a training set, made ahead.

use std::num::NonZeroUsize;
use std::sync::Arc;

use super::TrainingSet;
use super::prefetch::Prefetch;
use crate::error::{Error, Result};
use crate::train::augment::{Augmentation, LabelledImage};
use crate::train::{Batch, BatchSource, Position, Random};

/// Which part of each batch of a run over several processes this one serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Counted from 0.
    pub rank: usize,
    /// Processes in all.
    pub of: NonZeroUsize,
}

impl Part {
    /// A run of one process.
    pub const WHOLE: Self = Self { rank: 0, of: NonZeroUsize::MIN };
}

/// How batches are made.
#[derive(Debug, Clone, PartialEq)]
pub struct LoaderOptions {
    /// Images of a batch.
    pub batch_size: NonZeroUsize,
    /// Order of the images and all that is random about them.
    pub seed: u64,
    /// How images are varied.
    pub augmentation: Augmentation,
    /// Shorter sides to choose from, batch by batch, in pixels; the model's own where there is none.
    pub min_sizes: Vec<usize>,
    /// Threads that decode and augment.
    pub threads: NonZeroUsize,
    /// Batches that may wait, finished or in work.
    pub ahead: usize,
    /// This process.
    pub part: Part,
}

impl LoaderOptions {
    /// One process, two threads, four batches ahead, nothing varied.
    pub fn new(batch_size: NonZeroUsize, seed: u64) -> Self {
        Self {
            batch_size,
            seed,
            augmentation: Augmentation::default(),
            min_sizes: Vec::new(),
            threads: NonZeroUsize::MIN.saturating_add(1),
            ahead: 4,
            part: Part::WHOLE,
        }
    }
}

/// What random numbers serve.
mod purpose {
    pub const ORDER: u64 = 0;
    pub const IMAGE: u64 = 1;
    pub const SIZE: u64 = 2;
}

/// Makes batches ahead of who asks for them.
///
/// An epoch shows every image once, in an order of its own; images that don't fill a last batch are left for other
/// epochs. What a batch holds follows from the data set, the options and its position, neither from the number of
/// threads nor from what was asked for before.
pub struct Loader {
    recipe: Arc<Recipe>,
    prefetch: Option<Prefetch<Result<Batch>>>,
}

impl Loader {
    /// A loader of a training set. Threads start with the first batch.
    ///
    /// # Errors
    /// [`Error::Config`] when the images don't fill one batch of every process, or a shorter side is 0.
    pub fn new(set: Arc<TrainingSet>, options: LoaderOptions) -> Result<Self> {
        let fault = |field: &str, found: String, expected: String| Error::Config {
            origin: "loader".to_owned(),
            field: field.to_owned(),
            found,
            expected,
        };
        if options.min_sizes.contains(&0) {
            return Err(fault("min_sizes", "0".to_owned(), "pixels, at least 1".to_owned()));
        }
        if options.part.rank >= options.part.of.get() {
            let expected = format!("below {}", options.part.of);
            return Err(fault("part.rank", options.part.rank.to_string(), expected));
        }
        let recipe = Recipe { set, options };
        if recipe.batches_per_epoch() == 0 {
            let images = recipe.set.images().len();
            let each = images / recipe.options.part.of;
            return Err(fault(
                "batch_size",
                recipe.options.batch_size.to_string(),
                format!("at most {each}: the training set has {images} images"),
            ));
        }
        Ok(Self { recipe: Arc::new(recipe), prefetch: None })
    }
}

impl BatchSource for Loader {
    fn batches_per_epoch(&self) -> usize {
        self.recipe.batches_per_epoch()
    }

    fn batch(&mut self, position: Position) -> Result<Batch> {
        let per_epoch = self.recipe.batches_per_epoch() as u64;
        let piece = position.epoch * per_epoch + position.index as u64;
        let prefetch = match &mut self.prefetch {
            Some(prefetch) => prefetch,
            none => {
                let recipe = Arc::clone(&self.recipe);
                let LoaderOptions { threads, ahead, .. } = recipe.options;
                let make = move |piece: u64| {
                    let index = (piece % per_epoch) as usize;
                    recipe.batch(Position { epoch: piece / per_epoch, index })
                };
                let started = Prefetch::start(threads, ahead, piece, make);
                none.insert(started.map_err(|source| Error::Io {
                    path: "a thread to load images".into(),
                    source,
                })?)
            }
        };
        prefetch.take(piece)
    }
}

struct Recipe {
    set: Arc<TrainingSet>,
    options: LoaderOptions,
}

impl Recipe {
    fn batches_per_epoch(&self) -> usize {
        self.set.images().len() / self.images_per_step()
    }

    /// Of all processes together.
    fn images_per_step(&self) -> usize {
        self.options.batch_size.get().saturating_mul(self.options.part.of.get())
    }

    fn batch(&self, position: Position) -> Result<Batch> {
        let LoaderOptions { batch_size, part, min_sizes, .. } = &self.options;
        let epoch = Random::new(self.options.seed).part(position.epoch);
        let order = self.order(&epoch);
        let first = position.index * self.images_per_step() + part.rank * batch_size.get();
        let mut batch = Batch::default();
        for (place, image_id) in (0u64..).zip(order).skip(first).take(batch_size.get()) {
            let mut random = epoch.part(purpose::IMAGE).part(place);
            let (image, target) = self.image(image_id, &mut random)?.into_input()?;
            batch.images.push(image);
            batch.targets.push(target);
        }
        // The same on every process, so that all of them have the same amount of work.
        let mut random = epoch.part(purpose::SIZE).part(position.index as u64);
        batch.min_size = min_sizes.get(random.below(min_sizes.len())).copied();
        Ok(batch)
    }

    fn order(&self, epoch: &Random) -> Vec<u64> {
        let mut images = self.set.images().to_vec();
        let count = images.len();
        epoch.part(purpose::ORDER).choose(&mut images, count);
        images
    }

    fn image(&self, image_id: u64, random: &mut Random) -> Result<LabelledImage> {
        let other = |random: &mut Random| {
            let images = self.set.images();
            self.set.load(images[random.below(images.len())])
        };
        self.options.augmentation.apply(self.set.load(image_id)?, random, &other)
    }
}
