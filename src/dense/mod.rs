//! One-stage detectors: class and box of every anchor of every level, in one pass.
//!
//! In: feature maps. Out: instances, or losses. This room knows nothing of what made the features. It holds what these
//! detectors share, towers and the way from chosen anchors to instances, and the detectors themselves.

mod fcos;
mod fcos_head;
mod retinanet;
mod retinanet_head;
mod selection;
mod ssd;
mod tower;

pub use fcos::{Fcos, FcosConfig, FcosTrainingConfig};
pub use fcos_head::{FcosHead, FcosHeadConfig, FcosOutput};
pub use retinanet::{BoxLoss, RetinaNet, RetinaNetConfig, RetinaNetTrainingConfig};
pub use retinanet_head::{RetinaNetHead, RetinaNetHeadConfig, RetinaNetOutput};
pub use ssd::{
    DefaultBoxesConfig, ScoringHead, SeparableHeadConfig, Ssd, SsdConfig, SsdHeadConfig,
    SsdPredictions, SsdTrainingConfig,
};
pub use tower::TowerNorm;
