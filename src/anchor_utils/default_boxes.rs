//! Default boxes of single-shot detectors: the same few shapes at every cell of several feature maps.

use candle_core::{Device, Tensor};

use crate::error::{Error, Result};
use crate::ops::{DefaultBoxLevel, DefaultBoxesParams, default_boxes};
use crate::structures::BatchGeometry;

/// Makes the default boxes of a batch.
///
/// A level with scale `s`, the next one's being `s'`, has boxes of sides `(s, s)` and `(√(s·s'), √(s·s'))`, then for each
/// ratio `r` those of `(s·√r, s/√r)` and `(s/√r, s·√r)`: fractions of the image, clamped to 0…1.
///
/// Reference: torchvision `models/detection/anchor_utils.py`, `DefaultBoxGenerator`; Liu et al. 2016, section 2.2.
#[derive(Debug, Clone, PartialEq)]
pub struct DefaultBoxGenerator {
    sides: Vec<Vec<[f32; 2]>>,
    steps: Option<Vec<f64>>,
}

impl DefaultBoxGenerator {
    /// A generator.
    ///
    /// `aspect_ratios` are width / height besides 1, a list per level; `scales` one more than levels, as fractions of the
    /// image; `steps` input pixels per cell and level, or `None` for the padded size divided by that of the features.
    ///
    /// # Errors
    /// [`Error::Config`] when the lists don't agree in length.
    pub fn new(aspect_ratios: &[Vec<f64>], scales: &[f64], steps: Option<&[f64]>) -> Result<Self> {
        let levels = aspect_ratios.len();
        require(
            "scales",
            scales.len(),
            levels + 1,
            "one more than there are lists of aspect ratios",
        )?;
        if let Some(steps) = steps {
            require("steps", steps.len(), levels, "one per list of aspect ratios")?;
        }
        let sides = aspect_ratios.iter().zip(scales.windows(2)).map(|(ratios, scale)| {
            let between = (scale[0] * scale[1]).sqrt();
            let mut sides = vec![[scale[0]; 2], [between; 2]];
            for ratio in ratios {
                let root = ratio.sqrt();
                let (long, short) = (scale[0] * root, scale[0] / root);
                sides.extend([[long, short], [short, long]]);
            }
            sides.into_iter().map(|sides| sides.map(|side| (side as f32).clamp(0.0, 1.0))).collect()
        });
        Ok(Self { sides: sides.collect(), steps: steps.map(<[f64]>::to_vec) })
    }

    /// Scales in equal steps from `least` to `most`, one per level, then 1.
    pub fn scales_between(least: f64, most: f64, levels: usize) -> Vec<f64> {
        if levels < 2 {
            return vec![least, most];
        }
        let step = |level: usize| least + (most - least) * level as f64 / (levels as f64 - 1.0);
        (0..levels).map(step).chain([1.0]).collect()
    }

    /// Boxes per feature cell of each level.
    pub fn num_anchors_per_location(&self) -> Vec<usize> {
        self.sides.iter().map(Vec::len).collect()
    }

    /// The boxes of all levels, `[A, 4]` f32, xyxy in pixels of the padded batch, the same for every image.
    ///
    /// `levels` are feature maps `[N, H_l, W_l, …]`, finest first; only their shapes and their device are used.
    ///
    /// # Errors
    /// [`Error::Config`] when levels and lists of aspect ratios differ in number, or those of [`default_boxes`].
    pub fn generate(&self, geometry: &BatchGeometry, levels: &[Tensor]) -> Result<Tensor> {
        require("aspect_ratios", self.sides.len(), levels.len(), "one list per feature level")?;
        let device = levels.first().map_or(&Device::Cpu, Tensor::device);
        let padded = geometry.padded;
        let levels = levels
            .iter()
            .zip(&self.sides)
            .enumerate()
            .map(|(place, (level, sides))| {
                let (height, width) = (level.dim(1)?, level.dim(2)?);
                let cells = |image: usize, features: usize| match &self.steps {
                    Some(steps) => (image as f64 / steps[place]) as f32,
                    None => features as f32,
                };
                Ok(DefaultBoxLevel {
                    height,
                    width,
                    cells_y: cells(padded.height, height),
                    cells_x: cells(padded.width, width),
                    sides: sides.clone(),
                })
            })
            .collect::<Result<_>>()?;
        let image_size = (padded.height, padded.width);
        default_boxes(&DefaultBoxesParams { levels, image_size }, device)
    }
}

