//! Weights and ops together: what networks are made of.
//!
//! In: a `VarBuilder` under a layer's prefix. Out: a layer whose `forward` is one op. A norm with fixed statistics is
//! folded into the weights when they are loaded, in f32; the result has the builder's dtype, which is what the layer
//! computes in. This room knows nothing of detection.
//!
//! A layer whose tensors are constants lays them out once, when it is loaded. One with variables among them keeps those,
//! uses the values that they have at each call, and is differentiable; so training needs no other layers than inference.

mod conv;
mod group_norm;
mod initial;
mod linear;
mod norm;

pub use conv::{Conv2d, ConvShape, ConvTranspose2d, ConvTransposeShape};
pub use group_norm::GroupNorm;
pub(crate) use initial::Fans;
pub use initial::Initial;
pub use linear::Linear;
pub use norm::{Norm, NormAt};

use candle_core::{DType, Shape, Tensor};
use candle_nn::{Init, VarBuilder};

use crate::error::Result;

/// A tensor of the weights in f32, whatever the network computes in, so that folding a norm loses nothing.
pub(crate) fn get_f32(
    weights: &VarBuilder,
    shape: impl Into<Shape>,
    name: &str,
    init: Init,
) -> Result<Tensor> {
    Ok(weights.get_with_hints_dtype(shape, name, init, DType::F32)?)
}
