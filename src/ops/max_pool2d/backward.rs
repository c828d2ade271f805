//! Gradient of max pooling.

use candle_core::{Device, Tensor};

use super::{MaxPool2dParams, cpu};
use crate::error::Result;
use crate::ops::support::autograd::Backward;
use crate::ops::support::check::{unsupported, with_slice};

pub(super) struct MaxPool2dBackward {
    pub input: Tensor,
    pub params: MaxPool2dParams,
}

impl Backward for MaxPool2dBackward {
    fn backward(
        &self,
        _: Option<&Tensor>,
        gradient: &Tensor,
        _: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        #[cfg(feature = "cuda")]
        if gradient.device().is_cuda() {
            let of_input =
                super::cuda_backward::input_gradient(&self.input, gradient, &self.params)?;
            return Ok(vec![Some(of_input)]);
        }
        let (dims, out_dims) = (self.input.dims4()?.into(), gradient.dims4()?.into());
        let values = match gradient.device() {
            Device::Cpu => with_slice(&self.input, |input| {
                with_slice(gradient, |gradient| {
                    cpu::input_gradient(input, dims, out_dims, gradient, &self.params)
                })
            })??,
            other => return Err(unsupported("the gradient of max_pool2d", other)),
        };
        Ok(vec![Some(Tensor::from_vec(values, &dims, gradient.device())?)])
    }
}
