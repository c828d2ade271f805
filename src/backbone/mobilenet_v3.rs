//! MobileNetV3-Large (Howard et al., "Searching for MobileNetV3", arXiv:1905.02244).
//!
//! Blocks expand the channels by a 1×1 convolution, look around in each channel by itself, weigh the channels by what the
//! whole image shows (squeeze and excitation, in some blocks), and project them back to few.

use candle_core::Tensor;
use candle_nn::VarBuilder;
use serde::{Deserialize, Serialize};

use super::{Body, Stage};
use crate::error::Result;
use crate::layers::{Conv2d, ConvShape, Initial, Norm, NormAt};
use crate::ops::{Activation, global_avg_pool, scale_channels};
use crate::section::Checks;

/// Channels are multiples of this.
const UNIT: usize = 8;
/// Channels of the stem.
const STEM: usize = 16;
/// What the last convolution does to the number of channels.
const LAST_EXPANSION: usize = 6;
/// Blocks from this one on have half the channels in a reduced tail: C4 and what follows.
const FIRST_OF_TAIL: usize = 12;

/// A body that is a MobileNetV3-Large.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MobileNetV3Config {
    /// Factor of all numbers of channels, which are then rounded to multiples of 8. 1 in all of torchvision's detectors.
    #[serde(default = "full_width")]
    pub width_mult: f64,
    /// Whether the blocks from C4 on have half the channels, as those of torchvision's SSDLite have.
    #[serde(default)]
    pub reduced_tail: bool,
    /// Normalisation after each convolution.
    pub norm: Norm,
    /// Added to the variance by every norm.
    pub norm_eps: f64,
    /// Share of a batch's statistics in the running ones, where norms are trained.
    #[serde(default = "default_momentum")]
    pub norm_momentum: f64,
}

fn full_width() -> f64 {
    1.0
}

fn default_momentum() -> f64 {
    0.1
}

impl MobileNetV3Config {
    /// Checks the numbers of the section.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), naming the field at fault.
    pub fn validate(&self, checks: &Checks) -> Result<()> {
        let expected = "`frozen_batch_norm` or `batch_norm`: convolutions have no biases";
        checks.require((self.norm != Norm::None).into(), "norm", "`none`", expected)?;
        let usable = self.width_mult > 0.0 && self.width_mult <= 16.0;
        let found = self.width_mult.to_string();
        checks.require(usable.into(), "width_mult", found, "a factor above 0, at most 16")?;
        checks.fractions(&[("norm_momentum", self.norm_momentum)])?;
        checks.eps("norm_eps", self.norm_eps)
    }

    /// Outputs of the stem, of the blocks that halve the size, and of the last convolution: C0 to C5.
    pub fn stages(&self) -> Vec<Stage> {
        let blocks = self.blocks();
        let mut stride = 2;
        let mut stages = vec![Stage { channels: self.stem(), stride }];
        for block in blocks.iter().filter(|block| block.stride > 1) {
            stride *= block.stride;
            stages.push(Stage { channels: block.out_channels, stride });
        }
        stages.push(Stage { channels: self.last(), stride });
        stages
    }

    /// Channels of the stem.
    pub(crate) fn stem(&self) -> usize {
        self.channels(STEM)
    }

    /// Channels of the last convolution.
    pub(crate) fn last(&self) -> usize {
        self.blocks().last().map_or(0, |block| LAST_EXPANSION * block.out_channels)
    }

    /// The blocks between the stem and the last convolution.
    pub(crate) fn blocks(&self) -> Vec<BlockShape> {
        use Activation::{HardSwish, Relu};
        // Window, expanded channels, channels of the output, whether there is a squeeze, activation, stride.
        let table = [
            (3, 16, 16, false, Relu, 1),
            (3, 64, 24, false, Relu, 2), // C1
            (3, 72, 24, false, Relu, 1),
            (5, 72, 40, true, Relu, 2), // C2
            (5, 120, 40, true, Relu, 1),
            (5, 120, 40, true, Relu, 1),
            (3, 240, 80, false, HardSwish, 2), // C3
            (3, 200, 80, false, HardSwish, 1),
            (3, 184, 80, false, HardSwish, 1),
            (3, 184, 80, false, HardSwish, 1),
            (3, 480, 112, true, HardSwish, 1),
            (3, 672, 112, true, HardSwish, 1),
            (5, 672, 160, true, HardSwish, 2), // C4
            (5, 960, 160, true, HardSwish, 1),
            (5, 960, 160, true, HardSwish, 1),
        ];
        let mut in_channels = self.stem();
        let block = |(index, row): (usize, (usize, usize, usize, bool, Activation, usize))| {
            let (kernel, expanded, out_channels, squeezed, activation, stride) = row;
            // C4's expansion works on what is before it.
            let of_tail = |first: usize| if self.reduced_tail && index >= first { 2 } else { 1 };
            let expanded = self.channels(expanded / of_tail(FIRST_OF_TAIL + 1));
            let out_channels = self.channels(out_channels / of_tail(FIRST_OF_TAIL));
            let squeeze = squeezed.then(|| divisible((expanded / 4) as f64));
            let shape = BlockShape {
                in_channels,
                kernel,
                expanded,
                out_channels,
                squeeze,
                activation,
                stride,
            };
            in_channels = out_channels;
            shape
        };
        table.into_iter().enumerate().map(block).collect()
    }

