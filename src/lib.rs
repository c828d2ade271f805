//! Mask R-CNN in pure Rust on candle.
#![warn(missing_docs)]

pub mod checkpoint;
pub mod config;
mod error;
mod image_input;
pub mod ops;
mod progress;
pub mod structures;

pub use checkpoint::{Checkpoint, CheckpointSource, LoadReport, Loading, RandomSource};
pub use error::{Error, Mismatches, Result, WrongShape};
pub use image_input::ImageInput;
pub use progress::{Event, Progress, Silent};
