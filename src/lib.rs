//! Mask R-CNN in pure Rust on candle.
#![warn(missing_docs)]

pub mod config;
mod error;
#[cfg(feature = "eval")]
pub mod eval;
mod image_input;
pub mod ops;
mod progress;
pub mod structures;

pub use error::{Error, Mismatches, Result, WrongShape};
pub use image_input::ImageInput;
pub use progress::{Event, Progress, Silent};
