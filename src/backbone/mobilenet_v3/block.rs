//! Inverted residual blocks, the parts of MobileNets.

use candle_core::Tensor;
use candle_nn::VarBuilder;

use crate::error::Result;
use crate::layers::{Conv2d, ConvShape, Initial, NormAt};
use crate::ops::{Activation, global_avg_pool, scale_channels};

/// What the convolutions of a network have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConvStyle {
    /// First values where no file has them.
    pub initial: Initial,
    /// Added to the variance by norms.
    pub eps: f64,
    /// Of norms that are trained.
    pub momentum: f64,
}

impl ConvStyle {
    /// A convolution at `0` and its norm at `1`.
    pub fn conv(
        self,
        weights: &VarBuilder,
        shape: ConvShape,
        activation: Activation,
    ) -> Result<Conv2d> {
        let norm = NormAt::new(weights.pp(1), self.eps).with_momentum(self.momentum);
        let shape = ConvShape { initial: self.initial, ..shape };
        Conv2d::load_normed(&weights.pp(0), &norm, shape, activation)
    }
}

/// Sizes of an inverted residual block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockShape {
    /// Channels of the input.
    pub in_channels: usize,
    /// Cells per side of the window that looks around.
    pub kernel: usize,
    /// Channels between the 1×1 convolutions; without the first of these where they are those of the input.
    pub expanded: usize,
    /// Channels of the output.
    pub out_channels: usize,
    /// Channels between the two layers that weigh the expanded ones, if these are weighed.
    pub squeeze: Option<usize>,
    /// After the first two convolutions.
    pub activation: Activation,
    /// Input cells per output cell.
    pub stride: usize,
}

/// A block of MobileNets: channels are expanded, looked around in one by one, perhaps weighed, and projected to few, to which
/// the input is added where it has the same shape.
pub(crate) struct InvertedResidual {
    expansion: Option<Conv2d>,
    around: Conv2d,
    excitation: Option<SqueezeExcitation>,
    projection: Conv2d,
    adds_input: bool,
}

impl InvertedResidual {
    /// Loads the block from `block.0`, `block.1` …
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn load(weights: &VarBuilder, shape: &BlockShape, style: ConvStyle) -> Result<Self> {
        let weights = weights.pp("block");
        Self::load_from(&weights.pp(0), &weights, shape, style)
    }

    /// Loads the block from two places: its expansion, if it has one, and what follows, at `1`, `2` … (`0` … without an
    /// expansion).
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn load_from(
        expansion: &VarBuilder,
        weights: &VarBuilder,
        shape: &BlockShape,
        style: ConvStyle,
    ) -> Result<Self> {
        let BlockShape { in_channels, kernel, expanded, out_channels, squeeze, activation, stride } =
            *shape;
        let conv = |channels, kernel| ConvShape::new(channels, kernel, style.initial);
        let expands = expanded != in_channels;
        let expansion = expands
            .then(|| style.conv(expansion, conv((in_channels, expanded), 1), activation))
            .transpose()?;
        let mut index = usize::from(expands);
        let around = conv((expanded, expanded), kernel).with_stride(stride).with_groups(expanded);
        let around = style.conv(&weights.pp(index), around, activation)?;
        index += 1;
        let mut excitation = None;
        if let Some(squeeze) = squeeze {
            let weights = weights.pp(index);
            excitation = Some(SqueezeExcitation::load(&weights, expanded, squeeze, style.initial)?);
            index += 1;
        }
        let projection = conv((expanded, out_channels), 1);
        let projection = style.conv(&weights.pp(index), projection, Activation::None)?;
        let adds_input = stride == 1 && in_channels == out_channels;
        Ok(Self { expansion, around, excitation, projection, adds_input })
    }

    /// `[N, H, W, in_channels]` → `[N, H', W', out_channels]`.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let expanded = self.expand(input)?;
        if !self.adds_input {
            return self.project(&expanded);
        }
        self.projection.forward_plus(&self.look_around(&expanded)?, input)
    }

    /// `[N, H, W, in_channels]` → `[N, H, W, expanded]`: the first part of [`Self::forward`].
    ///
    /// # Errors
    /// Those of the ops it is made of.
    pub fn expand(&self, input: &Tensor) -> Result<Tensor> {
        match &self.expansion {
            Some(conv) => conv.forward(input),
            None => Ok(input.clone()),
        }
    }

    /// `[N, H, W, expanded]` → `[N, H', W', out_channels]`: the rest of [`Self::forward`], of a block that doesn't add its
    /// input.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    pub fn project(&self, expanded: &Tensor) -> Result<Tensor> {
        self.projection.forward(&self.look_around(expanded)?)
    }

    fn look_around(&self, expanded: &Tensor) -> Result<Tensor> {
        let features = self.around.forward(expanded)?;
        match &self.excitation {
            Some(excitation) => excitation.forward(&features),
            None => Ok(features),
        }
    }
}

/// Weighs channels by what an image shows: their means, through two layers (Hu et al., arXiv:1709.01507), the last behind a
/// hard sigmoid.
pub(crate) struct SqueezeExcitation {
    squeeze: Conv2d,
    excite: Conv2d,
}

impl SqueezeExcitation {
    /// Loads the layers from `fc1` and `fc2`.
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn load(
        weights: &VarBuilder,
        channels: usize,
        squeezed: usize,
        initial: Initial,
    ) -> Result<Self> {
        let conv = |name: &str, channels, activation| {
            Conv2d::load(&weights.pp(name), ConvShape::new(channels, 1, initial), activation)
        };
        Ok(Self {
            squeeze: conv("fc1", (channels, squeezed), Activation::Relu)?,
            excite: conv("fc2", (squeezed, channels), Activation::HardSigmoid)?,
        })
    }

    /// `[N, H, W, C]` → the same, weighed.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    pub fn forward(&self, features: &Tensor) -> Result<Tensor> {
        let means = global_avg_pool(features)?;
        let weights = self.excite.forward(&self.squeeze.forward(&means)?)?;
        scale_channels(features, &weights)
    }
}
