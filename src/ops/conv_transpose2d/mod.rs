//! Transposed convolution that doubles height and width, with bias and activation in the same pass.

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
use super::support::isa::Isa;
use crate::error::Result;

pub use train::{TrainableConvTranspose2d, conv_transpose2d_trainable};

const OP: &str = "conv_transpose2d";

/// The weights of a transposed convolution, laid out once for one device. A clone shares them.
#[derive(Debug, Clone)]
pub struct PreparedConvTranspose2d {
    dims: LayerDims,
    /// Of inputs.
    dtype: DType,
    /// Of results.
    output: DType,
    device: Device,
    weights: Weights,
}

/// Lengths of the axes of a weight.
#[derive(Debug, Clone, Copy)]
struct LayerDims {
    /// `I`.
    inputs: usize,
    /// `O`.
    outputs: usize,
    /// Of the window: 2 or 4.
    side: usize,
}

impl LayerDims {
    /// Places of the window.
    fn places(self) -> usize {
        self.side * self.side
    }

    /// How far the window of the first pixel reaches out of the output: with stride 2, what makes the output twice as
    /// large as the input.
    fn padding(self) -> usize {
        self.side / 2 - 1
    }
}

/// As the kernels of a device want them.
#[derive(Debug, Clone)]
enum Weights {
    Cpu(Arc<cpu::Weights>),
    #[cfg(feature = "cuda")]
    Cuda(Arc<cuda::Weights>),
}

