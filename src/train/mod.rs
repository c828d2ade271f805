//! Training: from images and their targets to losses, gradients and updated weights.
//!
//! In: batches of images and [`Target`](crate::structures::Target)s. Out: weights under torchvision's names. The parts
//! of the network are those of inference, composed in another order; this room knows nothing of evaluation.
//!
//! What is computed is what torchvision computes: which boxes count as found (`assign`), which of them a step looks at
//! (`sample`), what they should have been (`encode`, `mask_targets`), and what the difference costs (`losses`).

mod assign;
pub mod augment;
mod batch;
#[cfg(feature = "eval")]
mod data;
mod ema;
mod encode;
mod gradients;
mod ground_truth;
pub mod log;
mod losses;
mod mask_targets;
mod network;
mod optimizer;
pub mod parallel;
mod parameters;
mod random;
mod roi_losses;
mod rpn_losses;
mod sample;
mod schedule;
mod state;
mod step;
mod trainer;

pub use assign::{AssignParams, Match, Unfound, assign};
pub use batch::{Batch, BatchSource, Position};
#[cfg(feature = "eval")]
pub use data::{LeftOut, Loader, LoaderOptions, Part, TrainingSet, Unlabelled};
pub use ema::Average;
pub use encode::encode;
pub use gradients::Gradients;
pub use ground_truth::GroundTruth;
pub use losses::{
    Loss, Objectness, SMOOTH_L1_BETA, box_loss, classifier_loss, mask_loss, objectness_loss,
    rpn_box_loss,
};
pub use mask_targets::ObjectMask;
pub use network::Network;
pub use optimizer::{Decay, Momentum, Optimizer, ParameterGroups, ParameterOptions, UpdateRule};
pub use parameters::{Freezing, Parameter, ParameterKind, Parameters};
pub use random::Random;
pub use sample::{Candidates, RandomSampler, SampleParams, Sampler, Stage};
pub use schedule::{Course, Schedule, WarmUp};
pub use state::{Numbers, RunFolder, RunState, Snapshot};
pub use step::{Evaluated, Losses};
pub use trainer::{Ending, EpochReport, Flow, Observer, StepReport, Trainer, TrainerOptions};
