//! Batch norm with the statistics of the batch, as training has it.
//!
//! In inference, and wherever statistics are fixed, a norm is folded into the convolution before it.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod plan;
#[cfg(test)]
mod reference;
mod running;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};

use self::plan::Plan;
use super::support::activate::{activate, is_apart};
use super::support::activation::{Activation, GradientReads};
use super::support::autograd::{Backward, record};
use super::support::check::{argument, unsupported, with_optional_slice, with_slice};
use super::support::cpu::elementwise::through_activation;
use super::support::filled_rows::FilledRows;
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
    plan: Plan,
}

/// Normalises each channel by its mean and variance over all other axes, and scales and shifts it.
///
/// `out = activation(weight · (input − mean) / √(variance + eps) + bias + residual)`.
///
/// With [`FilledRows::UpTo`], mean and variance are those of the filled rows. The others are not read, and are zero in
/// the output and in the gradients of `input` and `residual`.
///
/// # Shapes
/// | argument | shape | dtype |
/// | --- | --- | --- |
/// | `input` | `[.., C]`, no value or at least 2 per channel | f32 |
/// | `filled` | with counts `[N]`, `input` is `[N·K, .., C]`, with any number of values | u32 |
/// | `weight`, `bias` | `[C]` | f32 |
/// | `residual` | that of `input` | f32 |
/// | returns | that of `input`, and `[C]` twice | f32 |
///
/// Without any value, mean and variance are zero.
///
/// # Devices
/// CPU, on the threads of the current rayon pool; CUDA, in five launches. The gradients take three more, one for ReLU, and
/// with counts one for `residual`.
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
/// use candle_detection::ops::{Activation, FilledRows, batch_norm};
///
/// let input = Tensor::new(&[[1f32, 5.0], [3.0, 5.0]], &Device::Cpu)?;
/// let (weight, bias) = (Tensor::ones(2, DType::F32, &Device::Cpu)?, Tensor::zeros(2, DType::F32, &Device::Cpu)?);
/// let normed = batch_norm(&input, FilledRows::All, &weight, &bias, None, Activation::None, 0.0625)?;
/// assert_eq!(normed.mean.to_vec1::<f32>()?, [2.0, 5.0]);
/// assert_eq!(normed.output.to_vec2::<f32>()?[1][1], 0.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Reference: torch `nn.BatchNorm2d` in training; Ioffe and Szegedy 2015.
pub fn batch_norm(
    input: &Tensor,
    filled: FilledRows,
    weight: &Tensor,
    bias: &Tensor,
    residual: Option<&Tensor>,
    activation: Activation,
    eps: f64,
) -> Result<BatchNormOutput> {
    let mut inputs = vec![input, weight, bias];
    inputs.extend(residual);
    if is_apart(activation, &inputs) {
        let none = Activation::None;
        let before = batch_norm(input, filled, weight, bias, residual, none, eps)?;
        return Ok(BatchNormOutput { output: activate(OP, &before.output, activation)?, ..before });
    }
    let plan = Plan::new(input, filled)?;
    for (name, tensor) in [("weight", weight), ("bias", bias)] {
        argument(OP, name, tensor)
            .dtype(DType::F32)?
            .same_device(input)?
            .shape(&[plan.channels], "[C]")?;
    }
    if let Some(residual) = residual {
        argument(OP, "residual", residual)
            .dtype(DType::F32)?
            .same_device(input)?
            .shape(input.dims(), "that of `input`")?;
    }
    let [output, mean, variance] = match input.device() {
        Device::Cpu => run_on_cpu(input, &plan, [weight, bias], residual, activation, eps),
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(input, &plan, [weight, bias], residual, activation, eps),
        other => Err(unsupported(OP, other)),
    }?;
    let output = record(OP, &inputs, output, || {
        let (input, weight) = (input.detach(), weight.detach());
        let (mean, variance) = (mean.clone(), variance.clone());
        let known = Known { input, weight, mean, variance, eps, plan: plan.clone() };
        Ok(BatchNormBackward { known, activation })
    })?;
    Ok(BatchNormOutput { output, mean, variance, plan })
}

/// Output, mean and variance.
fn run_on_cpu(
    input: &Tensor,
    plan: &Plan,
    [weight, bias]: [&Tensor; 2],
    residual: Option<&Tensor>,
    activation: Activation,
    eps: f64,
) -> Result<[Tensor; 3]> {
    let channels = plan.channels;
    let filled = cpu::Filled::new(&plan.filled()?);
    let (statistics, values) = with_slice(input, |input| {
        with_slice(weight, |weight| {
            with_slice(bias, |bias| {
                with_optional_slice(residual, |residual| {
                    let statistics = cpu::statistics(input, &filled, channels);
                    let affine = cpu::Affine::new(&statistics, weight, bias, eps);
                    let values = cpu::apply(input, &filled, &affine, residual, activation);
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

/// What the gradients of a norm depend on besides its output's.
struct Known {
    input: Tensor,
    weight: Tensor,
    mean: Tensor,
    variance: Tensor,
    eps: f64,
    plan: Plan,
}

impl Known {
    /// Gradients of input, if wanted, weight and bias.
    fn backward_on_cpu(
        &self,
        gradient: &Tensor,
        input_wanted: bool,
    ) -> Result<[Option<Tensor>; 3]> {
        let filled = cpu::Filled::new(&self.plan.filled()?);
        let (of_input, of_weight, of_bias) = with_slice(&self.input, |input| {
            with_slice(gradient, |gradient| {
                with_slice(&self.weight, |weight| {
                    let statistics = cpu::Statistics {
                        mean: self.mean.to_vec1()?,
                        variance: self.variance.to_vec1()?,
                    };
                    let norm = cpu::Backward::new(input, gradient, &filled, statistics, self.eps);
                    let of_input = input_wanted.then(|| norm.of_input(weight));
                    Ok::<_, candle_core::Error>((of_input, norm.of_weight, norm.of_bias))
                })
            })
        })????;
        let of_input =
            of_input.map(|values| Tensor::from_vec(values, self.input.shape(), &Device::Cpu));
        let channels = self.plan.channels;
        Ok([
            of_input.transpose()?,
            Some(Tensor::from_vec(of_weight, channels, &Device::Cpu)?),
            Some(Tensor::from_vec(of_bias, channels, &Device::Cpu)?),
        ])
    }

    /// The gradient of the residual.
    fn of_residual(&self, gradient: Tensor) -> Result<Tensor> {
        if self.plan.counts.is_none() {
            return Ok(gradient);
        }
        match gradient.device() {
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => cuda::filled(&gradient, &self.plan),
            device => {
                let filled = cpu::Filled::new(&self.plan.filled()?);
                let values = with_slice(&gradient, |gradient| {
                    cpu::filled(gradient, &filled, self.plan.channels)
                })?;
                Ok(Tensor::from_vec(values, gradient.shape(), device)?)
            }
        }
    }
}

struct BatchNormBackward {
    known: Known,
    activation: Activation,
}

impl Backward for BatchNormBackward {
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
        let gradients = match gradient.device() {
            Device::Cpu => self.known.backward_on_cpu(&gradient, wanted[0]),
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => cuda::backward(&gradient, &self.known, wanted[0]),
            other => Err(unsupported("gradients of batch_norm", other)),
        }?;
        let mut gradients = gradients.to_vec();
        if let Some(wanted) = wanted.get(3) {
            let of_residual = wanted.then(|| self.known.of_residual(gradient));
            gradients.push(of_residual.transpose()?);
        }
        Ok(gradients)
    }
}
