//! Two-stage detectors (Ren et al., arXiv:1506.01497; He et al., arXiv:1703.06870): where there may be an object, then
//! which one it is, and whatever else is asked of it.
//!
//! In: feature maps. Out: instances and extras, or losses. This room knows nothing of what made the features.

mod config;
mod generalized_rcnn;
pub mod roi_heads;
pub mod rpn;
mod training;

pub use config::RcnnConfig;
pub use generalized_rcnn::{GeneralizedRcnn, HeadConstructor};
pub use training::{RcnnTrainingConfig, RoiTrainingConfig, RpnTrainingConfig};
