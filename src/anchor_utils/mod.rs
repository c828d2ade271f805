//! Reference boxes that detectors correct, made on the device from shape scalars alone.

mod default_boxes;

pub use default_boxes::DefaultBoxGenerator;
