//! Convolution with weights that training changes.

#[cfg(feature = "cuda")]
use candle_core::DType;
use candle_core::{Device, Tensor};

use super::cpu::{input_gradient, weight_gradient};
#[cfg(feature = "cuda")]
use super::cuda;
use super::sizes::Sizes;
use super::{Conv2dParams, OP, PreparedConv2d, Weights};
use crate::error::Result;
use crate::ops::support::activate::{activate, is_apart};
use crate::ops::support::activation::{Activation, GradientReads};
use crate::ops::support::autograd::{Backward, record};
use crate::ops::support::check::{argument, unsupported, with_optional_slice, with_slice};
use crate::ops::support::cpu::elementwise::{scale_rows, through_activation};
use crate::ops::support::cpu::outer::column_sums;
use crate::ops::support::isa::Isa;

/// The weights of a convolution as training has them: variables or constants, in torch's layout.
#[derive(Debug, Clone)]
pub struct TrainableConv2d {
    /// Whose gradient is asked for.
    source: Tensor,
    /// Its values as filters, outside of any graph.
    weight: Tensor,
    scale: Option<Tensor>,
    bias: Tensor,
    params: Conv2dParams,
}

impl TrainableConv2d {
    /// The convolution with filters `scale[o] · weight[o, ..]`. The tensors are kept, not copied: each call of
    /// [`conv2d_trainable`] reads the values that they then have.
    ///
    /// # Shapes
    /// | argument | shape | dtype | |
    /// | --- | --- | --- | --- |
    /// | `weight` | `[O, I/groups, kh, kw]`, all at least 1 | f32 | variable or constant |
    /// | `scale` | `[O]` | f32 | constant, of a norm with fixed statistics; gets no gradient |
    /// | `bias` | `[O]` | f32 | variable or constant |
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType) or
    /// [`Error::Device`](crate::Error::Device) when the tensors don't fit the table,
    /// [`Error::Shape`](crate::Error::Shape) for parameters that [`PreparedConv2d::new`] refuses.
    pub fn new(
        weight: &Tensor,
        scale: Option<&Tensor>,
        bias: &Tensor,
        params: Conv2dParams,
    ) -> Result<Self> {
        super::check_weights(weight, bias, params)?;
        if let Some(scale) = scale {
            argument(OP, "scale", scale)
                .dtype(weight.dtype())?
                .same_device(weight)?
                .shape(&weight.dims()[..1], "[O]")?;
        }
        let scale = scale.map(Tensor::detach);
        let (source, weight) = (weight.clone(), weight.detach());
        Ok(Self { source, weight, scale, bias: bias.clone(), params })
    }

    /// A linear layer over windows, which takes inputs with channels last: the columns of `weight` `[O, I·kh·kw]` run over
    /// channels, rows, columns.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn over_windows(weight: &Tensor, (kh, kw): (usize, usize), bias: &Tensor) -> Result<Self> {
        let expected = "[O, I·kh·kw]";
        let argument = argument(OP, "weight", weight);
        let [outputs, inputs] = argument.dims(expected)?;
        if kh * kw == 0 || !inputs.is_multiple_of(kh * kw) {
            return Err(argument.shape_error(expected));
        }
        let filters = weight.detach().reshape((outputs, inputs / (kh * kw), kh, kw))?;
        let params = Conv2dParams::new(1, 0);
        Ok(Self { source: weight.clone(), ..Self::new(&filters, None, bias, params)? })
    }

    /// Stride, padding, groups and dilation.
    pub fn params(&self) -> Conv2dParams {
        self.params
    }

    fn prepare(&self) -> Result<PreparedConv2d> {
        #[cfg(feature = "cuda")]
        if let device @ Device::Cuda(_) = self.weight.device() {
            let Self { weight, scale, bias, params, .. } = self;
            argument(OP, "weight", weight).dtype(DType::F32)?;
            let weights = cuda::Weights::for_training(weight, scale.as_ref(), bias, *params)?;
            return Ok(PreparedConv2d {
                dims: weight.dims4()?.into(),
                params: *params,
                dtype: DType::F32,
                output: DType::F32,
                device: device.clone(),
                weights: Weights::Cuda(std::sync::Arc::new(weights)),
            });
        }
        PreparedConv2d::new(&self.scaled()?, &self.bias.detach(), self.params)
    }

    /// The filters that are applied.
    fn scaled(&self) -> Result<Tensor> {
        let weight = &self.weight;
        let Some(scale) = &self.scale else { return Ok(weight.clone()) };
        if !matches!(weight.device(), Device::Cpu) {
            return Ok(weight.broadcast_mul(&scale.reshape(((), 1, 1, 1))?)?);
        }
        let scaled =
            with_slice(weight, |weight| with_slice(scale, |scale| scale_rows(weight, scale)))??;
        Ok(Tensor::from_vec(scaled, weight.shape(), weight.device())?)
    }
}

