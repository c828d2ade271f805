//! Operations on tensors, one folder each. Images and features are channels last: `[N, H, W, C]`.
//!
//! | op | computes |
//! | --- | --- |
//! | [`conv2d()`] | convolution, bias, residual and activation |
//! | [`linear()`] | matrix product with weights, bias and activation |
//! | [`conv_transpose2d()`] | transposed convolution with a 2×2 window and stride 2, bias and activation |
//! | [`max_pool2d()`] | largest value of each window |
//! | [`upsample_add()`] | a coarse map enlarged to a fine one's size, plus the fine one |

pub mod conv2d;
pub mod conv_transpose2d;
pub mod linear;
pub mod max_pool2d;
pub(crate) mod support;
pub mod upsample_add;

pub use conv_transpose2d::{PreparedConvTranspose2d, conv_transpose2d};
pub use conv2d::{Conv2dParams, PreparedConv2d, conv2d};
pub use linear::{PreparedLinear, linear};
pub use max_pool2d::{MaxPool2dParams, max_pool2d};
pub use support::activation::Activation;
pub use upsample_add::upsample_add;
