//! (anchor, class) pairs that a one-stage detector's head has chosen.

use candle_core::Tensor;

/// Pairs before suppression, with `S` slots an image; zero in invalid slots.
#[derive(Debug, Clone)]
pub struct Pairs {
    /// `[N, S]` u32, anchor over all levels joined.
    pub index: Tensor,
    /// `[N, S]` u32, class.
    pub labels: Tensor,
    /// `[N, S]` f32 in `0..=1`, descending within a level or class.
    pub scores: Tensor,
    /// `[N, S]` u8, 1 where the slot holds a pair.
    pub valid: Tensor,
}

/// One list of pairs an image and level, or an image and class, on the host.
#[derive(Debug, Clone)]
pub(crate) struct HostPairs {
    pub index: Vec<u32>,
    pub labels: Vec<u32>,
    pub scores: Vec<f32>,
    pub valid: Vec<u8>,
}

impl HostPairs {
    /// Empty slots.
    pub fn new(slots: usize) -> Self {
        Self {
            index: vec![0; slots],
            labels: vec![0; slots],
            scores: vec![0.0; slots],
            valid: vec![0; slots],
        }
    }

    /// Fills a slot.
    pub fn set(&mut self, slot: usize, index: u32, label: u32, score: f32) {
        self.index[slot] = index;
        self.labels[slot] = label;
        self.scores[slot] = score;
        self.valid[slot] = 1;
    }

    /// As tensors of this shape.
    pub fn into_tensors(self, shape: (usize, usize)) -> candle_core::Result<Pairs> {
        let device = &candle_core::Device::Cpu;
        Ok(Pairs {
            index: Tensor::from_vec(self.index, shape, device)?,
            labels: Tensor::from_vec(self.labels, shape, device)?,
            scores: Tensor::from_vec(self.scores, shape, device)?,
            valid: Tensor::from_vec(self.valid, shape, device)?,
        })
    }
}

/// Cuts keys down to the `k` smallest, in any order.
pub(crate) fn keep_smallest(keys: &mut Vec<u64>, k: usize) {
    if k < keys.len() {
        keys.select_nth_unstable(k);
        keys.truncate(k);
    }
}