/// [`conv2d`](super::conv2d()) with gradients of input, weight, bias and residual, as far as they are tracked.
///
/// Kept for the backward pass are the input and what the activation's gradient depends on: the output, or with
/// [`Activation::HardSwish`] what it is applied to; nothing else. The pass frees them, so that a second one over the same
/// graph is an error. The gradient of ReLU at 0 is 0.
///
/// # Shapes
/// As for [`conv2d`](super::conv2d()).
///
/// # Devices
/// CPU, on the threads of the current rayon pool; CUDA in f32, where windows are laid out for up to 64 MiB at a time.
///
/// # Gradients
/// Of `input`, `residual`, and the weight and bias of `weights`.
///
/// # Errors
/// As for [`conv2d`](super::conv2d()).
///
/// # Example
/// ```
/// use candle_core::{DType, Device, Tensor, Var};
/// use candle_detection::ops::{Activation, Conv2dParams, TrainableConv2d, conv2d_trainable};
///
/// let weight = Var::ones((8, 3, 3, 3), DType::F32, &Device::Cpu)?;
/// let bias = Tensor::zeros(8, DType::F32, &Device::Cpu)?;
/// let params = Conv2dParams::new(1, 1);
/// let weights = TrainableConv2d::new(&weight, None, &bias, params)?;
/// let image = Tensor::ones((1, 5, 7, 3), DType::F32, &Device::Cpu)?;
/// let features = conv2d_trainable(&image, &weights, None, Activation::Relu)?;
/// let gradients = features.sum_all()?.backward()?;
/// assert_eq!(gradients.get(&weight).map(|g| g.dims()), Some(&[8, 3, 3, 3][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn conv2d_trainable(
    input: &Tensor,
    weights: &TrainableConv2d,
    residual: Option<&Tensor>,
    activation: Activation,
) -> Result<Tensor> {
    let mut inputs = vec![input, &weights.source, &weights.bias];
    inputs.extend(residual);
    if is_apart(activation, &inputs) {
        let before = conv2d_trainable(input, weights, residual, Activation::None)?;
        return activate(OP, &before, activation);
    }
    let prepared = weights.prepare()?;
    let output = super::run(input, &prepared, residual, activation)?;
    record(OP, &inputs, output, || {
        let weights = TrainableConv2d {
            source: weights.source.detach(),
            bias: weights.bias.detach(),
            ..weights.clone()
        };
        Ok(TrainableBackward { input: input.detach(), weights, activation })
    })
}

struct TrainableBackward {
    input: Tensor,
    weights: TrainableConv2d,
    activation: Activation,
}

impl Backward for TrainableBackward {
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
        #[cfg(feature = "cuda")]
        if gradient.device().is_cuda() {
            return self.backward_on_cuda(gradient, wanted);
        }
        let device = cpu_only(&gradient)?;
        let TrainableConv2d { weight, scale, params, .. } = &self.weights;
        let sizes = Sizes {
            weight: weight.dims4()?.into(),
            input: self.input.dims4()?.into(),
            output: gradient.dims4()?.into(),
            params: *params,
        };
        let of_weight = wanted[1].then(|| -> Result<Tensor> {
            let values = with_slice(&self.input, |input| {
                with_slice(&gradient, |gradient| {
                    with_optional_slice(scale.as_ref(), |scale| {
                        weight_gradient(Isa::preferred(), input, gradient, &sizes, scale)
                    })
                })
            })???;
            Ok(Tensor::from_vec(values, &sizes.weight, device)?)
        });
        let of_bias = wanted[2].then(|| -> Result<Tensor> {
            let outputs = sizes.weight[0];
            let sums = with_slice(&gradient, |gradient| column_sums(gradient, outputs))?;
            Ok(Tensor::from_vec(sums, outputs, device)?)
        });
        let of_input = wanted[0].then(|| -> Result<Tensor> {
            let filters = self.weights.scaled()?;
            let values =
                with_slice(&filters, |filters| gradient_of_input(filters, &gradient, &sizes))??;
            Ok(Tensor::from_vec(values, &sizes.input, device)?)
        });
        let mut gradients =
            vec![of_input.transpose()?, of_weight.transpose()?, of_bias.transpose()?];
        gradients.extend(wanted.get(3).map(|wanted| wanted.then_some(gradient)));
        Ok(gradients)
    }
}

