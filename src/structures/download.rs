//! The one download: results of a batch from the device to the host.

use std::sync::Arc;

use super::detections::{BoxXyxy, Detections, Instance};
use super::mask::Mask;
use super::slots::DetectionBatch;
use crate::error::Result;
use crate::ops::pack_results;

/// Name of the mask head's output among the extras.
const MASKS: &str = "masks";

impl DetectionBatch {
    /// Copies the results to the host, in one piece, image by image.
    ///
    /// Of the extras, `masks` become [`Mask`]s at the head's resolution; others stay on the device, for their owner.
    ///
    /// # Errors
    /// Those of the device.
    pub fn to_host(&self) -> Result<Vec<Detections>> {
        let (n, slots) = self.scores.dims2()?;
        let masks = self.extras.get(MASKS);
        let side = masks.map_or(Ok(0), |masks| masks.dim(3))?;
        let mut parts = vec![&self.counts, &self.boxes, &self.scores, &self.labels];
        parts.extend(masks);
        let packed = pack_results(&parts)?.to_vec1::<f32>()?;

        let (counts, rest) = packed.split_at(n);
        let (boxes, rest) = rest.split_at(n * slots * 4);
        let (scores, rest) = rest.split_at(n * slots);
        let (labels, masks_flat) = rest.split_at(n * slots);
        let (boxes, _) = boxes.as_chunks::<4>();
        let instance = |image: usize, slot: usize| -> Result<Instance> {
            let place = image * slots + slot;
            let [x1, y1, x2, y2] = boxes[place];
            let bbox = BoxXyxy { x1, y1, x2, y2 };
            let mask = match masks {
                Some(_) => {
                    let cells = side * side;
                    let values = Arc::from(&masks_flat[place * cells..(place + 1) * cells]);
                    Some(Mask::new(side, values, bbox, self.image_sizes[image])?)
                }
                None => None,
            };
            Ok(Instance { bbox, label: labels[place] as u32, score: scores[place], mask })
        };
        (0..n)
            .map(|image| {
                Ok(Detections {
                    image_size: self.image_sizes[image],
                    instances: (0..counts[image] as usize)
                        .map(|slot| instance(image, slot))
                        .collect::<Result<_>>()?,
                    has_masks: masks.is_some(),
                })
            })
            .collect()
    }
}
