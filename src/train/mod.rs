//! Training: from images and their targets to losses, gradients and updated weights.
//!
//! In: batches of images and [`Target`](crate::structures::Target)s. Out: weights under torchvision's names. The parts
//! of the network are those of inference, composed in another order; this room knows nothing of evaluation.
//!
//! What is computed is what torchvision computes: which boxes count as found (`assign`), which of them a step looks at
//! (`sample`), what they should have been (`encode`, `mask_targets`), and what the difference costs (`losses`).

mod batch;

pub use batch::{Batch, BatchSource, Position};
