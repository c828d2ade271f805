//! What passes between rooms: plain structs, complete on construction, no logic beyond their invariants.
//!
//! On the device every shape follows from input shapes and the configuration alone: a capacity and a count of
//! valid slots, never "as many as survived". Slots from the count on are zero.

mod boxes;
mod detections;
mod download;
mod features;
mod image;
mod keypoints;
mod mask;
mod samples;
mod slots;
mod target;

pub use boxes::BoxXyxy;
pub use detections::{DetectionTensors, Detections, Instance, InstanceParts};
#[cfg(feature = "cuda")]
pub(crate) use download::PackedResults;
pub use features::{FeatureLevel, FeatureMaps};
pub use image::{BatchGeometry, ImageBatch, ImageGeometry, ImageSize};
pub use keypoints::{COCO_SKELETON, Keypoint, TargetKeypoint, Visibility};
pub use mask::{Mask, MaskRegion, Polygon, PolygonKind, Rle};
pub(crate) use samples::{SlotRows, trim_samples};
pub use slots::{DetectionBatch, Instances, Proposals};
pub use target::{KeypointUse, MaskUse, Target, TargetNeeds};