    /// Index of each stage's last feature among `features`: stem, blocks, last convolution.
    pub(crate) fn stage_indices(&self) -> Vec<usize> {
        let blocks = self.blocks();
        let strided = blocks.iter().enumerate().filter(|(_, block)| block.stride > 1);
        let strided = strided.map(|(index, _)| index + 1);
        [0].into_iter().chain(strided).chain([blocks.len() + 1]).collect()
    }

    /// How convolutions are normalised and first filled.
    pub(crate) fn style(&self, initial: Initial) -> ConvStyle {
        ConvStyle { initial, eps: self.norm_eps, momentum: self.norm_momentum }
    }

    /// The stages, from the last to the first, as torchvision's `trainable_backbone_layers` counts: each begins with a block
    /// that halves the size.
    pub(super) fn parts(&self) -> Vec<Vec<String>> {
        let starts = self.stage_indices();
        let ends = starts.iter().skip(1).copied().chain([self.blocks().len() + 2]);
        let parts = starts
            .iter()
            .zip(ends)
            .map(|(start, end)| (*start..end).map(|index| format!("{index}.")).collect::<Vec<_>>());
        let mut parts: Vec<_> = parts.collect();
        parts.reverse();
        parts
    }

    fn channels(&self, channels: usize) -> usize {
        divisible(channels as f64 * self.width_mult)
    }
}

/// The nearest multiple of 8, but not less than nine tenths of `channels`, as torchvision's `_make_divisible` has it.
fn divisible(channels: f64) -> usize {
    let nearest = ((channels + UNIT as f64 / 2.0) as usize / UNIT * UNIT).max(UNIT);
    if (nearest as f64) < 0.9 * channels { nearest + UNIT } else { nearest }
}

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

/// A MobileNetV3-Large without its classifier.
pub struct MobileNetV3 {
    stem: Conv2d,
    blocks: Vec<InvertedResidual>,
    last: Conv2d,
    /// Of [`MobileNetV3Config::stage_indices`].
    stage_indices: Vec<usize>,
    stages: Vec<Stage>,
}

impl MobileNetV3 {
    /// Loads the network from `0` (stem), `1` … `15` (blocks) and `16`: torchvision's `features`.
    ///
    /// # Errors
    /// Those of [`MobileNetV3Config::validate`], of the weights' source, and of candle.
    pub fn load(weights: &VarBuilder, config: &MobileNetV3Config) -> Result<Self> {
        config.validate(&Checks::new("a MobileNetV3"))?;
        let style = config.style(Initial::BeforeRelu);
        let shapes = config.blocks();
        let channels = shapes.last().map_or(0, |block| block.out_channels);
        let last = ConvShape::new((channels, config.last()), 1, style.initial);
        let blocks = shapes.iter().zip(1..);
        Ok(Self {
            stem: load_stem(&weights.pp(0), config, style)?,
            blocks: blocks
                .map(|(shape, index)| InvertedResidual::load(&weights.pp(index), shape, style))
                .collect::<Result<_>>()?,
            last: style.conv(&weights.pp(shapes.len() + 1), last, Activation::HardSwish)?,
            stage_indices: config.stage_indices(),
            stages: config.stages(),
        })
    }
}

/// The first convolution of a MobileNetV3, at `0` and `1`.
pub(crate) fn load_stem(
    weights: &VarBuilder,
    config: &MobileNetV3Config,
    style: ConvStyle,
) -> Result<Conv2d> {
    let shape = ConvShape::new((3, config.stem()), 3, style.initial).with_stride(2);
    style.conv(weights, shape, Activation::HardSwish)
}

impl Body for MobileNetV3 {
    fn stages(&self) -> &[Stage] {
        &self.stages
    }

