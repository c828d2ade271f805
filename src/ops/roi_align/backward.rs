//! Gradients of the pooled levels; boxes get none, as in torchvision.

use candle_core::{Device, Tensor};

use super::{RoiAlignParams, cpu_backward};
use crate::error::Result;
use crate::ops::support::autograd::Backward;
use crate::ops::support::check::{lend, unsupported};

pub(super) struct RoiAlignBackward {
    /// `[N, H_l, W_l, C]` of each level.
    pub levels: Vec<[usize; 4]>,
    pub boxes: Tensor,
    pub counts: Tensor,
    pub params: RoiAlignParams,
}

impl Backward for RoiAlignBackward {
    fn backward(
        &self,
        _: Option<&Tensor>,
        gradient: &Tensor,
        wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let device = gradient.device();
        #[cfg(feature = "cuda")]
        if device.is_cuda() {
            let Self { levels, boxes, counts, params } = self;
            return super::cuda_backward::run(gradient, boxes, counts, levels, wanted, params);
        }
        let gradients = match device {
            Device::Cpu => {
                let (boxes, counts, n_slots) = (&self.boxes, &self.counts, self.boxes.dim(1)?);
                lend!(gradient: f32, boxes: f32, counts: u32);
                let pooled = cpu_backward::Pooled { gradient, boxes, n_slots, counts };
                cpu_backward::run(&pooled, &self.levels, wanted, &self.params)
            }
            other => return Err(unsupported("the gradient of roi_align", other)),
        };
        let levels = gradients.into_iter().zip(&self.levels);
        levels
            .map(|(values, dims)| {
                Ok(values.map(|values| Tensor::from_vec(values, dims, device)).transpose()?)
            })
            .collect()
    }
}
