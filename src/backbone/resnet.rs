//! ResNet 18 to 152 (He et al., arXiv:1512.03385), "v1.5": the stride of a bottleneck is in its 3×3 convolution. With
//! groups, ResNeXt (Xie et al., arXiv:1611.05431); with wider ones, Wide ResNet (Zagoruyko and Komodakis,
//! arXiv:1605.07146).

use candle_core::Tensor;
use candle_nn::VarBuilder;
use serde::{Deserialize, Serialize};

use super::{Body, Stage};
use crate::error::Result;
use crate::layers::{Conv2d, ConvShape, Initial, Norm, NormAt};
use crate::ops::{Activation, MaxPool2dParams, Rounding, max_pool2d};
use crate::section::Checks;

/// The stem's pooling: padding is −∞, so that it never wins.
const STEM_POOL: MaxPool2dParams =
    MaxPool2dParams { kernel: 3, stride: 2, padding: 1, rounding: Rounding::Down };

/// Input pixels per cell of the first stage's output.
const FIRST_STRIDE: usize = 4;

/// A body that is a ResNet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResNetConfig {
    /// Layers with weights: 18, 34, 50, 101 or 152.
    pub depth: usize,
    /// Channels of the stem; the stages have 1, 2, 4 and 8 times as many (4 times that in a bottleneck's output).
    pub width: usize,
    /// Groups of a bottleneck's 3×3 convolution: 32 or 64 in ResNeXt.
    #[serde(default = "one_group")]
    pub groups: usize,
    /// Channels of each of these groups in the first stage, where `width` is 64: 64 in ResNet, 4 in ResNeXt 32×4d, 128 in
    /// Wide ResNet-50-2.
    #[serde(default = "full_width")]
    pub width_per_group: usize,
    /// Normalisation after each convolution.
    pub norm: Norm,
    /// Added to the variance by every norm. The published V1 COCO weights need exactly 0.
    pub norm_eps: f64,
}

fn one_group() -> usize {
    1
}

fn full_width() -> usize {
    FULL_WIDTH
}

/// Of a stem and of a group, where nothing is wider or narrower.
const FULL_WIDTH: usize = 64;

impl ResNetConfig {
    /// Checks the numbers of the section.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), naming the field at fault.
    pub fn validate(&self, checks: &Checks) -> Result<()> {
        let Some((kind, _)) = layout(self.depth) else {
            return Err(checks.fault("depth", self.depth.to_string(), "18, 34, 50, 101 or 152"));
        };
        let normed = self.norm != Norm::None;
        let expected =
            "`frozen_batch_norm` or `batch_norm`: a ResNet's convolutions have no biases";
        checks.require(normed.into(), "norm", "`none`", expected)?;
        checks.at_least_one(&[
            ("width", self.width),
            ("groups", self.groups),
            ("width_per_group", self.width_per_group),
        ])?;
        let plain = self.groups == 1 && self.width_per_group == FULL_WIDTH;
        checks.require(
            (plain || kind == BlockKind::Bottleneck).into(),
            "groups",
            format!("{} of {} channels", self.groups, self.width_per_group),
            "1 of 64 channels: blocks of a ResNet-18 and 34 have no others",
        )?;
        checks.require(
            (self.inner_width(self.width) > 0).into(),
            "width_per_group",
            self.width_per_group.to_string(),
            format!("at least one channel a group where `width` is {}", self.width),
        )?;
        checks.eps("norm_eps", self.norm_eps)
    }

    /// Outputs of the four stages; none of an unknown depth.
    pub fn stages(&self) -> Vec<Stage> {
        let Some((kind, depths)) = layout(self.depth) else { return Vec::new() };
        let stage = |index: usize| Stage {
            channels: (self.width << index) * kind.expansion(),
            stride: FIRST_STRIDE << index,
        };
        (0..depths.len()).map(stage).collect()
    }

    /// Channels of a bottleneck's 3×3 convolution.
    fn inner_width(&self, planes: usize) -> usize {
        planes * self.width_per_group / FULL_WIDTH * self.groups
    }

