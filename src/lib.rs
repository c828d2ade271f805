//! Mask R-CNN in pure Rust on candle.
#![warn(missing_docs)]

pub mod config;
mod error;
mod image_input;
pub mod ops;
mod progress;
pub mod structures;
#[cfg(feature = "visualize")]
pub mod visualize;

pub use error::{Error, Mismatches, Result, WrongShape};
pub use image_input::{DecodeOptions, ImageInput, Orientation, Pixels};
pub use progress::{Event, Progress, Silent};
