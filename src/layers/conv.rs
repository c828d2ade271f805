//! Convolutions, with their norm folded in.

use candle_core::{DType, Tensor};
use candle_nn::VarBuilder;

use super::get_f32;
use super::initial::{Fans, Initial};
use super::norm::{BatchNorm, LoadedNorm, NormAt};
use crate::error::Result;
use crate::ops::{
    self, Activation, Conv2dParams, FilledRows, PreparedConv2d, PreparedConvTranspose2d,
    TrainableConv2d, TrainableConvTranspose2d,
};

/// Sizes of a convolution with a square window.
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
    /// Zeros around the input; `None` is what keeps the size with stride 1 and a window of odd side.
    pub padding: Option<usize>,
    /// Input cells from one tap of the window to the next.
    pub dilation: usize,
    /// Equal parts of the channels that don't mix.
    pub groups: usize,
    /// First values where no file has them.
    pub initial: Initial,
}

impl ConvShape {
    /// Channels of input and output, and a window; stride 1, one group, taps side by side, as large as the input.
    pub const fn new(channels: (usize, usize), kernel: usize, initial: Initial) -> Self {
        let (in_channels, out_channels) = channels;
        let (stride, padding, dilation, groups) = (1, None, 1, 1);
        Self { in_channels, out_channels, kernel, stride, padding, dilation, groups, initial }
    }

    /// The same with another stride.
    pub const fn with_stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    /// The same with this many zeros around the input.
    pub const fn with_padding(self, padding: usize) -> Self {
        Self { padding: Some(padding), ..self }
    }

    /// The same with taps apart.
    pub const fn with_dilation(self, dilation: usize) -> Self {
        Self { dilation, ..self }
    }

    /// The same in groups.
    pub const fn with_groups(self, groups: usize) -> Self {
        Self { groups, ..self }
    }

    fn params(&self) -> Conv2dParams {
        let padding = self.padding.unwrap_or(self.dilation * (self.kernel / 2));
        Conv2dParams::new(self.stride, padding)
            .with_groups(self.groups)
            .with_dilation(self.dilation)
    }

    /// Channels of the input that an output channel sees.
    fn group_inputs(&self) -> usize {
        self.in_channels / self.groups.max(1)
    }
}

/// A 2d convolution with bias or batch norm, then perhaps a residual, then an activation.
#[derive(Debug, Clone)]
pub struct Conv2d {
    weights: ConvWeights,
    activation: Activation,
}

/// The forms of a convolution.
#[derive(Debug, Clone)]
enum ConvWeights {
    /// All constants.
    Prepared(PreparedConv2d),
    /// Some variables.
    Trainable(TrainableConv2d),
    /// A norm that uses the statistics of the batch; the convolution has no bias.
    Normed(TrainableConv2d, BatchNorm),
}

impl ConvWeights {
    /// The convolution with filters `scale[o] · weight[o, ..]`.
    fn new(
        weight: &Tensor,
        scale: Option<&Tensor>,
        bias: &Tensor,
        params: Conv2dParams,
        dtype: DType,
    ) -> Result<Self> {
        if weight.track_op() || bias.track_op() {
            return Ok(Self::Trainable(TrainableConv2d::new(weight, scale, bias, params)?));
        }
        let folded = match scale {
            Some(scale) => &ops::scale_filters(weight, scale)?,
            None => weight,
        };
        Ok(Self::Prepared(PreparedConv2d::new(&folded.to_dtype(dtype)?, bias, params)?))
    }

    fn apply(
        &self,
        input: &Tensor,
        filled: FilledRows,
        residual: Option<&Tensor>,
        activation: Activation,
    ) -> Result<Tensor> {
        match self {
            Self::Prepared(weights) => ops::conv2d(input, weights, residual, activation),
            Self::Trainable(weights) => ops::conv2d_trainable(input, weights, residual, activation),
            Self::Normed(weights, norm) => {
                let features = ops::conv2d_trainable(input, weights, None, Activation::None)?;
                norm.apply(&features, filled, residual, activation)
            }
        }
    }
}

impl Conv2d {
    /// Loads `weight` `[O, I/groups, k, k]` and `bias` `[O]`.
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn load(weights: &VarBuilder, shape: ConvShape, activation: Activation) -> Result<Self> {
        let weight = load_weight(weights, shape)?;
        let fan_in = shape.group_inputs() * shape.kernel * shape.kernel;
        let bias = get_f32(weights, shape.out_channels, "bias", shape.initial.bias(fan_in))?;
        let weights = ConvWeights::new(&weight, None, &bias, shape.params(), weights.dtype())?;
        Ok(Self { weights, activation })
    }

    /// Loads `weight` `[O, I/groups, k, k]` alone: for a norm that cannot be folded in, such as a
    /// [`GroupNorm`](super::GroupNorm), to follow.
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn load_without_bias(
        weights: &VarBuilder,
        shape: ConvShape,
        activation: Activation,
    ) -> Result<Self> {
        let weight = load_weight(weights, shape)?;
        let bias = Tensor::zeros(shape.out_channels, DType::F32, weight.device())?;
        let weights = ConvWeights::new(&weight, None, &bias, shape.params(), weights.dtype())?;
        Ok(Self { weights, activation })
    }

