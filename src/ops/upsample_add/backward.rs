//! Gradients of the top-down step.

use candle_core::{Device, Tensor};

use super::{cpu, nearest};
use crate::error::Result;
use crate::ops::support::autograd::Backward;
use crate::ops::support::check::{unsupported, with_slice};

pub(super) struct UpsampleAddBackward {
    /// `[N, h, w, C]` of the coarse map.
    pub coarse: [usize; 4],
}

impl Backward for UpsampleAddBackward {
    fn backward(
        &self,
        _: Option<&Tensor>,
        gradient: &Tensor,
        wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let (_, height, width, _) = gradient.dims4()?;
        let of_coarse = match gradient.device() {
            _ if !wanted[0] => None,
            Device::Cpu => {
                let rows = nearest(self.coarse[1], height);
                let columns = nearest(self.coarse[2], width);
                let values = with_slice(gradient, |gradient| {
                    cpu::coarse_gradient(gradient, self.coarse, &rows, &columns)
                })?;
                Some(Tensor::from_vec(values, &self.coarse, gradient.device())?)
            }
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => Some(super::cuda_backward::coarse_gradient(gradient, self.coarse)?),
            other => return Err(unsupported("the gradient of upsample_add", other)),
        };
        Ok(vec![of_coarse, Some(gradient.clone())])
    }
}
