//! The levels of SSD (Liu et al., arXiv:1512.02325) on a VGG16.

use candle_core::Tensor;
use candle_nn::{Init, VarBuilder};
use serde::{Deserialize, Serialize};

use super::{Neck, Stage};
use crate::error::{Error, Result};
use crate::layers::{Conv2d, ConvShape, Initial, get_f32};
use crate::ops::{Activation, MaxPool2dParams, Rounding, l2_normalize, max_pool2d};
use crate::section::Checks;
use crate::structures::{FeatureLevel, FeatureMaps};

/// The first lengths of the finest level's cells.
const FIRST_LENGTH: f64 = 20.0;
/// Rows and columns of the finest level that the coarsest one is left one cell of: 34, 17, 9, 5, 3, 1.
const LEAST_CELLS: usize = 34;
/// The pool in front of `conv5_1`.
const HALVING: MaxPool2dParams =
    MaxPool2dParams { kernel: 2, stride: 2, padding: 0, rounding: Rounding::Down };
/// The pool behind `conv5_3`, which keeps the size.
const LAST_POOL: MaxPool2dParams =
    MaxPool2dParams { kernel: 3, stride: 1, padding: 1, rounding: Rounding::Down };
/// Distance of the taps of `conv6`, which sees what the fully connected layer of a VGG16 saw.
const DILATION: usize = 6;

/// A neck that makes the six levels of SSD300 of `conv4_3`, which has 512 channels in the reference.
///
/// The numbers of the other channels follow from these.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SsdLevelsConfig {}

/// A level of two convolutions, 1×1 and 3×3.
#[derive(Debug, Clone, Copy)]
struct ExtraShape {
    /// Channels of input, in between, and of the output.
    channels: [usize; 3],
    stride: usize,
    padding: usize,
}

/// The last four levels, of the channels of `conv4_3`.
fn extras(channels: usize) -> [ExtraShape; 4] {
    let (half, quarter) = (channels / 2, channels / 4);
    let extra = |channels, stride, padding| ExtraShape { channels, stride, padding };
    [
        extra([2 * channels, half, channels], 2, 1),
        extra([channels, quarter, half], 2, 1),
        extra([half, quarter, half], 1, 0),
        extra([half, quarter, half], 1, 0),
    ]
}

impl SsdLevelsConfig {
    /// Checks that the body has the one stage that the levels are made of.
    ///
    /// # Errors
    /// [`Error::Config`], naming `kind`.
    pub fn validate(&self, stages: &[Stage], checks: &Checks) -> Result<()> {
        let fits = matches!(stages, [stage] if stage.channels.is_multiple_of(4));
        let channels: Vec<usize> = stages.iter().map(|stage| stage.channels).collect();
        let found = format!("`ssd_levels` on stages of {channels:?} channels");
        let expected = "a body with one stage whose channels are a multiple of 4, such as `vgg16`";
        checks.require(fits.into(), "kind", found, expected)
    }

    /// The levels on a body of these stages.
    pub fn levels(&self, stages: &[Stage]) -> Vec<FeatureLevel> {
        let Some(Stage { channels, stride }) = stages.first().copied() else { return Vec::new() };
        let mut levels = vec![(channels, stride), (2 * channels, 2 * stride)];
        let mut stride = 2 * stride;
        for extra in extras(channels) {
            stride *= extra.stride;
            levels.push((extra.channels[2], stride));
        }
        named(levels)
    }

    /// The last block of the VGG16, which the levels have in the reference's names.
    pub(super) fn parts() -> Vec<Vec<String>> {
        vec![CONV5.map(|place| format!("extra.0.{place}.")).to_vec()]
    }
}

/// Levels called `0`, `1` …, of their channels and strides.
pub(super) fn named(levels: Vec<(usize, usize)>) -> Vec<FeatureLevel> {
    let level = |(index, (channels, stride)): (usize, (usize, usize))| FeatureLevel {
        name: index.to_string(),
        channels,
        stride,
    };
    levels.into_iter().enumerate().map(level).collect()
}

