//! The one download: results of a batch from the device to the host.

use std::sync::Arc;

use candle_core::Tensor;

use super::detections::{BoxXyxy, Detections, Instance};
use super::image::ImageSize;
use super::mask::Mask;
use super::slots::DetectionBatch;
use crate::error::Result;
use crate::ops::pack_results;

/// Name of the mask head's output among the extras.
const MASKS: &str = "masks";

/// A batch's results in one buffer on the device, and how to read it.
#[derive(Debug, Clone)]
pub(crate) struct PackedResults {
    /// `[total]` f32: counts, boxes, scores, labels, then masks if there are any.
    values: Tensor,
    slots: usize,
    /// Cells per side of a mask.
    mask_side: Option<usize>,
    image_sizes: Vec<ImageSize>,
}

impl DetectionBatch {
    /// Copies the results to the host, in one piece, image by image.
    ///
    /// Of the extras, `masks` become [`Mask`]s at the head's resolution; others stay on the device, for their owner.
    ///
    /// # Errors
    /// Those of the device.
    pub fn to_host(&self) -> Result<Vec<Detections>> {
        self.pack()?.to_host()
    }

    /// Brings the results together in one buffer.
    pub(crate) fn pack(&self) -> Result<PackedResults> {
        let (_, slots) = self.scores.dims2()?;
        Ok(PackedResults {
            values: pack_results(&self.parts())?,
            slots,
            mask_side: self.extras.get(MASKS).map(|masks| masks.dim(3)).transpose()?,
            image_sizes: self.image_sizes.clone(),
        })
    }

    /// What is packed, in order.
    fn parts(&self) -> Vec<&Tensor> {
        let mut parts = vec![&self.counts, &self.boxes, &self.scores, &self.labels];
        parts.extend(self.extras.get(MASKS));
        parts
    }
}

impl PackedResults {
    /// Packs another batch of the same shapes into the same memory.
    #[cfg(feature = "cuda")]
    pub(crate) fn repack(&self, batch: &DetectionBatch) -> Result<()> {
        crate::ops::pack_results_into(&batch.parts(), &self.values)
    }

    /// The one download, and the results image by image.
    pub(crate) fn to_host(&self) -> Result<Vec<Detections>> {
        #[cfg(feature = "cuda")]
        crate::ops::count_download(&self.values);
        let packed = self.values.to_vec1::<f32>()?;
        let n = self.image_sizes.len();
        let slots = self.slots;
        let (counts, rest) = packed.split_at(n);
        let (boxes, rest) = rest.split_at(n * slots * 4);
        let (scores, rest) = rest.split_at(n * slots);
        let (labels, masks) = rest.split_at(n * slots);
        let (boxes, _) = boxes.as_chunks::<4>();
        let instance = |image: usize, slot: usize| -> Result<Instance> {
            let place = image * slots + slot;
            let [x1, y1, x2, y2] = boxes[place];
            let bbox = BoxXyxy { x1, y1, x2, y2 };
            let mask = match self.mask_side {
                Some(side) => {
                    let cells = side * side;
                    let values = Arc::from(&masks[place * cells..(place + 1) * cells]);
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
                    has_masks: self.mask_side.is_some(),
                })
            })
            .collect()
    }
}
