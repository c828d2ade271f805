//! What the images of a batch show, on the device.

use candle_core::{Device, Tensor};

use super::ground_truth::GroundTruth;
use super::object_mask::PackedMasks;
use crate::error::Result;
use crate::ops::{HostArray, ObjectMasks, Objects, upload_arrays};

/// The objects of a batch, in as many slots for every image as the image with the most needs.
#[derive(Debug, Clone)]
pub struct ObjectBatch {
    /// `[N, G, 4]` f32, xyxy in pixels of the resized images.
    pub boxes: Tensor,
    /// `[N, G]` u32, category ids; 0 above the counts.
    pub labels: Tensor,
    /// `[N]` u32.
    pub counts: Tensor,
    /// Their outlines; without pixels where the model learns no masks.
    pub masks: ObjectMasks,
    /// `[N, G, P, 3]` f32: x, y in pixels of the resized images, and visibility (0, 1, 2); 0 above the counts, and no
    /// keypoint (P = 0) where the model learns none.
    pub keypoints: Tensor,
}

impl ObjectBatch {
    /// Brings all objects to a device, in one copy.
    ///
    /// # Errors
    /// [`Error::Pixels`](crate::Error::Pixels) for outlines of more than 4 GiB; those of the driver.
    pub fn upload(truths: &[GroundTruth], device: &Device) -> Result<Self> {
        let (images, slots) =
            (truths.len(), truths.iter().map(|truth| truth.boxes.len()).max().unwrap_or(0));
        let points = truths.iter().map(|truth| truth.points).max().unwrap_or(0);
        let (mut boxes, mut labels, mut keypoints) = (Vec::new(), Vec::new(), Vec::new());
        let mut masks = PackedMasks::default();
        for (image, truth) in truths.iter().enumerate() {
            boxes.extend(&truth.boxes);
            boxes.resize((image + 1) * slots, [0.0; 4]);
            labels.extend(&truth.labels);
            labels.resize((image + 1) * slots, 0);
            masks.append(&truth.masks, slots)?;
            keypoints.extend(truth.keypoints.iter().flatten());
            keypoints.resize((image + 1) * slots * points, [0f32; 3]);
        }
        let counts: Vec<u32> = truths.iter().map(|truth| truth.boxes.len() as u32).collect();
        let arrays = [
            HostArray::F32(boxes.as_flattened()),
            HostArray::U32(&labels),
            HostArray::U32(&counts),
            HostArray::U32(masks.places.as_flattened()),
            HostArray::F32(keypoints.as_flattened()),
            HostArray::U8(&masks.pixels),
        ];
        let mut tensors = upload_arrays(&arrays, device)?.into_iter();
        let mut next = || tensors.next().ok_or_else(|| candle_core::Error::msg("an array is lost"));
        let boxes = next()?.reshape((images, slots, 4))?;
        let labels = next()?.reshape((images, slots))?;
        let counts = next()?;
        let places = next()?.reshape((images, slots, 9))?;
        let keypoints = next()?.reshape((images, slots, points, 3))?;
        let masks = ObjectMasks { places, pixels: next()? };
        Ok(Self { boxes, labels, counts, masks, keypoints })
    }

    /// Boxes and labels.
    pub fn by_ref(&self) -> Objects<'_> {
        Objects { boxes: &self.boxes, labels: &self.labels }
    }
}
