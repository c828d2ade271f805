//! The CUDA path against the CPU's, op by op and as a whole, with counts of copies, waits and launches.
//!
//! Runs on a GPU, or on the emulator in `tests/cuda-emulator` when that comes first on `LD_LIBRARY_PATH`; counts are
//! checked on the emulator only.
#![cfg(feature = "cuda")]

#[path = "../common/mod.rs"]
mod common;
mod convs;
mod counters;
mod dense_losses;
mod dense_ops;
mod detection_ops;
mod gradients;
mod instance_norms;
mod keypoints;
mod losses;
mod mask_targets;
mod norms;
#[cfg(feature = "train")]
mod one_stage;
#[cfg(all(feature = "train", feature = "nccl"))]
mod ranks;
mod region_ops;
#[cfg(feature = "train")]
mod runs;
mod sampling;
mod selection;
mod support;
#[cfg(feature = "train")]
mod training;
mod whole_model;
