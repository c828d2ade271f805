//! What a batch shows, on the device, and which boxes a step of training learns from.
//!
//! In: [`Target`](crate::structures::Target)s and sizes of images. Out: an [`ObjectBatch`]; from boxes and objects,
//! samples and what they should have been. This room knows nothing of networks.

mod ground_truth;
mod object_batch;
mod object_mask;
mod sample;

pub use ground_truth::GroundTruth;
pub use object_batch::ObjectBatch;
pub use object_mask::ObjectMask;
pub use sample::{Rules, Sampled, Sampler, Stage};