    /// Loads `weight` `[O, I/groups, k, k]` and the batch norm that follows it, and folds the norm into the weights.
    ///
    /// A norm with variables among its tensors is not folded: it uses the statistics of each batch, as training wants
    /// it, and moves its running statistics by the norm's momentum.
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
        let (params, dtype) = (shape.params(), weights.dtype());
        let weights = match norm.load(shape.out_channels)? {
            LoadedNorm::Fixed { scale, bias } => {
                ConvWeights::new(&weight, Some(&scale), &bias, params, dtype)?
            }
            LoadedNorm::Live(norm) => {
                let bias = Tensor::zeros(shape.out_channels, DType::F32, weight.device())?;
                ConvWeights::Normed(TrainableConv2d::new(&weight, None, &bias, params)?, norm)
            }
        };
        Ok(Self { weights, activation })
    }

    /// Has the results in f32, whatever the layer computes in: for predictors that feed arithmetic on boxes.
    pub fn with_f32_output(mut self) -> Self {
        self.weights = match self.weights {
            ConvWeights::Prepared(weights) => {
                ConvWeights::Prepared(weights.with_output(DType::F32))
            }
            // Variables are in f32, and so is what is computed from them.
            trainable => trainable,
        };
        self
    }

    /// `[N, H, W, I]` → `[N, H', W', O]`.
    ///
    /// # Errors
    /// Those of [`ops::conv2d`].
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.weights.apply(input, FilledRows::All, None, self.activation)
    }

    /// Like [`Self::forward`], for an input of which only some rows hold something: a norm that uses the statistics of the
    /// batch leaves the others out, and makes zeros of them. Other layers compute all rows.
    ///
    /// # Errors
    /// Those of [`ops::conv2d`] and [`ops::batch_norm`].
    pub fn forward_filled(&self, input: &Tensor, filled: FilledRows) -> Result<Tensor> {
        self.weights.apply(input, filled, None, self.activation)
    }

    /// Like [`Self::forward`], with `residual` `[N, H', W', O]` added before the activation.
    ///
    /// # Errors
    /// Those of [`ops::conv2d`].
    pub fn forward_plus(&self, input: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.weights.apply(input, FilledRows::All, Some(residual), self.activation)
    }
}

fn load_weight(weights: &VarBuilder, shape: ConvShape) -> Result<Tensor> {
    let ConvShape { out_channels, kernel, initial, .. } = shape;
    let (inputs, window) = (shape.group_inputs(), kernel * kernel);
    let fans = Fans { inputs: inputs * window, outputs: out_channels * window };
    get_f32(weights, (out_channels, inputs, kernel, kernel), "weight", initial.weight(fans))
}

/// Sizes of a transposed convolution that doubles height and width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvTransposeShape {
    /// Channels of the input.
    pub in_channels: usize,
    /// Channels of the output.
    pub out_channels: usize,
    /// Cells per side of the window: 2, or 4 with padding 1.
    pub kernel: usize,
    /// First biases where no file has them; weights are [`Initial::BeforeRelu`].
    pub initial_bias: Initial,
}

/// A transposed convolution with stride 2, which doubles both sides.
#[derive(Debug, Clone)]
pub struct ConvTranspose2d {
    weights: ConvTransposeWeights,
    activation: Activation,
}

/// The two forms of a transposed convolution.
#[derive(Debug, Clone)]
enum ConvTransposeWeights {
    /// All constants.
    Prepared(PreparedConvTranspose2d),
    /// Some variables.
    Trainable(TrainableConvTranspose2d),
}

impl ConvTranspose2d {
    /// Loads `weight` `[I, O, k, k]` and `bias` `[O]`.
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn load(
        weights: &VarBuilder,
        shape: ConvTransposeShape,
        activation: Activation,
    ) -> Result<Self> {
        let ConvTransposeShape { in_channels, out_channels, kernel, initial_bias } = shape;
        let dims = (in_channels, out_channels, kernel, kernel);
        let window = kernel * kernel;
        // As torch sees the axes.
        let fans = Fans { inputs: window * out_channels, outputs: window * in_channels };
        let weight = get_f32(weights, dims, "weight", Initial::BeforeRelu.weight(fans))?;
        // Torch takes the second axis for the inputs, here as elsewhere.
        let bias = initial_bias.bias(kernel * kernel * out_channels);
        let bias = get_f32(weights, out_channels, "bias", bias)?;
        let weights = if weight.track_op() || bias.track_op() {
            ConvTransposeWeights::Trainable(TrainableConvTranspose2d::new(&weight, &bias)?)
        } else {
            let weight = weight.to_dtype(weights.dtype())?;
            ConvTransposeWeights::Prepared(PreparedConvTranspose2d::new(&weight, &bias)?)
        };
        Ok(Self { weights, activation })
    }

    /// Has the results in f32, whatever the layer computes in: for predictors that feed arithmetic on boxes.
    pub fn with_f32_output(mut self) -> Self {
        self.weights = match self.weights {
            ConvTransposeWeights::Prepared(weights) => {
                ConvTransposeWeights::Prepared(weights.with_output(DType::F32))
            }
            // Variables are in f32, and so is what is computed from them.
            trainable => trainable,
        };
        self
    }

    /// `[N, H, W, I]` → `[N, 2H, 2W, O]`.
    ///
    /// # Errors
    /// Those of [`ops::conv_transpose2d`].
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        match &self.weights {
            ConvTransposeWeights::Prepared(weights) => {
                ops::conv_transpose2d(input, weights, self.activation)
            }
            ConvTransposeWeights::Trainable(weights) => {
                ops::conv_transpose2d_trainable(input, weights, self.activation)
            }
        }
    }
}