    fn forward(&self, pixels: &Tensor) -> Result<Vec<Tensor>> {
        let mut features = self.stem.forward(pixels)?;
        let mut outputs = vec![features.clone()];
        for (block, index) in self.blocks.iter().zip(1..) {
            features = block.forward(&features)?;
            if self.stage_indices.contains(&index) {
                outputs.push(features.clone());
            }
        }
        outputs.push(self.last.forward(&features)?);
        Ok(outputs)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;
    use crate::ops::support::testing::{assert_close_relative, fixture};

    fn config() -> MobileNetV3Config {
        MobileNetV3Config {
            width_mult: 1.0,
            reduced_tail: false,
            norm: Norm::FrozenBatchNorm,
            norm_eps: 1e-5,
            norm_momentum: 0.1,
        }
    }

    #[test]
    fn stages_are_those_of_torchvision() {
        let of = |config: &MobileNetV3Config| {
            let stages = config.stages().into_iter().map(|s| (s.channels, s.stride));
            stages.collect::<Vec<_>>()
        };
        let full = [(16, 2), (24, 4), (40, 8), (80, 16), (160, 32), (960, 32)];
        assert_eq!(of(&config()), full);
        let reduced = MobileNetV3Config { reduced_tail: true, ..config() };
        assert_eq!(of(&reduced)[4..], [(80, 32), (480, 32)]);
        assert_eq!(reduced.blocks()[FIRST_OF_TAIL].expanded, 672);
        assert_eq!(reduced.blocks()[FIRST_OF_TAIL + 1].expanded, 480);
        assert_eq!(config().stage_indices(), [0, 2, 4, 7, 13, 16]);
        assert_eq!(config().blocks()[10].squeeze, Some(120));
    }

    /// As `torchvision.models._utils._make_divisible`.
    #[test]
    fn channels_are_rounded_as_torchvision_rounds_them() {
        let found = [1.0, 8.0, 9.6, 10.8, 11.9, 12.0, 18.0, 67.2, 100.8].map(divisible);
        assert_eq!(found, [8, 8, 16, 16, 16, 16, 24, 64, 104]);
    }

    /// Parts that are frozen, from the last to the first.
    #[test]
    fn parts_begin_with_blocks_that_halve_the_size() {
        let parts = config().parts();
        let firsts = parts.iter().map(|part| part[0].as_str());
        assert_eq!(firsts.collect::<Vec<_>>(), ["16.", "13.", "7.", "4.", "2.", "0."]);
        assert_eq!(parts[1], ["13.", "14.", "15."]);
        assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), 17);
    }

    #[test]
    fn faults_are_named() {
        let message = |config: MobileNetV3Config| {
            config.validate(&Checks::new("mine.toml").section("body")).unwrap_err().to_string()
        };
        assert!(message(MobileNetV3Config { width_mult: 0.0, ..config() }).contains("width_mult"));
        assert!(message(MobileNetV3Config { norm: Norm::None, ..config() }).contains("body.norm"));
        let message = message(MobileNetV3Config { norm_momentum: 1.5, ..config() });
        assert!(message.contains("norm_momentum"));
    }

    /// Against torchvision's `SqueezeExcitation`, output and gradients.
    #[test]
    fn channels_are_weighed_as_torchvision_weighs_them() {
        let tensors = fixture("convs.safetensors");
        let get = |name: &str| tensors[&format!("squeeze/{name}")].clone();
        let map = |name: &str| get(name).permute((0, 2, 3, 1)).unwrap().contiguous().unwrap();
        let names = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"];
        let variables = names.map(|name| (name, Var::from_tensor(&get(name)).unwrap()));
        let by_name = variables.iter().map(|(name, var)| ((*name).to_owned(), var.as_tensor()));
        let by_name = by_name.map(|(name, tensor)| (name, tensor.clone())).collect();
        let weights = VarBuilder::from_tensors(by_name, candle_core::DType::F32, &Device::Cpu);
        let layer = SqueezeExcitation::load(&weights, 12, 8, Initial::BeforeRelu).unwrap();
        let input = Var::from_tensor(&map("input")).unwrap();
        let output = layer.forward(&input).unwrap();
        assert_close_relative(&output, &map("output"), 1e-5);
        let sum = (output * map("weights")).unwrap().sum_all().unwrap();
        let gradients = sum.backward().unwrap();
        assert_close_relative(gradients.get(&input).unwrap(), &map("input.grad"), 1e-5);
        for (name, variable) in &variables {
            let found = gradients.get(variable).unwrap();
            assert_close_relative(found, &get(&format!("{name}.grad")), 1e-5);
        }
    }
}
