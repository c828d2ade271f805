//! Pictures to train on that take no time to draw.

use candle_core::{Device, Tensor};
use candle_detection::structures::{BoxXyxy, ImageSize, Rle, Target};
use candle_detection::train::{Batch, BatchSource, Position, Random};
use candle_detection::{ImageInput, Result};

/// Four pictures of one rectangle each, light on dark; class and shape go together.
pub struct Rectangles {
    pub batch: usize,
    pub rank: usize,
    pub ranks: usize,
    /// The position whose batch has a pixel that is not a number.
    pub poisoned: Option<Position>,
}

pub const PICTURES: usize = 4;
const SIZE: ImageSize = ImageSize { height: 72, width: 96 };

impl Rectangles {
    pub fn new(batch: usize) -> Self {
        Self { batch, rank: 0, ranks: 1, poisoned: None }
    }

    pub fn picture(index: usize) -> (ImageInput, Target) {
        let (label, [x1, y1, x2, y2]) = [
            (1, [12usize, 10, 44, 60]),
            (2, [30, 20, 84, 44]),
            (3, [50, 8, 74, 34]),
            (1, [8, 16, 40, 66]),
        ][index % PICTURES];
        let inside = |x: usize, y: usize| (x1..x2).contains(&x) && (y1..y2).contains(&y);
        let mut random = Random::new(index as u64);
        let mut bytes = Vec::new();
        let mut mask = image::GrayImage::new(SIZE.width as u32, SIZE.height as u32);
        for y in 0..SIZE.height {
            for x in 0..SIZE.width {
                let base = if inside(x, y) { 150 + 30 * label as usize } else { 40 };
                bytes.extend([0, 1, 2].map(|_| (base + random.below(12)) as u8));
                mask.put_pixel(x as u32, y as u32, image::Luma([u8::from(inside(x, y))]));
            }
        }
        let [x1, y1, x2, y2] = [x1, y1, x2, y2].map(|side| side as f32);
        let target = Target {
            image_id: index as u64,
            boxes: vec![BoxXyxy { x1, y1, x2, y2 }],
            labels: vec![label],
            masks: vec![Rle::from_bitmap(&mask).unwrap()],
            keypoints: Vec::new(),
        };
        (ImageInput::from_rgb8(SIZE.width, SIZE.height, bytes).unwrap(), target)
    }
}

impl BatchSource for Rectangles {
    fn batches_per_epoch(&self) -> usize {
        PICTURES / self.batch / self.ranks
    }

    fn batch(&mut self, position: Position) -> Result<Batch> {
        let first = (position.index * self.ranks + self.rank) * self.batch;
        let shift = position.epoch as usize;
        let pairs = (first..first + self.batch).map(|i| Self::picture((i + shift) % PICTURES));
        let (mut images, targets): (Vec<_>, Vec<_>) = pairs.unzip();
        if self.poisoned == Some(position) {
            let planes = Tensor::full(f32::NAN, (3, SIZE.height, SIZE.width), &Device::Cpu)?;
            images[0] = ImageInput::from_tensor(&planes)?;
        }
        Ok(Batch { images, targets, min_size: None })
    }
}
