//! Group norm: statistics of an image's own channels, alike in training and inference.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod plan;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};
use half::bf16;

use self::plan::Plan;
use super::support::activate::{activate, is_apart};
use super::support::activation::{Activation, GradientReads};
use super::support::autograd::{Backward, record};
use super::support::check::{argument, unsupported, with_slice};
use super::support::cpu::element::Element;
use super::support::cpu::elementwise::through_activation;
use crate::error::Result;

const OP: &str = "group_norm";

/// Normalises each group of neighbouring channels by its mean and variance within each image, and scales and shifts each
/// channel.
///
/// `out = activation(weight · (input − mean) / √(variance + eps) + bias)`, the variance being divided by the number of
/// values. A group whose values are all the same becomes `activation(bias)`.
///
/// # Shapes
/// | argument | shape | dtype |
/// | --- | --- | --- |
/// | `input` | `[N, .., C]`, C a multiple of `groups` | f32, bf16; f16 on CUDA |
/// | `weight`, `bias` | `[C]` | f32 |
/// | returns | that of `input` | that of `input` |
///
/// Statistics are f32 or better, whatever the dtype of `input`.
///
/// # Devices
/// CPU, on the threads of the current rayon pool; CUDA, in two launches. The gradients take three more, and one for the activation.
///
/// # Gradients
/// Of `input`, `weight` and `bias`, in f32. The gradient of an activation at a corner is that of its flat side.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType) or
/// [`Error::Device`](crate::Error::Device) when the arguments don't fit the table.
///
/// # Example
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_detection::ops::{Activation, group_norm};
///
/// let input = Tensor::new(&[[[1f32, 5.0], [3.0, 5.0]]], &Device::Cpu)?;
/// let (weight, bias) = (Tensor::ones(2, DType::F32, &Device::Cpu)?, Tensor::zeros(2, DType::F32, &Device::Cpu)?);
/// let normed = group_norm(&input, 2, &weight, &bias, Activation::Relu, 3.0)?;
/// assert_eq!(normed.to_vec3::<f32>()?, [[[0.0, 0.0], [0.5, 0.0]]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Reference: torch `nn.GroupNorm`; Wu and He 2018.
pub fn group_norm(
    input: &Tensor,
    groups: usize,
    weight: &Tensor,
    bias: &Tensor,
    activation: Activation,
    eps: f64,
) -> Result<Tensor> {
    if is_apart(activation, &[input, weight, bias]) {
        let before = group_norm(input, groups, weight, bias, Activation::None, eps)?;
        return activate(OP, &before, activation);
    }
    let plan = Plan::new(input, groups)?;
    for (name, tensor) in [("weight", weight), ("bias", bias)] {
        argument(OP, name, tensor)
            .dtype(DType::F32)?
            .same_device(input)?
            .shape(&[plan.channels], "[C]")?;
    }
    let parameters = [weight, bias];
    let Normed { output, statistics } = match input.device() {
        Device::Cpu if input.dtype() == DType::BF16 => {
            run_on_cpu::<bf16>(input, &plan, parameters, activation, eps)
        }
        Device::Cpu => run_on_cpu::<f32>(input, &plan, parameters, activation, eps),
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(input, &plan, parameters, activation, eps),
        other => Err(unsupported(OP, other)),
    }?;
    record(OP, &[input, weight, bias], output, || {
        let known = Known { input: input.detach(), weight: weight.detach(), statistics, plan };
        Ok(GroupNormBackward { known, activation })
    })
}

struct Normed {
    output: Tensor,
    /// `[N, G]` f32 each: mean, and `1 / √(variance + eps)`.
    statistics: [Tensor; 2],
}

fn run_on_cpu<E: Element>(
    input: &Tensor,
    plan: &Plan,
    [weight, bias]: [&Tensor; 2],
    activation: Activation,
    eps: f64,
) -> Result<Normed> {
    let (statistics, values) = with_slice::<E, _>(input, |input| {
        with_slice(weight, |weight| {
            with_slice(bias, |bias| {
                let statistics = cpu::statistics(input, plan, eps);
                let values = cpu::apply(input, plan, &statistics, [weight, bias], activation);
                (statistics, values)
            })
        })
    })???;
    let of_groups =
        |values: Vec<f32>| Tensor::from_vec(values, (plan.images, plan.groups), &Device::Cpu);
    Ok(Normed {
        output: Tensor::from_vec(values, input.shape(), &Device::Cpu)?,
        statistics: [of_groups(statistics.mean)?, of_groups(statistics.inverse)?],
    })
}

/// What the gradients depend on besides the output's.
struct Known {
    input: Tensor,
    weight: Tensor,
    /// As in [`Normed`].
    statistics: [Tensor; 2],
    plan: Plan,
}

impl Known {
    /// Gradients of input, if wanted, weight and bias.
    fn backward_on_cpu(
        &self,
        gradient: &Tensor,
        input_wanted: bool,
    ) -> Result<[Option<Tensor>; 3]> {
        let [mean, inverse] = &self.statistics;
        let flat = |tensor: &Tensor| tensor.flatten_all()?.to_vec1();
        let statistics = cpu::Statistics { mean: flat(mean)?, inverse: flat(inverse)? };
        let (of_input, of_parameters) = with_slice(&self.input, |input| {
            with_slice(gradient, |gradient| {
                with_slice(&self.weight, |weight| {
                    let norm = cpu::Backward::new(input, gradient, &self.plan, &statistics);
                    (input_wanted.then(|| norm.of_input(weight)), norm.of_parameters())
                })
            })
        })???;
        let of_input =
            of_input.map(|values| Tensor::from_vec(values, self.input.shape(), &Device::Cpu));
        let [of_weight, of_bias] =
            of_parameters.map(|sums| Tensor::from_vec(sums, self.plan.channels, &Device::Cpu));
        Ok([of_input.transpose()?, Some(of_weight?), Some(of_bias?)])
    }
}

struct GroupNormBackward {
    known: Known,
    activation: Activation,
}

impl Backward for GroupNormBackward {
    fn reads_output(&self) -> bool {
        self.activation.gradient_reads() == GradientReads::Output
    }

    fn backward(
        &self,
        output: Option<&Tensor>,
        gradient: &Tensor,
        wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        argument("gradients of group_norm", "input", &self.known.input).dtype(DType::F32)?;
        let gradient = through_activation(self.activation, output, gradient)?;
        let gradients = match gradient.device() {
            Device::Cpu => self.known.backward_on_cpu(&gradient, wanted[0]),
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => cuda::backward(&gradient, &self.known, wanted[0]),
            other => Err(unsupported("gradients of group_norm", other)),
        }?;
        Ok(gradients.to_vec())
    }
}
