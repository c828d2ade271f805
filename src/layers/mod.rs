//! Weights and ops together: what networks are made of.
//!
//! In: a `VarBuilder` under a layer's prefix. Out: a layer whose `forward` is one op. A norm with fixed statistics is
//! folded into the weights when they are loaded. This room knows nothing of detection.
//!
//! A layer whose tensors are constants lays them out once, when it is loaded. One with variables among them keeps those,
//! uses the values that they have at each call, and is differentiable; so training needs no other layers than inference.

mod conv;
mod linear;

pub use conv::{Conv2d, ConvShape, ConvTranspose2d, NormAt};
pub use linear::Linear;
