//! Training: from images and their targets to losses, gradients and updated weights.
//!
//! In: batches of images and [`Target`](crate::structures::Target)s. Out: weights under torchvision's names. The parts
//! of the network are those of inference, composed in another order; this room knows nothing of evaluation.
//!
//! What is computed is what torchvision computes: which boxes count as found, which of them a step looks at (`sample`), what
//! they should have been, and what the difference costs (`rpn_losses`, `roi_losses`). All of it is computed where the
//! network is, by ops; the host sees a loss when it asks for it.

pub mod augment;
mod batch;
mod collector;
#[cfg(feature = "eval")]
mod data;
mod ema;
mod gradients;
mod ground_truth;
pub mod log;
mod mask_targets;
mod network;
mod objects;
mod observer;
mod optimizer;
mod options;
pub mod parallel;
mod parameters;
mod pending;
mod random;
mod roi_losses;
mod rpn_losses;
mod sample;
mod schedule;
mod state;
mod step;
mod trainer;
mod update;
mod verdict;

pub use batch::{Batch, BatchSource, Position};
#[cfg(feature = "eval")]
pub use data::{LeftOut, Loader, LoaderOptions, Part, TrainingSet, Unlabelled};
pub use ema::Average;
pub use gradients::Gradients;
pub use ground_truth::GroundTruth;
pub use mask_targets::ObjectMask;
pub use network::Network;
pub use observer::{Flow, Milestone, Observer, StepReport};
pub use optimizer::{Decay, Momentum, Optimizer, ParameterGroups, ParameterOptions, UpdateRule};
pub use options::{RunLength, TrainerOptions};
pub use parameters::{Freezing, Parameter, ParameterKind, Parameters};
pub use random::Random;
pub use sample::{RandomSampler, Sampler, Stage};
pub use schedule::{Course, Schedule, WarmUp};
pub use state::{Numbers, RunFolder, RunState, Snapshot};
pub use step::{Evaluated, Losses};
pub use trainer::{Ending, Trainer};
pub use verdict::{Judgement, Verdict};
