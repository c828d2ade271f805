//! Data sets as training takes them.
//!
//! In: a [`CocoDataset`](crate::dataset::CocoDataset). Out: batches of augmented images, made ahead of the trainer on
//! threads of their own.

mod keypoints;
mod loader;
mod prefetch;
mod training_set;

pub use loader::{Loader, LoaderOptions, Part};
pub use training_set::{LeftOut, TrainingSet, Unlabelled};
