//! VGG16 (Simonyan and Zisserman, arXiv:1409.1556) up to `conv4_3`, as SSD has it.
//!
//! SSD's third pool rounds the number of its windows up. What follows `conv4_3` belongs to SSD's coarser levels: see
//! [`SsdLevels`](super::SsdLevels).

use candle_core::Tensor;
use candle_nn::VarBuilder;
use serde::{Deserialize, Serialize};

use super::{Body, Stage};
use crate::error::Result;
use crate::layers::{Conv2d, ConvShape, Initial};
use crate::ops::{Activation, MaxPool2dParams, Rounding, max_pool2d};
use crate::section::Checks;

/// Convolutions of each block, and what the pool before the block does with half a window.
const BLOCKS: [(usize, Rounding); 4] =
    [(2, Rounding::Down), (2, Rounding::Down), (3, Rounding::Down), (3, Rounding::Up)];

/// A body that is the beginning of a VGG16.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vgg16Config {
    /// Channels of the first block; the others have 2, 4 and 8 times as many.
    pub width: usize,
}

/// Places of a block's convolutions among torchvision's `features`, in which ReLUs and pools count, too.
fn places(block: usize) -> Vec<usize> {
    let before: usize = BLOCKS[..block].iter().map(|(convs, _)| 2 * convs + 1).sum();
    (0..BLOCKS[block].0).map(|conv| before + 2 * conv).collect()
}

impl Vgg16Config {
    /// Checks the numbers of the section.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), naming the field at fault.
    pub fn validate(&self, checks: &Checks) -> Result<()> {
        checks.at_least_one(&[("width", self.width)])
    }

    /// The only output, that of `conv4_3`.
    pub fn stages(&self) -> Vec<Stage> {
        let last = BLOCKS.len() - 1;
        vec![Stage { channels: self.width << last, stride: 1 << last }]
    }

    /// The blocks, from the last to the first.
    pub(super) fn parts() -> Vec<Vec<String>> {
        let prefixes = |block| places(block).iter().map(|place| format!("{place}.")).collect();
        (0..BLOCKS.len()).rev().map(prefixes).collect()
    }
}

/// The first four blocks of a VGG16.
pub struct Vgg16 {
    blocks: Vec<Vec<Conv2d>>,
    stages: Vec<Stage>,
}

impl Vgg16 {
    /// Loads the blocks from `0`, `2` … `21`: torchvision's `features`.
    ///
    /// # Errors
    /// Those of [`Vgg16Config::validate`], of the weights' source, and of candle.
    pub fn load(weights: &VarBuilder, config: &Vgg16Config) -> Result<Self> {
        config.validate(&Checks::new("a VGG16"))?;
        let mut in_channels = 3;
        let mut blocks = Vec::with_capacity(BLOCKS.len());
        for block in 0..BLOCKS.len() {
            let out_channels = config.width << block;
            let mut convs = Vec::new();
            for place in places(block) {
                let shape = ConvShape::new((in_channels, out_channels), 3, Initial::BeforeRelu);
                convs.push(Conv2d::load(&weights.pp(place), shape, Activation::Relu)?);
                in_channels = out_channels;
            }
            blocks.push(convs);
        }
        Ok(Self { blocks, stages: config.stages() })
    }
}

impl Body for Vgg16 {
    fn stages(&self) -> &[Stage] {
        &self.stages
    }

    fn forward(&self, pixels: &Tensor) -> Result<Vec<Tensor>> {
        let mut features = pixels.clone();
        for (block, (convs, (_, rounding))) in self.blocks.iter().zip(BLOCKS).enumerate() {
            if block > 0 {
                let pool = MaxPool2dParams { kernel: 2, stride: 2, padding: 0, rounding };
                features = max_pool2d(&features, &pool)?;
            }
            for conv in convs {
                features = conv.forward(&features)?;
            }
        }
        Ok(vec![features])
    }
}
