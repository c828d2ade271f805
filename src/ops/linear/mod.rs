//! Linear layer: a product with weights, bias and activation in the same pass.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
mod cuda_backward;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
mod train;

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use half::bf16;

use super::support::activate::{activate, is_apart};
use super::support::activation::Activation;
use super::support::check::{argument, for_cpu_dtypes, unsupported, with_slice};
use super::support::cpu::element::Element;
use super::support::cpu::matrix::PackedMatrix;
use super::support::isa::Isa;
use crate::error::Result;

pub use train::{TrainableLinear, linear_trainable};

const OP: &str = "linear";

/// The weights of a linear layer, laid out once for one device. A clone shares them.
#[derive(Debug, Clone)]
pub struct PreparedLinear {
    /// `[O, I]`.
    dims: [usize; 2],
    /// Of inputs.
    dtype: DType,
    /// Of results.
    output: DType,
    device: Device,
    weights: Weights,
}

/// As the kernels of a device want them.
#[derive(Debug, Clone)]
enum Weights {
    Cpu(Arc<PackedMatrix>),
    #[cfg(feature = "cuda")]
    Cuda(Arc<cuda::Weights>),
}

impl PreparedLinear {
    /// Lays out the weights of a linear layer. The tensors given are not kept. The dtype of `weight` is that of inputs,
    /// and of results unless [`Self::with_output`] says otherwise; sums are in f32 whatever it is.
    ///
    /// # Shapes
    /// | argument | shape | dtype |
    /// | --- | --- | --- |
    /// | `weight` | `[O, I]`, both at least 1 | f32; see Devices of [`linear`] |
    /// | `bias` | `[O]` | f32 |
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType) or [`Error::Device`](crate::Error::Device) when the tensors don't fit the table,
    /// [`Error::Unsupported`](crate::Error::Unsupported) on devices without kernels.
    pub fn new(weight: &Tensor, bias: &Tensor) -> Result<Self> {
        Self::for_isa(Isa::preferred(), 1, weight, bias)
    }

    /// Like [`new`](Self::new), for pooled features that are flattened with their channels last: `weight` has `cells`
    /// columns per channel, and channels come first among its columns. `weight` itself is not reordered in memory.
    ///
    /// # Errors
    /// Those of [`new`](Self::new); [`Error::Shape`](crate::Error::Shape) when the columns are not a multiple of `cells`.
    pub fn over_pooled(weight: &Tensor, cells: usize, bias: &Tensor) -> Result<Self> {
        Self::for_isa(Isa::preferred(), cells, weight, bias)
    }

    /// Like [`over_pooled`](Self::over_pooled); on the CPU, for this instruction set.
    fn for_isa(isa: Isa, cells: usize, weight: &Tensor, bias: &Tensor) -> Result<Self> {
        let dims = check_weights(weight, bias)?;
        if cells == 0 || !dims[1].is_multiple_of(cells) {
            let expected = "[O, C·cells]";
            return Err(argument(OP, "weight", weight).shape_error(expected));
        }
        let weights = match weight.device() {
            Device::Cpu => {
                let packed = with_slice::<f32, _>(bias, |bias| match weight.dtype() {
                    DType::BF16 => with_slice::<bf16, _>(weight, |weight| {
                        cpu::prepare(isa, weight, dims, cells, bias)
                    }),
                    _ => with_slice::<f32, _>(weight, |weight| {
                        cpu::prepare(isa, weight, dims, cells, bias)
                    }),
                })??;
                Weights::Cpu(Arc::new(packed))
            }
            #[cfg(feature = "cuda")]
            Device::Cuda(_) if cells > 1 => {
                let [outputs, inputs] = dims;
                let by_channel = weight.reshape((outputs, inputs / cells, cells))?;
                let weight = by_channel.transpose(1, 2)?.reshape((outputs, inputs))?;
                Weights::Cuda(Arc::new(cuda::Weights::new(&weight, bias)?))
            }
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => Weights::Cuda(Arc::new(cuda::Weights::new(weight, bias)?)),
            other => return Err(unsupported(OP, other)),
        };
        let (dtype, device) = (weight.dtype(), weight.device().clone());
        Ok(Self { dims, dtype, output: dtype, device, weights })
    }

    /// Has the results in another dtype than the inputs: f32, for predictors whose results feed arithmetic on boxes.
    pub fn with_output(mut self, dtype: DType) -> Self {
        self.output = dtype;
        self
    }

    /// The dtype of inputs.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Values per output row, `O`.
    pub fn out_features(&self) -> usize {
        self.dims[0]
    }

    /// Values per input row, `I`.
    pub fn in_features(&self) -> usize {
        self.dims[1]
    }

    /// The device that the weights were laid out for.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

