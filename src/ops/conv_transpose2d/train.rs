//! Transposed convolution with weights that training changes.

#[cfg(feature = "cuda")]
use std::sync::Arc;

#[cfg(feature = "cuda")]
use candle_core::DType;
use candle_core::{Device, Tensor};

use super::{LayerDims, OP, PreparedConvTranspose2d, Weights, cpu};
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

/// The weights of a transposed convolution as training has them: variables or constants, in torch's layout.
#[derive(Debug, Clone)]
pub struct TrainableConvTranspose2d {
    weight: Tensor,
    bias: Tensor,
    dims: LayerDims,
}

impl TrainableConvTranspose2d {
    /// The layer with these weights. The tensors are kept, not copied: each call of [`conv_transpose2d_trainable`] reads
    /// the values that they then have.
    ///
    /// # Shapes
    /// | argument | shape | dtype | |
    /// | --- | --- | --- | --- |
    /// | `weight` | `[I, O, 2, 2]` or `[I, O, 4, 4]`, all at least 1 | f32 | variable or constant |
    /// | `bias` | `[O]` | f32 | variable or constant |
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType) or
    /// [`Error::Device`](crate::Error::Device) when the tensors don't fit the table.
    pub fn new(weight: &Tensor, bias: &Tensor) -> Result<Self> {
        let dims = super::check_weights(weight, bias)?;
        Ok(Self { weight: weight.clone(), bias: bias.clone(), dims })
    }
}

/// [`conv_transpose2d`](super::conv_transpose2d()) with gradients of input, weight and bias, as far as they are tracked.
///
/// Kept for the backward pass are the input and what the activation's gradient depends on: the output, or with
/// [`Activation::HardSwish`] what it is applied to; nothing else. The pass frees them, so that a second one over the same
/// graph is an error. The gradient of ReLU at 0 is 0.
///
/// # Shapes
/// As for [`conv_transpose2d`](super::conv_transpose2d()).
///
/// # Devices
/// CPU, on the threads of the current rayon pool; CUDA in f32.
///
/// # Gradients
/// Of `input`, and the weight and bias of `weights`.
///
/// # Errors
/// As for [`conv_transpose2d`](super::conv_transpose2d()).
///
/// # Example
/// ```
/// use candle_core::{DType, Device, Tensor, Var};
/// use candle_detection::ops::{Activation, TrainableConvTranspose2d, conv_transpose2d_trainable};
///
/// let weight = Var::ones((4, 6, 2, 2), DType::F32, &Device::Cpu)?;
/// let bias = Tensor::zeros(6, DType::F32, &Device::Cpu)?;
/// let weights = TrainableConvTranspose2d::new(&weight, &bias)?;
/// let features = Tensor::ones((2, 3, 5, 4), DType::F32, &Device::Cpu)?;
/// let out = conv_transpose2d_trainable(&features, &weights, Activation::Relu)?;
/// let gradients = out.sum_all()?.backward()?;
/// assert_eq!(gradients.get(&weight).map(|g| g.dims()), Some(&[4, 6, 2, 2][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn conv_transpose2d_trainable(
    input: &Tensor,
    weights: &TrainableConvTranspose2d,
    activation: Activation,
) -> Result<Tensor> {
    let TrainableConvTranspose2d { weight, bias, dims } = weights;
    if is_apart(activation, &[input, weight, bias]) {
        let before = conv_transpose2d_trainable(input, weights, Activation::None)?;
        return activate(OP, &before, activation);
    }
    let prepared = prepare(weights)?;
    let output = super::run(input, &prepared, activation)?;
    record(OP, &[input, weight, bias], output, || {
        let (input, weight) = (input.detach(), weight.detach());
        Ok(ConvTranspose2dBackward { input, weight, dims: *dims, activation })
    })
}

fn prepare(weights: &TrainableConvTranspose2d) -> Result<PreparedConvTranspose2d> {
    let TrainableConvTranspose2d { weight, bias, .. } = weights;
    #[cfg(feature = "cuda")]
    if let device @ Device::Cuda(_) = weight.device() {
        argument(OP, "weight", weight).dtype(DType::F32)?;
        return Ok(PreparedConvTranspose2d {
            dims: weights.dims,
            dtype: DType::F32,
            output: DType::F32,
            device: device.clone(),
            weights: Weights::Cuda(Arc::new(cuda::Weights::for_training(
                weight,
                bias,
                weights.dims,
            )?)),
        });
    }
    PreparedConvTranspose2d::new(&weight.detach(), &bias.detach())
}

struct ConvTranspose2dBackward {
    input: Tensor,
    weight: Tensor,
    dims: LayerDims,
    activation: Activation,
}

impl Backward for ConvTranspose2dBackward {
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
            let of_weight =
                wanted[1].then(|| cuda_backward::of_weight(&self.input, &gradient, self.dims));
            let of_bias = wanted[2].then(|| cuda_backward::of_bias(&gradient));
            let of_input = wanted[0].then(|| {
                let filters = cuda_backward::filters(&self.weight, self.dims)?;
                cuda_backward::of_input(&filters, &gradient)
            });
            return Ok(vec![of_input.transpose()?, of_weight.transpose()?, of_bias.transpose()?]);
        }
        if !matches!(device, Device::Cpu) {
            return Err(unsupported("gradients of conv_transpose2d", device));
        }
        let isa = Isa::preferred();
        let (_, height, width, _) = self.input.dims4()?;
        let size = [height, width];
        let of_weight = wanted[1].then(|| -> Result<Tensor> {
            let values = with_slice(&self.input, |input| {
                with_slice(&gradient, |gradient| {
                    cpu::weight_gradient(isa, input, gradient, self.dims, size)
                })
            })??;
            Ok(Tensor::from_vec(values, self.weight.shape(), device)?)
        });
        let of_bias = wanted[2].then(|| -> Result<Tensor> {
            let sums = with_slice(&gradient, |gradient| column_sums(gradient, self.dims.outputs))?;
            Ok(Tensor::from_vec(sums, self.dims.outputs, device)?)
        });
        let of_input = wanted[0].then(|| -> Result<Tensor> {
            let values = with_slice(&self.weight, |weight| {
                with_slice(&gradient, |gradient| {
                    cpu::input_gradient(isa, weight, gradient, self.dims, size)
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
    weights: &PreparedConvTranspose2d,
    activation: Activation,
    output: Tensor,
) -> Result<Tensor> {
    record(OP, &[input], output, || {
        let (weights, input) = (weights.clone(), input.dims4()?.into());
        Ok(PreparedBackward { weights, input, activation })
    })
}

struct PreparedBackward {
    weights: PreparedConvTranspose2d,
    /// `[N, H, W, I]`.
    input: [usize; 4],
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
        let (dims, [_, height, width, _]) = (self.weights.dims, self.input);
        let size = [height, width];
        let weight = match &self.weights.weights {
            Weights::Cpu(weights) => cpu::restore(weights, dims),
            #[cfg(feature = "cuda")]
            Weights::Cuda(weights) => {
                return Ok(vec![Some(cuda_backward::of_input(weights.filters(), &gradient)?)]);
            }
            #[allow(unreachable_patterns, reason = "other devices are features")]
            _ => return Err(unsupported("gradients of conv_transpose2d", self.weights.device())),
        };
        let values = with_slice(&gradient, |gradient| {
            cpu::input_gradient(Isa::preferred(), &weight, gradient, dims, size)
        })?;
        Ok(vec![Some(Tensor::from_vec(values, &self.input, gradient.device())?)])
    }
}
