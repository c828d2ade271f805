//! Boxes on the device: a fixed capacity and a count of valid slots per image.
//!
//! Invariant of every struct here, kept by the op that fills it: slot `k` of image `n` is valid for
//! `k < counts[n]`, valid slots are ordered by descending score, and everything above the count is zero.

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};

use super::image::ImageSize;
use crate::error::Result;

/// Boxes from the region proposal network, class unknown.
#[derive(Debug, Clone)]
pub struct Proposals {
    /// `[N, K, 4]` f32, xyxy in pixels of the resized image.
    pub boxes: Tensor,
    /// `[N, K]` f32 in `0..=1`, descending.
    pub scores: Tensor,
    /// `[N]` u32, valid slots per image.
    pub counts: Tensor,
}

impl Proposals {
    /// Narrows K to the largest count where that costs nothing; see [`Instances::trim_to_counts`].
    ///
    /// # Errors
    /// Those of candle.
    pub fn trim_to_counts(self) -> Result<Self> {
        let Some(capacity) = largest_count(&self.counts)? else { return Ok(self) };
        Ok(Self {
            boxes: self.boxes.narrow(1, 0, capacity)?.contiguous()?,
            scores: self.scores.narrow(1, 0, capacity)?.contiguous()?,
            counts: self.counts,
        })
    }
}

/// Kept detections, in pixels of the resized image.
#[derive(Debug, Clone)]
pub struct Instances {
    /// `[N, D, 4]` f32, xyxy in pixels of the resized image.
    pub boxes: Tensor,
    /// `[N, D]` f32 in `0..=1`, descending.
    pub scores: Tensor,
    /// `[N, D]` u32, category id; 0 only above the count.
    pub labels: Tensor,
    /// `[N]` u32, valid slots per image.
    pub counts: Tensor,
}

impl Instances {
    /// Narrows D to the largest count where that costs nothing: on the CPU, where counts lie in host memory.
    ///
    /// Capacity is a bargain only on a GPU, where reading a count would stop the pipeline; there this returns its
    /// input. With `SlotRows` it is the only place outside `ops` where the device changes the flow. Results don't depend on it.
    ///
    /// # Errors
    /// Those of candle.
    pub fn trim_to_counts(self) -> Result<Self> {
        let Some(capacity) = largest_count(&self.counts)? else { return Ok(self) };
        Ok(Self {
            boxes: self.boxes.narrow(1, 0, capacity)?.contiguous()?,
            scores: self.scores.narrow(1, 0, capacity)?.contiguous()?,
            labels: self.labels.narrow(1, 0, capacity)?.contiguous()?,
            counts: self.counts,
        })
    }
}

/// The largest of `counts` if they can be read without waiting for a device.
pub(super) fn largest_count(counts: &Tensor) -> Result<Option<usize>> {
    match counts.device() {
        Device::Cpu => {
            let largest = counts.to_vec1::<u32>()?.into_iter().max().unwrap_or(0);
            Ok(Some(largest as usize))
        }
        _ => Ok(None),
    }
}

/// Results of a batch on the device, in pixels of the original images.
#[derive(Debug, Clone)]
pub struct DetectionBatch {
    /// `[N, D, 4]` f32, xyxy in pixels of the original image.
    pub boxes: Tensor,
    /// `[N, D]` f32 in `0..=1`, descending.
    pub scores: Tensor,
    /// `[N, D]` u32, category id; 0 only above the count.
    pub labels: Tensor,
    /// `[N]` u32, valid slots per image.
    pub counts: Tensor,
    /// What instance heads add, by their name: `masks` `[N, D, M, M]` f32 probabilities; `keypoints`
    /// `[N, D, P, 3]` f32 x, y in pixels of the original image and score; yours.
    pub extras: BTreeMap<String, Tensor>,
    /// Original size of each image.
    pub image_sizes: Vec<ImageSize>,
}