fn require(field: &str, found: usize, expected: usize, why: &str) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::Config {
        origin: "default boxes".to_owned(),
        field: field.to_owned(),
        found: format!("{found} entries"),
        expected: format!("{expected}: {why}"),
    })
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::ops::support::testing::{fixture, values};
    use crate::structures::ImageSize;

    fn boxes(generator: &DefaultBoxGenerator, size: usize, grids: &[usize]) -> Vec<[f32; 4]> {
        let padded = ImageSize { height: size, width: size };
        let geometry = BatchGeometry { padded, images: Vec::new() };
        let levels: Vec<Tensor> = grids
            .iter()
            .map(|cells| Tensor::zeros((1, *cells, *cells, 1), DType::F32, &Device::Cpu).unwrap())
            .collect();
        let boxes = values(&generator.generate(&geometry, &levels).unwrap());
        boxes.as_chunks::<4>().0.to_vec()
    }

    fn assert_every_13th(found: &[[f32; 4]], case: &str) {
        let expected = values(&fixture("dense.safetensors")[&format!("default_boxes/{case}")]);
        let (expected, _) = expected.as_chunks::<4>();
        let found: Vec<[f32; 4]> = found.iter().step_by(13).copied().collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn boxes_of_ssd300_are_those_of_torchvision() {
        let ratios =
            [vec![2.0], vec![2.0, 3.0], vec![2.0, 3.0], vec![2.0, 3.0], vec![2.0], vec![2.0]];
        let scales = [0.07, 0.15, 0.33, 0.51, 0.69, 0.87, 1.05];
        let steps = [8.0, 16.0, 32.0, 64.0, 100.0, 300.0];
        let generator = DefaultBoxGenerator::new(&ratios, &scales, Some(&steps)).unwrap();
        assert_eq!(generator.num_anchors_per_location(), [4, 6, 6, 6, 4, 4]);
        let found = boxes(&generator, 300, &[38, 19, 10, 5, 3, 1]);
        assert_eq!(found.len(), 8732);
        assert_every_13th(&found, "ssd300");
    }

    #[test]
    fn boxes_of_ssdlite_are_those_of_torchvision() {
        let scales = DefaultBoxGenerator::scales_between(0.2, 0.95, 6);
        let generator = DefaultBoxGenerator::new(&vec![vec![2.0, 3.0]; 6], &scales, None).unwrap();
        assert_every_13th(&boxes(&generator, 320, &[20, 10, 5, 3, 2, 1]), "ssdlite320");
    }

    #[test]
    fn lists_must_agree() {
        let ratios = [vec![2.0], vec![2.0]];
        let message = DefaultBoxGenerator::new(&ratios, &[0.1, 0.2], None).unwrap_err().to_string();
        assert!(message.contains("scales") && message.contains('3'), "{message}");
        let message = DefaultBoxGenerator::new(&ratios, &[0.1, 0.2, 0.3], Some(&[8.0]))
            .unwrap_err()
            .to_string();
        assert!(message.contains("steps"), "{message}");
        let generator = DefaultBoxGenerator::new(&ratios, &[0.1, 0.2, 0.3], None).unwrap();
        let padded = ImageSize { height: 8, width: 8 };
        let geometry = BatchGeometry { padded, images: Vec::new() };
        let message = generator.generate(&geometry, &[]).unwrap_err().to_string();
        assert!(message.contains("aspect_ratios"), "{message}");
    }
}
