//! The one download: results of a batch from the device to the host.

use std::sync::Arc;

use candle_core::Tensor;

use super::boxes::BoxXyxy;
use super::detections::{Detections, Instance, InstanceParts};
use super::image::ImageSize;
use super::keypoints::Keypoint;
use super::mask::Mask;
use super::slots::DetectionBatch;
use crate::error::Result;
use crate::ops::pack_results;

/// Names of the heads' outputs among the extras.
const MASKS: &str = "masks";
const KEYPOINTS: &str = "keypoints";

/// A batch's results in one buffer on the device, and how to read it.
#[derive(Debug, Clone)]
pub(crate) struct PackedResults {
    /// `[total]` f32: counts, boxes, scores, labels, then masks and keypoints if there are any.
    values: Tensor,
    slots: usize,
    /// Cells per side of a mask.
    mask_side: Option<usize>,
    /// Keypoints of a slot.
    keypoints: Option<usize>,
    image_sizes: Vec<ImageSize>,
}

impl DetectionBatch {
    /// Copies the results to the host, in one piece, image by image.
    ///
    /// Of the extras, `masks` become [`Mask`]s at the head's resolution and `keypoints` [`Keypoint`]s; others stay on the device, for their owner.
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
            keypoints: self.extras.get(KEYPOINTS).map(|points| points.dim(2)).transpose()?,
            image_sizes: self.image_sizes.clone(),
        })
    }

    /// What is packed, in order.
    fn parts(&self) -> Vec<&Tensor> {
        let mut parts = vec![&self.counts, &self.boxes, &self.scores, &self.labels];
        parts.extend(self.extras.get(MASKS));
        parts.extend(self.extras.get(KEYPOINTS));
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
        let (labels, rest) = rest.split_at(n * slots);
        let cells = self.mask_side.map_or(0, |side| side * side);
        let (masks, keypoints) = rest.split_at(n * slots * cells);
        let (boxes, _) = boxes.as_chunks::<4>();
        let (keypoints, _) = keypoints.as_chunks::<3>();
        let parts = InstanceParts { masks: self.mask_side.is_some(), keypoints: self.keypoints };
        let instance = |image: usize, slot: usize| -> Result<Instance> {
            let place = image * slots + slot;
            let [x1, y1, x2, y2] = boxes[place];
            let bbox = BoxXyxy { x1, y1, x2, y2 };
            let mask = match self.mask_side {
                Some(side) => {
                    let values = Arc::from(&masks[place * cells..(place + 1) * cells]);
                    Some(Mask::new(side, values, bbox, self.image_sizes[image])?)
                }
                None => None,
            };
            let keypoints = self.keypoints.map(|each| {
                let found = &keypoints[place * each..(place + 1) * each];
                found.iter().map(|&[x, y, score]| Keypoint { x, y, score }).collect()
            });
            let label = labels[place] as u32;
            Ok(Instance { bbox, label, score: scores[place], mask, keypoints })
        };
        (0..n)
            .map(|image| {
                Ok(Detections {
                    image_size: self.image_sizes[image],
                    instances: (0..counts[image] as usize)
                        .map(|slot| instance(image, slot))
                        .collect::<Result<_>>()?,
                    parts,
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    const SIDE: usize = 2;
    const POINTS: usize = 3;

    /// Two images with one and two valid slots of two; every value is its place in its tensor.
    fn batch(extras: &[&str]) -> DetectionBatch {
        let device = Device::Cpu;
        let ramp = |dims: &[usize]| {
            let count = dims.iter().product::<usize>() as f32;
            Tensor::arange(0f32, count, &device).unwrap().reshape(dims).unwrap()
        };
        let extra = |name: &str| match name {
            MASKS => ramp(&[2, 2, SIDE, SIDE]),
            _ => ramp(&[2, 2, POINTS, 3]),
        };
        let size = |height, width| ImageSize { height, width };
        DetectionBatch {
            boxes: ramp(&[2, 2, 4]),
            scores: ramp(&[2, 2]),
            labels: Tensor::new(&[[5u32, 0], [7, 9]], &device).unwrap(),
            counts: Tensor::new(&[1u32, 2], &device).unwrap(),
            extras: extras.iter().map(|name| ((*name).to_owned(), extra(name))).collect(),
            image_sizes: vec![size(30, 40), size(50, 60)],
        }
    }

    fn points(first: f32) -> Vec<Keypoint> {
        let at = |k: usize| first + 3.0 * k as f32;
        (0..POINTS).map(|k| Keypoint { x: at(k), y: at(k) + 1.0, score: at(k) + 2.0 }).collect()
    }

    #[test]
    fn every_part_arrives_at_its_instance() {
        for extras in [&[][..], &[MASKS], &[KEYPOINTS], &[MASKS, KEYPOINTS], &["yours"]] {
            let found = batch(extras).to_host().unwrap();
            let has = |name| extras.contains(&name);
            let parts =
                InstanceParts { masks: has(MASKS), keypoints: has(KEYPOINTS).then_some(POINTS) };
            assert_eq!(found.iter().map(|one| one.parts).collect::<Vec<_>>(), [parts; 2]);
            assert_eq!(found[0].instances.len(), 1);
            let last = &found[1].instances[1];
            assert_eq!((last.label, last.score, last.bbox.x1), (9, 3.0, 12.0));
            let mask = last.mask.as_ref().map(|mask| mask.probabilities().to_vec());
            assert_eq!(mask, has(MASKS).then(|| vec![12.0, 13.0, 14.0, 15.0]));
            assert_eq!(last.keypoints, has(KEYPOINTS).then(|| points(27.0)), "{extras:?}");
        }
    }

    #[test]
    fn tensors_are_torchvisions() {
        let found = batch(&[KEYPOINTS]).to_host().unwrap();
        let tensors = found[1].to_tensors(&Device::Cpu).unwrap();
        let keypoints = tensors.keypoints.unwrap().to_vec3::<f32>().unwrap();
        assert_eq!(keypoints[0], [[18.0, 19.0, 1.0], [21.0, 22.0, 1.0], [24.0, 25.0, 1.0]]);
        let scores = tensors.keypoint_scores.unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(scores, [[20.0, 23.0, 26.0], [29.0, 32.0, 35.0]]);
        assert!(tensors.masks.is_none());

        let none = Detections { instances: Vec::new(), ..found[0].clone() };
        let tensors = none.to_tensors(&Device::Cpu).unwrap();
        assert_eq!(tensors.keypoints.unwrap().dims(), [0, POINTS, 3]);
        assert_eq!(tensors.keypoint_scores.unwrap().dims(), [0, POINTS]);
        let boxes = batch(&[]).to_host().unwrap()[0].to_tensors(&Device::Cpu).unwrap();
        assert!(boxes.keypoints.is_none() && boxes.keypoint_scores.is_none());
    }
}
