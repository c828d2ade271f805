//! Training: the parts that inference is made of, composed to losses and gradients.

mod parameters;

pub use parameters::{Freezing, Parameter, ParameterKind, Parameters};