impl PreparedConvTranspose2d {
    /// Lays out the weights of a transposed convolution. The tensors given are not kept. The dtype of `weight` is that
    /// of inputs, and of results unless [`Self::with_output`] says otherwise; sums are in f32 whatever it is.
    ///
    /// # Shapes
    /// | argument | shape | dtype |
    /// | --- | --- | --- |
    /// | `weight` | `[I, O, 2, 2]` or `[I, O, 4, 4]`, all at least 1 | f32; see Devices of [`conv_transpose2d`] |
    /// | `bias` | `[O]` | f32 |
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType) or [`Error::Device`](crate::Error::Device) when the tensors don't fit the table,
    /// [`Error::Unsupported`](crate::Error::Unsupported) on devices without kernels.
    pub fn new(weight: &Tensor, bias: &Tensor) -> Result<Self> {
        Self::for_isa(Isa::preferred(), weight, bias)
    }

    /// Like [`new`](Self::new); on the CPU, for this instruction set.
    fn for_isa(isa: Isa, weight: &Tensor, bias: &Tensor) -> Result<Self> {
        let dims = check_weights(weight, bias)?;
        let weights = match weight.device() {
            Device::Cpu => {
                let packed = with_slice::<f32, _>(bias, |bias| match weight.dtype() {
                    DType::BF16 => with_slice::<bf16, _>(weight, |weight| {
                        cpu::prepare(isa, weight, dims, bias)
                    }),
                    _ => {
                        with_slice::<f32, _>(weight, |weight| cpu::prepare(isa, weight, dims, bias))
                    }
                })??;
                Weights::Cpu(Arc::new(packed))
            }
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => Weights::Cuda(Arc::new(cuda::Weights::new(weight, bias, dims)?)),
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

    /// Channels of the output, `O`.
    pub fn out_channels(&self) -> usize {
        self.dims.outputs
    }

    /// Channels of the input, `I`.
    pub fn in_channels(&self) -> usize {
        self.dims.inputs
    }

    /// The device that the weights were laid out for.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

/// Checks the tensors of a layer's weights; returns their dimensions.
fn check_weights(weight: &Tensor, bias: &Tensor) -> Result<LayerDims> {
    let expected = "[I, O, 2, 2] or [I, O, 4, 4], all at least 1";
    let checked = argument(OP, "weight", weight).compute_dtype()?;
    let [inputs, outputs, height, width] = checked.dims::<4>(expected)?;
    if inputs == 0 || outputs == 0 || height != width || ![2, 4].contains(&height) {
        return Err(checked.shape_error(expected));
    }
    argument(OP, "bias", bias).dtype(DType::F32)?.same_device(weight)?.shape(&[outputs], "[O]")?;
    Ok(LayerDims { inputs, outputs, side: height })
}

/// Doubles height and width of features with learned weights.
///
/// A transposed convolution with stride 2, and a 2×2 window without padding or a 4×4 window with padding 1:
/// `out[n, Y, X, o] = activation(bias[o] + Σ weight[i, o, dy, dx] · input[n, y, x, i])` over all `i`, and all `y`, `x`,
/// `dy`, `dx` with `Y = 2y + dy − padding` and `X = 2x + dx − padding`. Of the smaller window, that is one place; of the
/// larger one, up to four.
///
/// # Shapes
/// | argument | shape | dtype |
/// | --- | --- | --- |
/// | `input` | `[N, H, W, I]` | that of the weights |
/// | returns | `[N, 2H, 2W, O]` | that of the weights, or what [`PreparedConvTranspose2d::with_output`] chose |
///
/// # Devices
/// CPU in f32, on the threads of the current rayon pool; CUDA in f32, f16 and bf16, as a product of cuBLAS and one launch
/// for every 32 MiB of it, or every image if that is more. There, products of f32 are exact unless candle's `cuda::set_gemm_reduced_precision_f32` allows
/// TF32.
///
/// # Gradients
/// Of `input`; weights that change are those of [`conv_transpose2d_trainable`].
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType) or [`Error::Device`](crate::Error::Device) when the arguments don't fit the table.
///
/// # Example
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_detection::ops::{Activation, PreparedConvTranspose2d, conv_transpose2d};
///
/// let weight = Tensor::ones((4, 6, 2, 2), DType::F32, &Device::Cpu)?;
/// let bias = Tensor::zeros(6, DType::F32, &Device::Cpu)?;
/// let prepared = PreparedConvTranspose2d::new(&weight, &bias)?;
/// let features = Tensor::ones((2, 3, 5, 4), DType::F32, &Device::Cpu)?;
/// let out = conv_transpose2d(&features, &prepared, Activation::None)?;
/// assert_eq!(out.dims(), [2, 6, 10, 6]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Reference: torch `nn.ConvTranspose2d` with stride 2, and kernel size 2 or kernel size 4 and padding 1.
pub fn conv_transpose2d(
    input: &Tensor,
    weights: &PreparedConvTranspose2d,
    activation: Activation,
) -> Result<Tensor> {
    if is_apart(activation, &[input]) {
        return activate(OP, &conv_transpose2d(input, weights, Activation::None)?, activation);
    }
    let output = run(input, weights, activation)?;
    train::record_prepared(input, weights, activation, output)
}

fn run(
    input: &Tensor,
    weights: &PreparedConvTranspose2d,
    activation: Activation,
) -> Result<Tensor> {
    let LayerDims { inputs, outputs, .. } = weights.dims;
    let checked = argument(OP, "input", input).dtype(weights.dtype)?;
    let expected = format!("[N, H, W, {inputs}]");
    let dims @ [batch, height, width, channels] = checked.dims::<4>(&expected)?;
    if channels != inputs {
        return Err(checked.shape_error(&expected));
    }
    checked.on(&weights.device)?;
    match &weights.weights {
        Weights::Cpu(packed) => for_cpu_dtypes!(
            OP,
            weights.dtype,
            weights.output,
            run_on_cpu(input, dims, packed, [batch, 2 * height, 2 * width, outputs], activation)
        ),
        #[cfg(feature = "cuda")]
        Weights::Cuda(layer) => cuda::run(input, layer, activation, weights.output),
    }
}

fn run_on_cpu<E: Element, O: Element>(
    input: &Tensor,
    dims: [usize; 4],
    weights: &cpu::Weights,
    out_dims: [usize; 4],
    activation: Activation,
) -> Result<Tensor> {
    let run = |input: &[E]| cpu::run::<E, O>(input, dims, weights, activation);
    Ok(Tensor::from_vec(with_slice(input, run)?, &out_dims, &Device::Cpu)?)
}
