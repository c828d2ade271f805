//! Anchors: the reference boxes that detectors correct.
//!
//! They are computed on the device of the features from shape scalars alone: sizes of features and batch, anchor sizes,
//! aspect ratios. No tensor is built on the host, nothing is uploaded, nothing is cached.

mod default_boxes;
mod generator;
mod rows;

pub use default_boxes::DefaultBoxGenerator;
pub use generator::{AnchorGenerator, AnchorsConfig};
pub use rows::per_anchor;