    /// The four stages and the stem, from the last to the first, as torchvision's `trainable_backbone_layers` counts.
    pub(super) fn parts() -> Vec<Vec<String>> {
        let stages =
            ["layer4.", "layer3.", "layer2.", "layer1."].map(|stage| vec![stage.to_owned()]);
        let stem = ["conv1.", "bn1."].map(str::to_owned).to_vec();
        stages.into_iter().chain([stem]).collect()
    }
}

/// A ResNet without its classifier.
pub struct ResNet {
    stem: Conv2d,
    blocks: Vec<Vec<Block>>,
    stages: Vec<Stage>,
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
fn layout(depth: usize) -> Option<(BlockKind, [usize; 4])> {
    match depth {
        18 => Some((BlockKind::Basic, [2, 2, 2, 2])),
        34 => Some((BlockKind::Basic, [3, 4, 6, 3])),
        50 => Some((BlockKind::Bottleneck, [3, 4, 6, 3])),
        101 => Some((BlockKind::Bottleneck, [3, 4, 23, 3])),
        152 => Some((BlockKind::Bottleneck, [3, 8, 36, 3])),
        _ => None,
    }
}

impl ResNet {
    /// Loads the network from `conv1`, `bn1`, `layer1` … `layer4`.
    ///
    /// # Errors
    /// Those of [`ResNetConfig::validate`], of the weights' source, and of candle.
    pub fn load(weights: &VarBuilder, config: &ResNetConfig) -> Result<Self> {
        config.validate(&Checks::new("a ResNet"))?;
        let eps = config.norm_eps;
        let stem = ConvShape::new((3, config.width), 7, Initial::BeforeRelu).with_stride(2);
        let stem = conv_norm(weights, "conv1", "bn1", stem, eps, Activation::Relu)?;
        let (kind, depths) = layout(config.depth).unwrap_or((BlockKind::Basic, [0; 4]));
        let mut channels = config.width;
        let mut stages = Vec::with_capacity(depths.len());
        for (stage, depth) in depths.into_iter().enumerate() {
            let planes = config.width << stage;
            let weights = weights.pp(format!("layer{}", stage + 1));
            let mut blocks = Vec::with_capacity(depth);
            for index in 0..depth {
                let stride = if stage > 0 && index == 0 { 2 } else { 1 };
                let inner = config.inner_width(planes);
                let shape = BlockShape {
                    kind,
                    in_channels: channels,
                    planes,
                    inner,
                    groups: config.groups,
                    stride,
                };
                blocks.push(Block::load(&weights.pp(index), shape, eps)?);
                channels = planes * kind.expansion();
            }
            stages.push(blocks);
        }
        Ok(Self { stem, blocks: stages, stages: config.stages() })
    }
}

impl Body for ResNet {
    fn stages(&self) -> &[Stage] {
        &self.stages
    }

    fn forward(&self, pixels: &Tensor) -> Result<Vec<Tensor>> {
        let mut features = max_pool2d(&self.stem.forward(pixels)?, &STEM_POOL)?;
        let mut outputs = Vec::with_capacity(self.blocks.len());
        for blocks in &self.blocks {
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
    /// Channels of a bottleneck's 3×3 convolution, and its groups.
    inner: usize,
    groups: usize,
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
        let BlockShape { kind, in_channels, planes, inner, groups, stride } = shape;
        let out_channels = planes * kind.expansion();
        let shaped = |in_channels, out_channels, kernel| {
            ConvShape::new((in_channels, out_channels), kernel, Initial::BeforeRelu)
        };
        let conv = |index: usize, shape| {
            let (conv, norm) = (format!("conv{index}"), format!("bn{index}"));
            conv_norm(weights, &conv, &norm, shape, eps, Activation::Relu)
        };
        let (convs, last) = match kind {
            BlockKind::Basic => (
                vec![conv(1, shaped(in_channels, planes, 3).with_stride(stride))?],
                conv(2, shaped(planes, planes, 3))?,
            ),
            BlockKind::Bottleneck => {
                let middle = shaped(inner, inner, 3).with_stride(stride).with_groups(groups);
                (
                    vec![conv(1, shaped(in_channels, inner, 1))?, conv(2, middle)?],
                    conv(3, shaped(inner, out_channels, 1))?,
                )
            }
        };
        let shortcut = if stride != 1 || in_channels != out_channels {
            let shape = shaped(in_channels, out_channels, 1).with_stride(stride);
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
