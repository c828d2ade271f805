//! Anchors: the reference boxes that the region proposal network corrects.
//!
//! They are computed on the device of the features from shape scalars alone: sizes of features and batch, anchor sizes,
//! aspect ratios. No tensor is built on the host, nothing is uploaded, nothing is cached.

use candle_core::{Device, Tensor};

use crate::config::AnchorsConfig;
use crate::error::{Error, Result};
use crate::ops::{AnchorGridParams, AnchorLevel, anchor_grid};
use crate::structures::BatchGeometry;

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