/// Checks the tensors of a layer's weights; returns `[O, I]`.
fn check_weights(weight: &Tensor, bias: &Tensor) -> Result<[usize; 2]> {
    let expected = "[O, I], both at least 1";
    let checked = argument(OP, "weight", weight).compute_dtype()?;
    let dims = checked.dims::<2>(expected)?;
    if dims.contains(&0) {
        return Err(checked.shape_error(expected));
    }
    argument(OP, "bias", bias).dtype(DType::F32)?.same_device(weight)?.shape(&dims[..1], "[O]")?;
    Ok(dims)
}

/// Multiplies rows with weights: `out[r, o] = activation(bias[o] + Σ weight[o, i] · input[r, i])`.
///
/// The order of summation is not fixed, but equal from run to run on one machine.
///
/// # Shapes
/// | argument | shape | dtype |
/// | --- | --- | --- |
/// | `input` | `[R, I]` | that of the weights |
/// | returns | `[R, O]` | that of the weights, or what [`PreparedLinear::with_output`] chose |
///
/// # Devices
/// CPU in f32, on the threads of the current rayon pool; CUDA in f32, f16 and bf16, as a product of cuBLAS and one
/// launch. There, products of f32 are exact unless candle's `cuda::set_gemm_reduced_precision_f32` allows TF32.
///
/// # Gradients
/// Of `input`; weights that change are those of [`linear_trainable`].
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType) or [`Error::Device`](crate::Error::Device) when the arguments don't fit the table.
///
/// # Example
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_detection::ops::{Activation, PreparedLinear, linear};
///
/// let weight = Tensor::new(&[[1f32, 2.0, 3.0], [-1.0, -2.0, -3.0]], &Device::Cpu)?;
/// let bias = Tensor::new(&[10f32, 0.0], &Device::Cpu)?;
/// let rows = Tensor::new(&[[1f32, 1.0, 1.0]], &Device::Cpu)?;
/// let out = linear(&rows, &PreparedLinear::new(&weight, &bias)?, Activation::Relu)?;
/// assert_eq!(out.to_vec2::<f32>()?, [[16.0, 0.0]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Reference: torch `nn.Linear`.
pub fn linear(input: &Tensor, weights: &PreparedLinear, activation: Activation) -> Result<Tensor> {
    if is_apart(activation, &[input]) {
        return activate(OP, &linear(input, weights, Activation::None)?, activation);
    }
    let output = run(input, weights, activation)?;
    train::record_prepared(input, weights, activation, output)
}

fn run(input: &Tensor, weights: &PreparedLinear, activation: Activation) -> Result<Tensor> {
    let [_, inputs] = weights.dims;
    let checked = argument(OP, "input", input).dtype(weights.dtype)?;
    let expected = format!("[R, {inputs}]");
    let [rows, columns] = checked.dims::<2>(&expected)?;
    if columns != inputs {
        return Err(checked.shape_error(&expected));
    }
    checked.on(&weights.device)?;
    match &weights.weights {
        Weights::Cpu(packed) => for_cpu_dtypes!(
            OP,
            weights.dtype,
            weights.output,
            run_on_cpu(input, [rows, columns], packed, activation)
        ),
        #[cfg(feature = "cuda")]
        Weights::Cuda(layer) => cuda::run(input, layer, activation, weights.output),
    }
}

fn run_on_cpu<E: Element, O: Element>(
    input: &Tensor,
    dims: [usize; 2],
    weights: &PackedMatrix,
    activation: Activation,
) -> Result<Tensor> {
    let run = |input: &[E]| cpu::run::<E, O>(input, dims, weights, activation);
    Ok(Tensor::from_vec(with_slice(input, run)?, (dims[0], weights.columns()), &Device::Cpu)?)
}
