//! Linear layer with weights that training changes.

#[cfg(feature = "cuda")]
use candle_core::DType;
use candle_core::{Device, Tensor};

use super::{OP, PreparedLinear, Weights, cpu};
#[cfg(feature = "cuda")]
use super::{cuda, cuda_backward};
use crate::error::Result;
use crate::ops::support::activate::{activate, is_apart};
use crate::ops::support::activation::{Activation, GradientReads};
use crate::ops::support::autograd::{Backward, record};
#[cfg(feature = "cuda")]
use crate::ops::support::check::argument;
use crate::ops::support::check::{unsupported, with_slice};
use crate::ops::support::cpu::elementwise::through_activation;
use crate::ops::support::cpu::outer::column_sums;
use crate::ops::support::isa::Isa;

/// The weights of a linear layer as training has them: variables or constants, in torch's layout.
#[derive(Debug, Clone)]
pub struct TrainableLinear {
    weight: Tensor,
    bias: Tensor,
}

impl TrainableLinear {
    /// The layer with these weights. The tensors are kept, not copied: each call of [`linear_trainable`] reads the
    /// values that they then have.
    ///
    /// # Shapes
    /// | argument | shape | dtype | |
    /// | --- | --- | --- | --- |
    /// | `weight` | `[O, I]`, both at least 1 | f32 | variable or constant |
    /// | `bias` | `[O]` | f32 | variable or constant |
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType) or
    /// [`Error::Device`](crate::Error::Device) when the tensors don't fit the table.
    pub fn new(weight: &Tensor, bias: &Tensor) -> Result<Self> {
        super::check_weights(weight, bias)?;
        Ok(Self { weight: weight.clone(), bias: bias.clone() })
    }
}

/// [`linear`](super::linear()) with gradients of input, weight and bias, as far as they are tracked.
///
/// Kept for the backward pass are the input and what the activation's gradient depends on: the output, or with
/// [`Activation::HardSwish`] what it is applied to; nothing else. The pass frees them, so that a second one over the same
/// graph is an error. The gradient of ReLU at 0 is 0.
///
/// # Shapes
/// As for [`linear`](super::linear()).
///
/// # Devices
/// CPU, on the threads of the current rayon pool; CUDA in f32.
///
/// # Gradients
/// Of `input`, and the weight and bias of `weights`.
///
/// # Errors
/// As for [`linear`](super::linear()).
///
/// # Example
/// ```
/// use candle_core::{DType, Device, Tensor, Var};
/// use candle_detection::ops::{Activation, TrainableLinear, linear_trainable};
///
/// let weight = Var::ones((2, 3), DType::F32, &Device::Cpu)?;
/// let bias = Var::zeros(2, DType::F32, &Device::Cpu)?;
/// let rows = Tensor::new(&[[1f32, 2.0, 3.0]], &Device::Cpu)?;
/// let out = linear_trainable(&rows, &TrainableLinear::new(&weight, &bias)?, Activation::None)?;
/// let gradients = out.sum_all()?.backward()?;
/// let of_weight = gradients.get(&weight).map(|g| g.to_vec2::<f32>());
/// assert_eq!(of_weight.transpose()?, Some(vec![vec![1.0, 2.0, 3.0]; 2]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn linear_trainable(
    input: &Tensor,
    weights: &TrainableLinear,
    activation: Activation,
) -> Result<Tensor> {
    let TrainableLinear { weight, bias } = weights;
    if is_apart(activation, &[input, weight, bias]) {
        let before = linear_trainable(input, weights, Activation::None)?;
        return activate(OP, &before, activation);
    }
    let prepared = prepare(weight, bias)?;
    let output = super::run(input, &prepared, activation)?;
    record(OP, &[input, weight, bias], output, || {
        Ok(LinearBackward { input: input.detach(), weight: weight.detach(), activation })
    })
}

