//! Batch norm with the statistics of the batch, as training has it.
//!
//! In inference, and wherever statistics are fixed, a norm is folded into the convolution before it.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};

use super::support::activation::Activation;
use super::support::autograd::{Backward, record};
use super::support::check::{argument, unsupported, with_optional_slice, with_slice};
use super::support::cpu::elementwise::through_activation;
use crate::error::Result;

const OP: &str = "batch_norm";

/// What [`batch_norm`] computes.
#[derive(Debug, Clone)]
pub struct BatchNormOutput {
    /// `[.., C]` f32.
    pub output: Tensor,
    /// `[C]` f32, mean of each channel; no gradient.
    pub mean: Tensor,
    /// `[C]` f32, variance of each channel, divided by the number of values (not one less); no gradient.
    pub variance: Tensor,
}

/// Normalises each channel by its mean and variance over all other axes, and scales and shifts it.
///
/// `out = activation(weight · (input − mean) / √(variance + eps) + bias + residual)`.
///
/// # Shapes
/// | argument | shape | dtype |
/// | --- | --- | --- |
/// | `input` | `[.., C]`, no value or at least 2 per channel | f32 |
/// | `weight`, `bias` | `[C]` | f32 |
/// | `residual` | that of `input` | f32 |
/// | returns | that of `input`, and `[C]` twice | f32 |
///
/// Without any value, mean and variance are zero.
///
/// # Devices
/// CPU, on the threads of the current rayon pool; CUDA, in seven launches, and six for the gradients.
///
/// # Gradients
/// Of `input`, `weight`, `bias` and `residual`. The gradient of ReLU at 0 is 0.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType) or
/// [`Error::Device`](crate::Error::Device) when the arguments don't fit the table, such as with a single value per
/// channel, which has no variance.
///
/// # Example
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_detection::ops::{Activation, batch_norm};
///
/// let input = Tensor::new(&[[1f32, 5.0], [3.0, 5.0]], &Device::Cpu)?;
/// let (weight, bias) = (Tensor::ones(2, DType::F32, &Device::Cpu)?, Tensor::zeros(2, DType::F32, &Device::Cpu)?);
/// let normed = batch_norm(&input, &weight, &bias, None, Activation::None, 0.0625)?;
/// assert_eq!(normed.mean.to_vec1::<f32>()?, [2.0, 5.0]);
/// assert_eq!(normed.output.to_vec2::<f32>()?[1][1], 0.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Reference: torch `nn.BatchNorm2d` in training; Ioffe and Szegedy 2015.
pub fn batch_norm(
    input: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    residual: Option<&Tensor>,
    activation: Activation,
    eps: f64,
) -> Result<BatchNormOutput> {
    let checked = argument(OP, "input", input).dtype(DType::F32)?;
    let expected = "[.., C], no value or at least 2 per channel";
    let channels = *input.dims().last().ok_or_else(|| checked.shape_error(expected))?;
    if channels == 0 || input.elem_count() == channels {
        return Err(checked.shape_error(expected));
    }
    for (name, tensor) in [("weight", weight), ("bias", bias)] {
        argument(OP, name, tensor)
            .dtype(DType::F32)?
            .same_device(input)?
            .shape(&[channels], "[C]")?;
    }
    if let Some(residual) = residual {
        argument(OP, "residual", residual)
            .dtype(DType::F32)?
            .same_device(input)?
            .shape(input.dims(), "that of `input`")?;
    }
    let [output, mean, variance] = match input.device() {
        Device::Cpu => run_on_cpu(input, [weight, bias], residual, activation, eps),
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(input, [weight, bias], residual, activation, eps),
        other => Err(unsupported(OP, other)),
    }?;
    let mut inputs = vec![input, weight, bias];
    inputs.extend(residual);
    let output = record(OP, &inputs, output, || {
        Ok(BatchNormBackward {
            input: input.detach(),
            weight: weight.detach(),
            mean: mean.clone(),
            variance: variance.clone(),
            activation,
            eps,
        })
    })?;
    Ok(BatchNormOutput { output, mean, variance })
}

/// Output, mean and variance.
fn run_on_cpu(
    input: &Tensor,
    [weight, bias]: [&Tensor; 2],
    residual: Option<&Tensor>,
    activation: Activation,
    eps: f64,
) -> Result<[Tensor; 3]> {
    let channels = weight.elem_count();
    let (statistics, values) = with_slice(input, |input| {
        with_slice(weight, |weight| {
            with_slice(bias, |bias| {
                with_optional_slice(residual, |residual| {
                    let statistics = cpu::statistics(input, channels);
                    let affine = cpu::Affine::new(&statistics, weight, bias, eps);
                    let values = cpu::apply(input, &affine, residual, activation);
                    (statistics, values)
                })
            })
        })
    })????;
    Ok([
        Tensor::from_vec(values, input.shape(), &Device::Cpu)?,
        Tensor::from_vec(statistics.mean, channels, &Device::Cpu)?,
        Tensor::from_vec(statistics.variance, channels, &Device::Cpu)?,
    ])
}

struct BatchNormBackward {
    input: Tensor,
    weight: Tensor,
    mean: Tensor,
    variance: Tensor,
    activation: Activation,
    eps: f64,
}

impl Backward for BatchNormBackward {
    fn reads_output(&self) -> bool {
        self.activation == Activation::Relu
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
            let Self { input, weight, mean, variance, eps, .. } = self;
            let known = cuda::Known { input, weight, mean, variance, eps: *eps };
            let mut gradients = cuda::backward(&gradient, &known, wanted[0])?.to_vec();
            gradients.extend(wanted.get(3).map(|wanted| wanted.then_some(gradient)));
            return Ok(gradients);
        }
        let device = gradient.device();
        let channels = self.mean.dim(0)?;
        let of_input = match device {
            Device::Cpu => with_slice(&self.input, |input| {
                with_slice(&gradient, |gradient| {
                    with_slice(&self.weight, |weight| {
                        let statistics = cpu::Statistics {
                            mean: self.mean.to_vec1()?,
                            variance: self.variance.to_vec1()?,
                        };
                        let norm = cpu::Backward::new(input, gradient, statistics, self.eps);
                        let of_input = wanted[0].then(|| norm.of_input(weight));
                        Ok::<_, candle_core::Error>((of_input, norm.of_weight, norm.of_bias))
                    })
                })
            })???,
            other => return Err(unsupported("gradients of batch_norm", other)),
        }?;
        let (of_input, of_weight, of_bias) = of_input;
        let of_input = of_input
            .map(|values| Tensor::from_vec(values, self.input.shape(), device))
            .transpose()?;
        let of_weight = Some(Tensor::from_vec(of_weight, channels, device)?);
        let of_bias = Some(Tensor::from_vec(of_bias, channels, device)?);
        let mut gradients = vec![of_input, of_weight, of_bias];
        gradients.extend(wanted.get(3).map(|wanted| wanted.then_some(gradient)));
        Ok(gradients)
    }
}
