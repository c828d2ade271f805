//! Functions applied to each output of a product.

/// What is applied to each output of a convolution or linear layer, after bias and residual.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// The output as it is.
    None,
    /// Negative outputs become zero; NaN stays NaN.
    Relu,
}
