//! Training: from images and their targets to losses, gradients and updated weights.
//!
//! In: batches of images and [`Target`](crate::structures::Target)s. Out: weights under torchvision's names. The parts
//! of the network are those of inference, composed in another order; this room knows nothing of evaluation.
//!
//! What is computed is what torchvision computes, by the network's architecture: this room knows losses by their names
//! alone. All of it is computed where the network is, by ops; the host sees a loss when it asks for it.

pub mod augment;
mod batch;
mod collector;
#[cfg(feature = "eval")]
mod data;
mod ema;
mod gradients;
pub mod log;
mod losses;
mod network;
mod observer;
mod optimizer;
mod options;
pub mod parallel;
mod parameters;
mod pending;
mod random;
mod random_sampler;
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
pub use losses::{LossNames, Losses};
pub use network::Network;
pub use observer::{Flow, Milestone, Observer, StepReport};
pub use optimizer::{Decay, Momentum, Optimizer, ParameterGroups, ParameterOptions, UpdateRule};
pub use options::{RunLength, TrainerOptions};
pub use parameters::{Freezing, Parameter, ParameterKind, Parameters};
pub use random::Random;
pub use random_sampler::RandomSampler;
pub use schedule::{Course, Schedule, WarmUp};
pub use state::{Numbers, RunFolder, RunState, Snapshot};
pub use step::Evaluated;
pub use trainer::{Ending, Trainer};
pub use verdict::{Judgement, Verdict};

pub use crate::targets::{Sampler, Stage};