fn prepare(weight: &Tensor, bias: &Tensor) -> Result<PreparedLinear> {
    #[cfg(feature = "cuda")]
    if let device @ Device::Cuda(_) = weight.device() {
        argument(OP, "weight", weight).dtype(DType::F32)?;
        return Ok(PreparedLinear {
            dims: weight.dims2()?.into(),
            dtype: DType::F32,
            output: DType::F32,
            device: device.clone(),
            weights: Weights::Cuda(std::sync::Arc::new(cuda::Weights::as_they_are(weight, bias)?)),
        });
    }
    PreparedLinear::new(&weight.detach(), &bias.detach())
}

struct LinearBackward {
    input: Tensor,
    weight: Tensor,
    activation: Activation,
}

impl Backward for LinearBackward {
    fn reads_output(&self) -> bool {
        self.activation.gradient_reads() == GradientReads::Output
    }

    fn backward(
        &self,
        output: Option<&Tensor>,
        gradient: &Tensor,
        wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let gradient = through_activation(self.activation, output, gradient)?;
        let device = gradient.device();
        #[cfg(feature = "cuda")]
        if device.is_cuda() {
            let of_input = wanted[0].then(|| cuda_backward::of_input(&self.weight, &gradient));
            let of_weight = wanted[1].then(|| cuda_backward::of_weight(&self.input, &gradient));
            let of_bias = wanted[2].then(|| cuda_backward::of_bias(&gradient));
            return Ok(vec![of_input.transpose()?, of_weight.transpose()?, of_bias.transpose()?]);
        }
        if !matches!(device, Device::Cpu) {
            return Err(unsupported("gradients of linear", device));
        }
        let isa = Isa::preferred();
        let (outputs, inputs) = self.weight.dims2()?;
        let of_weight = wanted[1].then(|| -> Result<Tensor> {
            let values = with_slice(&self.input, |input| {
                with_slice(&gradient, |gradient| {
                    cpu::weight_gradient(isa, input, gradient, [outputs, inputs])
                })
            })??;
            Ok(Tensor::from_vec(values, (outputs, inputs), device)?)
        });
        let of_bias = wanted[2].then(|| -> Result<Tensor> {
            let sums = with_slice(&gradient, |gradient| column_sums(gradient, outputs))?;
            Ok(Tensor::from_vec(sums, outputs, device)?)
        });
        let of_input = wanted[0].then(|| -> Result<Tensor> {
            let values = with_slice(&self.weight, |weight| {
                with_slice(&gradient, |gradient| {
                    cpu::input_gradient(isa, weight, gradient, [outputs, inputs])
                })
            })??;
            Ok(Tensor::from_vec(values, self.input.shape(), device)?)
        });
        Ok(vec![of_input.transpose()?, of_weight.transpose()?, of_bias.transpose()?])
    }
}

/// Makes `output` differentiable where the weights are constants.
pub(super) fn record_prepared(
    input: &Tensor,
    weights: &PreparedLinear,
    activation: Activation,
    output: Tensor,
) -> Result<Tensor> {
    record(OP, &[input], output, || Ok(PreparedBackward { weights: weights.clone(), activation }))
}

struct PreparedBackward {
    weights: PreparedLinear,
    activation: Activation,
}

impl Backward for PreparedBackward {
    fn reads_output(&self) -> bool {
        self.activation.gradient_reads() == GradientReads::Output
    }

    fn backward(
        &self,
        output: Option<&Tensor>,
        gradient: &Tensor,
        _: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let gradient = through_activation(self.activation, output, gradient)?;
        let dims @ [_, inputs] = self.weights.dims;
        let weight = match &self.weights.weights {
            Weights::Cpu(weights) => weights.unpack(),
            #[cfg(feature = "cuda")]
            Weights::Cuda(weights) => {
                return Ok(vec![Some(cuda_backward::of_input(weights.weight(), &gradient)?)]);
            }
            #[allow(unreachable_patterns, reason = "other devices are features")]
            _ => return Err(unsupported("gradients of linear", self.weights.device())),
        };
        let values = with_slice(&gradient, |gradient| {
            cpu::input_gradient(Isa::preferred(), &weight, gradient, dims)
        })?;
        let shape = (gradient.dim(0)?, inputs);
        Ok(vec![Some(Tensor::from_vec(values, shape, gradient.device())?)])
    }
}
