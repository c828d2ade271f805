//! Convolutions, with their norm folded in.

use candle_core::{DType, Tensor};
use candle_nn::{Init, VarBuilder};

use super::get_f32;
use crate::error::Result;
use crate::ops::{self, Activation, Conv2dParams, PreparedConv2d, PreparedConvTranspose2d, conv2d};

/// Sizes of a convolution: square window, dilation 1, one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvShape {
    /// Channels of the input.
    pub in_channels: usize,
    /// Channels of the output.
    pub out_channels: usize,
    /// Cells per side of the window.
    pub kernel: usize,
    /// Input cells per output cell.
    pub stride: usize,
}

impl ConvShape {
    /// A window of odd side, padded so that stride 1 keeps the size.
    fn params(&self) -> Conv2dParams {
        Conv2dParams { stride: self.stride, padding: self.kernel / 2 }
    }
}

/// The batch norm after a convolution.
#[derive(Clone)]
pub struct NormAt<'a> {
    /// Where its `weight`, `bias`, `running_mean` and `running_var` are.
    pub weights: VarBuilder<'a>,
    /// Added to the variance.
    pub eps: f64,
}

/// A 2d convolution with bias or batch norm, then perhaps a residual, then an activation.
#[derive(Debug, Clone)]
pub struct Conv2d {
    weights: PreparedConv2d,
    activation: Activation,
}

impl Conv2d {
    /// Loads `weight` `[O, I, k, k]` and `bias` `[O]`.
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn load(weights: &VarBuilder, shape: ConvShape, activation: Activation) -> Result<Self> {
        let weight = load_weight(weights, shape)?.to_dtype(weights.dtype())?;
        let bias = get_f32(weights, shape.out_channels, "bias", Init::Const(0.0))?;
        Ok(Self { weights: PreparedConv2d::new(&weight, &bias, shape.params())?, activation })
    }

    /// Loads `weight` `[O, I, k, k]` and the batch norm that follows it, and folds the norm into the weights.
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn load_normed(
        weights: &VarBuilder,
        norm: &NormAt,
        shape: ConvShape,
        activation: Activation,
    ) -> Result<Self> {
        let weight = load_weight(weights, shape)?;
        let (scale, bias) = load_norm(norm, shape.out_channels)?;
        let weight = weight.broadcast_mul(&scale.reshape(((), 1, 1, 1))?)?;
        let weight = weight.to_dtype(weights.dtype())?;
        Ok(Self { weights: PreparedConv2d::new(&weight, &bias, shape.params())?, activation })
    }

    /// Has the results in f32, whatever the layer computes in: for predictors that feed arithmetic on boxes.
    pub fn with_f32_output(mut self) -> Self {
        self.weights = self.weights.with_output(DType::F32);
        self
    }

    /// `[N, H, W, I]` → `[N, H', W', O]`.
    ///
    /// # Errors
    /// Those of [`ops::conv2d`].
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        conv2d(input, &self.weights, None, self.activation)
    }

    /// Like [`Self::forward`], with `residual` `[N, H', W', O]` added before the activation.
    ///
    /// # Errors
    /// Those of [`ops::conv2d`].
    pub fn forward_plus(&self, input: &Tensor, residual: &Tensor) -> Result<Tensor> {
        conv2d(input, &self.weights, Some(residual), self.activation)
    }
}

fn load_weight(weights: &VarBuilder, shape: ConvShape) -> Result<Tensor> {
    let ConvShape { in_channels, out_channels, kernel, .. } = shape;
    let dims = (out_channels, in_channels, kernel, kernel);
    get_f32(weights, dims, "weight", candle_nn::init::DEFAULT_KAIMING_NORMAL)
}

/// A batch norm as `x · scale + bias`, in the order of operations that the reference has.
fn load_norm(norm: &NormAt, channels: usize) -> Result<(Tensor, Tensor)> {
    let one = Init::Const(1.0);
    let zero = Init::Const(0.0);
    let weight = get_f32(&norm.weights, channels, "weight", one)?;
    let bias = get_f32(&norm.weights, channels, "bias", zero)?;
    let mean = get_f32(&norm.weights, channels, "running_mean", zero)?;
    let variance = get_f32(&norm.weights, channels, "running_var", one)?;
    let scale = weight.mul(&(variance + norm.eps)?.sqrt()?.recip()?)?;
    let bias = (bias - (mean * &scale)?)?;
    Ok((scale, bias))
}

/// A transposed convolution with a 2×2 window and stride 2, which doubles both sides.
#[derive(Debug, Clone)]
pub struct ConvTranspose2d {
    weights: PreparedConvTranspose2d,
    activation: Activation,
}

impl ConvTranspose2d {
    /// Loads `weight` `[I, O, 2, 2]` and `bias` `[O]`.
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn load(
        weights: &VarBuilder,
        in_channels: usize,
        out_channels: usize,
        activation: Activation,
    ) -> Result<Self> {
        let dims = (in_channels, out_channels, 2, 2);
        let init = candle_nn::init::DEFAULT_KAIMING_NORMAL;
        let weight = get_f32(weights, dims, "weight", init)?.to_dtype(weights.dtype())?;
        let bias = get_f32(weights, out_channels, "bias", Init::Const(0.0))?;
        Ok(Self { weights: PreparedConvTranspose2d::new(&weight, &bias)?, activation })
    }

    /// `[N, H, W, I]` → `[N, 2H, 2W, O]`.
    ///
    /// # Errors
    /// Those of [`ops::conv_transpose2d`].
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        ops::conv_transpose2d(input, &self.weights, self.activation)
    }
}
