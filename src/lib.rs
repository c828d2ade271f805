//! Object detection in pure Rust on candle: torchvision's weights in, torchvision's detections out.
//!
//! ```no_run
//! use candle_detection::{Detector, ImageInput};
//!
//! // By name: published weights, downloaded once, checked against their hash.
//! let detector = Detector::from_name("maskrcnn_resnet50_fpn")?;
//! let detections = detector.detect(&ImageInput::open("street.jpg".as_ref())?)?;
//! for instance in detections.above(0.7) {
//!     let name = detector.categories().name(instance.label).unwrap_or("?");
//!     println!("{name} {:.2} {:?}", instance.score, instance.bbox);
//! }
//! # Ok::<(), candle_detection::Error>(())
//! ```
//!
//! Modules in reading order, which is the order in which an image passes through them:
//!
//! - [`structures`]: what passes between rooms;
//! - [`config`]: what defines a model, and the catalogue;
//! - [`transform`]: images → batch, and detections back to the images' pixels;
//! - [`backbone`]: batch → feature maps, by a body and a neck;
//! - [`anchor_utils`]: reference boxes, on the device from shape scalars alone;
//! - [`targets`]: what a batch shows, and which boxes are learned from;
//! - [`architecture`]: feature maps → detections, or losses; [`rcnn`] has the two-stage detectors, [`dense`] those of one
//!   stage;
//! - [`postprocess`]: which candidates become detections;
//! - [`network`] and [`Detector`]: all of it in one call;
//! - [`ops`] and [`layers`]: what the rooms are made of;
//! - [`checkpoint`]: weight files;
//! - [`dataset`]: data sets in COCO's format;
//! - [`eval`]: COCO's metrics;
//! - [`train`]: losses, optimisers, checkpoints;
//! - [`visualize`]: detections drawn onto an image.
#![warn(missing_docs)]

pub mod anchor_utils;
pub mod architecture;
pub mod backbone;
pub mod checkpoint;
pub mod config;
#[cfg(feature = "eval")]
pub mod dataset;
pub mod dense;
mod detector;
pub mod device;
mod error;
#[cfg(feature = "eval")]
pub mod eval;
mod image_input;
pub mod layers;
pub mod memory;
pub mod network;
pub mod ops;
pub mod postprocess;
mod progress;
pub mod rcnn;
pub mod section;
pub mod structures;
pub mod targets;
#[cfg(feature = "train")]
pub mod train;
pub mod transform;
#[cfg(feature = "visualize")]
pub mod visualize;

pub use candle_core::Device;

pub use checkpoint::{Checkpoint, CheckpointSource, LoadReport, Loading, RandomSource};
pub use detector::{Detector, DetectorBuilder, Execution, Settings, Weights};
pub use error::{Error, Mismatches, Result, WrongShape};
pub use image_input::{DecodeOptions, ImageInput, Orientation, Pixels};
pub use network::{DetectionNetwork, NetworkBuilder};
pub use progress::{Event, Progress, Silent};
pub use rcnn::{roi_heads, rpn};

/// The README's example is compiled with the documentation's.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
