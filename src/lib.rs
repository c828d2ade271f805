//! Mask R-CNN in pure Rust on candle.
#![warn(missing_docs)]

pub mod backbone;
pub mod checkpoint;
pub mod config;
mod detector;
mod error;
#[cfg(feature = "eval")]
pub mod eval;
mod image_input;
pub mod layers;
pub mod ops;
mod progress;
pub mod roi_heads;
pub mod rpn;
pub mod structures;
pub mod transform;

pub use checkpoint::{Checkpoint, CheckpointSource, LoadReport, Loading, RandomSource};
pub use detector::{Detector, DetectorBuilder, GeneralizedRcnn, Settings, Weights};
pub use error::{Error, Mismatches, Result, WrongShape};
pub use image_input::{DecodeOptions, ImageInput, Orientation, Pixels};
pub use progress::{Event, Progress, Silent};
pub use rpn::anchor_utils;