#[cfg(feature = "cuda")]
impl TrainableBackward {
    fn backward_on_cuda(&self, gradient: Tensor, wanted: &[bool]) -> Result<Vec<Option<Tensor>>> {
        let TrainableConv2d { weight, scale, params, .. } = &self.weights;
        let (scale, input) = (scale.as_ref(), &self.input);
        let sizes = Sizes {
            weight: weight.dims4()?.into(),
            input: input.dims4()?.into(),
            output: gradient.dims4()?.into(),
            params: *params,
        };
        let of_weight =
            wanted[1].then(|| cuda::backward::of_weight(input, &gradient, scale, &sizes));
        let of_bias = wanted[2].then(|| cuda::backward::of_bias(&gradient, &sizes));
        let of_input = wanted[0].then(|| {
            let filters = cuda::backward::filters(weight, scale, *params)?;
            cuda::backward::of_input(&filters, &gradient, &sizes)
        });
        let mut gradients =
            vec![of_input.transpose()?, of_weight.transpose()?, of_bias.transpose()?];
        gradients.extend(wanted.get(3).map(|wanted| wanted.then_some(gradient)));
        Ok(gradients)
    }
}

/// The device of a gradient, if it has kernels for gradients.
fn cpu_only(gradient: &Tensor) -> Result<&Device> {
    match gradient.device() {
        device @ Device::Cpu => Ok(device),
        other => Err(unsupported("gradients of conv2d", other)),
    }
}

fn gradient_of_input(filters: &[f32], gradient: &Tensor, sizes: &Sizes) -> Result<Vec<f32>> {
    with_slice(gradient, |gradient| input_gradient(Isa::preferred(), filters, gradient, sizes))
}

/// Makes `output` differentiable where the weights are constants.
pub(super) fn record_prepared(
    input: &Tensor,
    weights: &PreparedConv2d,
    residual: Option<&Tensor>,
    activation: Activation,
    output: Tensor,
) -> Result<Tensor> {
    let mut inputs = vec![input];
    inputs.extend(residual);
    record(OP, &inputs, output, || {
        Ok(PreparedBackward { input: input.dims4()?.into(), weights: weights.clone(), activation })
    })
}

struct PreparedBackward {
    /// `[N, H, W, I]`.
    input: [usize; 4],
    weights: PreparedConv2d,
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
        wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        let gradient = through_activation(self.activation, output, gradient)?;
        #[cfg(feature = "cuda")]
        if let Weights::Cuda(weights) = &self.weights.weights {
            let PreparedConv2d { dims, params, .. } = self.weights;
            let output = gradient.dims4()?.into();
            let sizes = Sizes { weight: dims, input: self.input, output, params };
            let of_input = wanted[0]
                .then(|| cuda::backward::of_input(weights.filters(), &gradient, &sizes))
                .transpose()?;
            let mut gradients = vec![of_input];
            gradients.extend(wanted.get(1).map(|wanted| wanted.then_some(gradient)));
            return Ok(gradients);
        }
        let device = cpu_only(&gradient)?;
        let PreparedConv2d { dims, params, .. } = self.weights;
        let output = gradient.dims4()?.into();
        let sizes = Sizes { weight: dims, input: self.input, output, params };
        let of_input = wanted[0].then(|| -> Result<Tensor> {
            let filters = match &self.weights.weights {
                Weights::Cpu(weights) => weights.restore(),
                #[allow(unreachable_patterns, reason = "other devices are features")]
                _ => return Err(unsupported("gradients of conv2d", self.weights.device())),
            };
            let values = gradient_of_input(&filters, &gradient, &sizes)?;
            Ok(Tensor::from_vec(values, &self.input, device)?)
        });
        let mut gradients = vec![of_input.transpose()?];
        gradients.extend(wanted.get(1).map(|wanted| wanted.then_some(gradient)));
        Ok(gradients)
    }
}
