//! ResNet 18 to 152 (He et al., arXiv:1512.03385), "v1.5": the stride of a bottleneck is in its 3×3 convolution.

use candle_core::Tensor;
use candle_nn::VarBuilder;

use crate::config::{BackboneConfig, BackboneKind};
use crate::error::Result;
use crate::layers::{Conv2d, ConvShape, Initial, NormAt};
use crate::ops::{Activation, MaxPool2dParams, max_pool2d};

/// The stem's pooling: padding is −∞, so that it never wins.
const STEM_POOL: MaxPool2dParams = MaxPool2dParams { kernel: 3, stride: 2, padding: 1 };

/// A ResNet without its classifier.
pub struct ResNet {
    stem: Conv2d,
    stages: Vec<Vec<Block>>,
    out_channels: Vec<usize>,
}

/// The two kinds of residual blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockKind {
    /// Two 3×3 convolutions.
    Basic,
    /// 1×1, 3×3, 1×1, the last with four times the channels.
    Bottleneck,
}

impl BlockKind {
    fn expansion(self) -> usize {
        match self {
            Self::Basic => 1,
            Self::Bottleneck => 4,
        }
    }
}

/// Kind and number of blocks of each stage.
fn layout(kind: BackboneKind) -> (BlockKind, [usize; 4]) {
    match kind {
        BackboneKind::ResNet18 => (BlockKind::Basic, [2, 2, 2, 2]),
        BackboneKind::ResNet34 => (BlockKind::Basic, [3, 4, 6, 3]),
        BackboneKind::ResNet50 => (BlockKind::Bottleneck, [3, 4, 6, 3]),
        BackboneKind::ResNet101 => (BlockKind::Bottleneck, [3, 4, 23, 3]),
        BackboneKind::ResNet152 => (BlockKind::Bottleneck, [3, 8, 36, 3]),
    }
}

impl ResNet {
    /// Loads the network from `conv1`, `bn1`, `layer1` … `layer4`.
    ///
    /// # Errors
    /// Those of the weights' source, and of candle.
    pub fn load(weights: &VarBuilder, config: &BackboneConfig) -> Result<Self> {
        let eps = config.norm_eps;
        let stem = ConvShape::new((3, config.width), 7, Initial::BeforeRelu).with_stride(2);
        let stem = conv_norm(weights, "conv1", "bn1", stem, eps, Activation::Relu)?;
        let (kind, depths) = layout(config.kind);
        let mut channels = config.width;
        let mut stages = Vec::with_capacity(depths.len());
        let mut out_channels = Vec::with_capacity(depths.len());
        for (stage, depth) in depths.into_iter().enumerate() {
            let planes = config.width << stage;
            let weights = weights.pp(format!("layer{}", stage + 1));
            let mut blocks = Vec::with_capacity(depth);
            for index in 0..depth {
                let stride = if stage > 0 && index == 0 { 2 } else { 1 };
                let shape = BlockShape { kind, in_channels: channels, planes, stride };
                blocks.push(Block::load(&weights.pp(index), shape, eps)?);
                channels = planes * kind.expansion();
            }
            stages.push(blocks);
            out_channels.push(channels);
        }
        Ok(Self { stem, stages, out_channels })
    }

    /// Channels of each stage's output.
    pub fn out_channels(&self) -> &[usize] {
        &self.out_channels
    }

    /// `[N, H, W, 3]` → the outputs of the four stages, with strides 4, 8, 16 and 32.
    ///
    /// # Errors
    /// Those of the ops it is made of.
    pub fn forward(&self, pixels: &Tensor) -> Result<Vec<Tensor>> {
        let mut features = max_pool2d(&self.stem.forward(pixels)?, &STEM_POOL)?;
        let mut outputs = Vec::with_capacity(self.stages.len());
        for blocks in &self.stages {
            for block in blocks {
                features = block.forward(features)?;
            }
            outputs.push(features.clone());
        }
        Ok(outputs)
    }
}

/// Sizes of a residual block.
#[derive(Clone, Copy)]
struct BlockShape {
    kind: BlockKind,
    in_channels: usize,
    planes: usize,
    stride: usize,
}

/// A residual block: convolutions, the last of which adds the shortcut before its ReLU.
struct Block {
    convs: Vec<Conv2d>,
    last: Conv2d,
    shortcut: Option<Conv2d>,
}

impl Block {
    fn load(weights: &VarBuilder, shape: BlockShape, eps: f64) -> Result<Self> {
        let BlockShape { kind, in_channels, planes, stride } = shape;
        let out_channels = planes * kind.expansion();
        let conv = |index: usize, in_channels, out_channels, kernel, stride| {
            let shape = ConvShape::new((in_channels, out_channels), kernel, Initial::BeforeRelu)
                .with_stride(stride);
            let (conv, norm) = (format!("conv{index}"), format!("bn{index}"));
            conv_norm(weights, &conv, &norm, shape, eps, Activation::Relu)
        };
        let (convs, last) = match kind {
            BlockKind::Basic => {
                (vec![conv(1, in_channels, planes, 3, stride)?], conv(2, planes, planes, 3, 1)?)
            }
            BlockKind::Bottleneck => (
                vec![conv(1, in_channels, planes, 1, 1)?, conv(2, planes, planes, 3, stride)?],
                conv(3, planes, out_channels, 1, 1)?,
            ),
        };
        let shortcut = if stride != 1 || in_channels != out_channels {
            let shape = ConvShape::new((in_channels, out_channels), 1, Initial::BeforeRelu)
                .with_stride(stride);
            Some(conv_norm(weights, "downsample.0", "downsample.1", shape, eps, Activation::None)?)
        } else {
            None
        };
        Ok(Self { convs, last, shortcut })
    }

    fn forward(&self, input: Tensor) -> Result<Tensor> {
        let shortcut = match &self.shortcut {
            Some(conv) => conv.forward(&input)?,
            None => input.clone(),
        };
        let mut features = input;
        for conv in &self.convs {
            features = conv.forward(&features)?;
        }
        self.last.forward_plus(&features, &shortcut)
    }
}

fn conv_norm(
    weights: &VarBuilder,
    conv: &str,
    norm: &str,
    shape: ConvShape,
    eps: f64,
    activation: Activation,
) -> Result<Conv2d> {
    let norm = NormAt::new(weights.pp(norm), eps);
    Conv2d::load_normed(&weights.pp(conv), &norm, shape, activation)
}
