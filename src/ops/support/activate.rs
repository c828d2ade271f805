//! Activations as steps of their own.

use candle_core::{DType, Device, Tensor};
use rayon::prelude::*;

use super::activation::{Activation, GradientReads};
use super::autograd::{Backward, record};
use super::check::{argument, unsupported, with_slice};
use super::cpu::elementwise::{CHUNK, through_activation};
use crate::error::Result;

/// An activation as a step of its own, with its gradient; keeps `input`, which is f32. For activations whose gradient reads
/// what they are applied to, where gradients are tracked.
pub(crate) fn activate(op: &'static str, input: &Tensor, activation: Activation) -> Result<Tensor> {
    argument(op, "input of the activation", input).dtype(DType::F32)?;
    let output = match input.device() {
        Device::Cpu => {
            let values = with_slice::<f32, _>(input, |values| {
                let mut out = values.to_vec();
                out.par_chunks_mut(CHUNK).for_each(|values| activation.apply_to_all(values));
                out
            })?;
            Tensor::from_vec(values, input.shape(), &Device::Cpu)?
        }
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => crate::ops::support::cuda::activate(activation, input)?,
        other => return Err(unsupported(op, other)),
    };
    record(op, &[input], output, || {
        Ok(ActivationBackward { input: input.detach().contiguous()?, activation })
    })
}

struct ActivationBackward {
    input: Tensor,
    activation: Activation,
}

impl Backward for ActivationBackward {
    fn backward(
        &self,
        _: Option<&Tensor>,
        gradient: &Tensor,
        _: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(through_activation(self.activation, Some(&self.input), gradient)?)])
    }
}

/// Whether an op has to leave its activation to [`activate`].
pub(crate) fn is_apart(activation: Activation, inputs: &[&Tensor]) -> bool {
    activation.gradient_reads() == GradientReads::Input
        && inputs.iter().any(|input| input.track_op())
}