/// Places of the last block's convolutions in `extra.0`.
const CONV5: [usize; 3] = [1, 3, 5];

/// `conv4_3` with cells of learned lengths, and five coarser levels.
pub struct SsdLevels {
    scale_weight: Tensor,
    conv5: Vec<Conv2d>,
    conv6: Conv2d,
    conv7: Conv2d,
    extras: Vec<[Conv2d; 2]>,
    levels: Vec<FeatureLevel>,
}

impl SsdLevels {
    /// Loads the levels from `scale_weight` and `extra`.
    ///
    /// # Errors
    /// Those of [`SsdLevelsConfig::validate`], of the weights' source, and of candle.
    pub fn load(weights: &VarBuilder, stages: &[Stage], config: &SsdLevelsConfig) -> Result<Self> {
        config.validate(stages, &Checks::new("SSD's levels"))?;
        let channels = stages.first().map_or(0, |stage| stage.channels);
        let extra = weights.pp("extra");
        let conv = |name: String, channels, kernel, initial| {
            let shape = ConvShape::new(channels, kernel, initial);
            Conv2d::load(&extra.pp(name), shape, Activation::Relu)
        };
        let conv5 = CONV5
            .into_iter()
            .map(|place| conv(format!("0.{place}"), (channels, channels), 3, Initial::BeforeRelu));
        let wide = 2 * channels;
        let conv6 = ConvShape::new((channels, wide), 3, Initial::Xavier).with_dilation(DILATION);
        let load_extra = |(level, shape): (usize, ExtraShape)| -> Result<[Conv2d; 2]> {
            let ExtraShape { channels: [input, between, output], stride, padding } = shape;
            let second = ConvShape::new((between, output), 3, Initial::Xavier)
                .with_stride(stride)
                .with_padding(padding);
            Ok([
                conv(format!("{level}.0"), (input, between), 1, Initial::Xavier)?,
                Conv2d::load(&extra.pp(format!("{level}.2")), second, Activation::Relu)?,
            ])
        };
        Ok(Self {
            scale_weight: get_f32(weights, channels, "scale_weight", Init::Const(FIRST_LENGTH))?,
            conv5: conv5.collect::<Result<_>>()?,
            conv6: Conv2d::load(&extra.pp("0.7.1"), conv6, Activation::Relu)?,
            conv7: conv("0.7.3".to_owned(), (wide, wide), 1, Initial::Xavier)?,
            extras: (1..).zip(extras(channels)).map(load_extra).collect::<Result<_>>()?,
            levels: config.levels(stages),
        })
    }
}

impl Neck for SsdLevels {
    fn levels(&self) -> &[FeatureLevel] {
        &self.levels
    }

    fn forward(&self, stages: Vec<Tensor>) -> Result<FeatureMaps> {
        let finest = stages.into_iter().next().ok_or_else(|| no_cell_left(0, 0))?;
        let (_, height, width, _) = finest.dims4()?;
        if height.min(width) < LEAST_CELLS {
            return Err(no_cell_left(height, width));
        }
        let mut levels = vec![l2_normalize(&finest, &self.scale_weight)?];
        let mut features = max_pool2d(&finest, &HALVING)?;
        drop(finest);
        for conv in &self.conv5 {
            features = conv.forward(&features)?;
        }
        features = self.conv6.forward(&max_pool2d(&features, &LAST_POOL)?)?;
        features = self.conv7.forward(&features)?;
        levels.push(features.clone());
        for [first, second] in &self.extras {
            features = second.forward(&first.forward(&features)?)?;
            levels.push(features.clone());
        }
        Ok(FeatureMaps { levels })
    }
}

/// The error of images that are too small for all levels.
fn no_cell_left(height: usize, width: usize) -> Error {
    Error::Config {
        origin: "the model".to_owned(),
        field: "image.fixed_size".to_owned(),
        found: format!("a size that leaves {height}×{width} cells on SSD's finest level"),
        expected: format!(
            "at least {LEAST_CELLS}×{LEAST_CELLS}, so that the coarsest level has a cell: images of 268×268 pixels"
        ),
    }
}
