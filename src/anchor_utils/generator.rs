//! One anchor of each size and aspect ratio at every cell.

use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::ops::{AnchorGridParams, AnchorLevel, anchor_grid};
use crate::section::Checks;
use crate::structures::BatchGeometry;

/// Reference boxes of a model: the section `anchors` of its architecture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnchorsConfig {
    /// Pixels, one list per level, finest first: level `i` has `sizes[i]` × `aspect_ratios`, not a product over levels.
    pub sizes: Vec<Vec<f32>>,
    /// Height / width, the same on every level.
    pub aspect_ratios: Vec<f32>,
}

impl AnchorsConfig {
    /// Checks the numbers of the section for a backbone of some levels.
    ///
    /// # Errors
    /// [`Error::Config`], naming the field at fault.
    pub fn validate(&self, levels: usize, checks: &Checks) -> Result<()> {
        let sets = self.sizes.len();
        checks.require(
            (sets == levels).into(),
            "sizes",
            format!("{sets} lists"),
            format!("{levels}, one per level of the backbone"),
        )?;
        let per_level = self.sizes.first().map_or(0, Vec::len);
        let even = self.sizes.iter().all(|sizes| sizes.len() == per_level && per_level > 0);
        checks.require(
            even.into(),
            "sizes",
            format!("{:?}", self.sizes),
            "lists of one length, at least 1: the head is shared by all levels",
        )?;
        let positive = self.sizes.iter().flatten().all(|size| *size > 0.0 && size.is_finite());
        let found = format!("{:?}", self.sizes);
        checks.require(positive.into(), "sizes", found, "positive pixels")?;
        let ratios = &self.aspect_ratios;
        let usable = !ratios.is_empty() && ratios.iter().all(|r| *r > 0.0 && r.is_finite());
        let expected = "at least one positive height / width";
        checks.require(usable.into(), "aspect_ratios", format!("{ratios:?}"), expected)
    }
}

/// Makes the anchors of a batch.
#[derive(Debug, Clone)]
pub struct AnchorGenerator {
    config: AnchorsConfig,
}

impl AnchorGenerator {
    /// A generator of these sizes and ratios.
    pub fn new(config: &AnchorsConfig) -> Self {
        Self { config: config.clone() }
    }

    /// Anchors per feature cell, the same on every level.
    pub fn num_anchors_per_location(&self) -> usize {
        let sizes = self.config.sizes.first().map_or(0, Vec::len);
        sizes * self.config.aspect_ratios.len()
    }

    /// The anchors of all levels, `[A, 4]` f32, xyxy in pixels of the padded batch, the same for every image.
    ///
    /// `levels` are feature maps `[N, H_l, W_l, …]`, finest first; only their shapes and their device are used. The
    /// stride of a level is the padded size divided by the feature size, rounded down, separately in y and x.
    ///
    /// # Errors
    /// [`Error::Config`] when levels and lists of sizes differ in number, or those of [`anchor_grid`].
    pub fn generate(&self, geometry: &BatchGeometry, levels: &[Tensor]) -> Result<Tensor> {
        let device = levels.first().map_or(&Device::Cpu, Tensor::device);
        if levels.is_empty() || levels.len() != self.config.sizes.len() {
            return Err(Error::Config {
                origin: "anchor generation".to_owned(),
                field: "anchors.sizes".to_owned(),
                found: format!("{} lists", self.config.sizes.len()),
                expected: format!("one per feature level, of which there are {}", levels.len()),
            });
        }
        let levels = levels
            .iter()
            .zip(&self.config.sizes)
            .map(|(level, sizes)| {
                let (height, width) = (level.dim(1)?, level.dim(2)?);
                Ok(AnchorLevel {
                    height,
                    width,
                    stride_y: geometry.padded.height / height.max(1),
                    stride_x: geometry.padded.width / width.max(1),
                    sizes: sizes.clone(),
                    aspect_ratios: self.config.aspect_ratios.clone(),
                })
            })
            .collect::<Result<_>>()?;
        anchor_grid(&AnchorGridParams { levels }, device)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::structures::ImageSize;

    #[test]
    fn strides_follow_from_the_padded_size_on_each_axis() {
        let generator = AnchorGenerator::new(&AnchorsConfig {
            sizes: vec![vec![32.0]],
            aspect_ratios: vec![1.0],
        });
        let padded = ImageSize { height: 20, width: 40 };
        let geometry = BatchGeometry { padded, images: Vec::new() };
        let level = Tensor::zeros((1, 2, 3, 7), DType::F32, &Device::Cpu).unwrap();
        let anchors = generator.generate(&geometry, &[level]).unwrap().to_vec2::<f32>().unwrap();
        let corners: Vec<[f32; 2]> = anchors.iter().map(|b| [b[0], b[1]]).collect();
        let expected = [
            [-16.0, -16.0],
            [-3.0, -16.0],
            [10.0, -16.0],
            [-16.0, -6.0],
            [-3.0, -6.0],
            [10.0, -6.0],
        ];
        assert_eq!(corners, expected);
    }

    #[test]
    fn numbers_of_levels_must_agree() {
        let config = AnchorsConfig { sizes: vec![vec![8.0]; 2], aspect_ratios: vec![1.0] };
        let generator = AnchorGenerator::new(&config);
        let geometry =
            BatchGeometry { padded: ImageSize { height: 32, width: 32 }, images: Vec::new() };
        let level = Tensor::zeros((1, 4, 4, 1), DType::F32, &Device::Cpu).unwrap();
        let message = generator.generate(&geometry, &vec![level; 5]).unwrap_err().to_string();
        assert!(message.contains("2 lists") && message.contains("there are 5"), "{message}");
    }
}
