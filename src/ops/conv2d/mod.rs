//! Convolution of channels-last features, with bias, residual and activation in the same pass.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod fold;
#[cfg(test)]
mod reference;
mod sizes;
#[cfg(test)]
mod tests;
mod train;

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use half::bf16;

use super::support::activate::{activate, is_apart};
use super::support::activation::Activation;
use super::support::check::{
    argument, for_cpu_dtypes, unsupported, with_optional_slice, with_slice,
};
use super::support::cpu::element::{Element, Values};
use super::support::cpu::product::Epilogue;
use super::support::isa::Isa;
use crate::error::Result;

pub use fold::scale_filters;
pub use train::{TrainableConv2d, conv2d_trainable};

const OP: &str = "conv2d";

/// Geometry of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Conv2dParams {
    /// Input pixels from one window to the next, in y and x; at least 1.
    pub stride: usize,
    /// Rows and columns of zeros around the input, on each side.
    pub padding: usize,
    /// Equal parts of the channels, in their order, that don't mix: each part of the output is computed from its part of
    /// the input. At least 1, a divisor of the channels of input and output.
    pub groups: usize,
    /// Input pixels from one tap of a window to the next; at least 1, which has taps side by side.
    pub dilation: usize,
}

impl Conv2dParams {
    /// One group, taps side by side.
    pub const fn new(stride: usize, padding: usize) -> Self {
        Self { stride, padding, groups: 1, dilation: 1 }
    }

    /// The same in groups.
    pub const fn with_groups(self, groups: usize) -> Self {
        Self { groups, ..self }
    }

    /// The same with other distances between taps.
    pub const fn with_dilation(self, dilation: usize) -> Self {
        Self { dilation, ..self }
    }

    /// Input pixels that a window with this number of taps in a row reaches over.
    fn reach(self, taps: usize) -> usize {
        self.dilation * (taps - 1) + 1
    }
}

/// Whether each channel is a group of its own, for a weight `[O, I/groups, kh, kw]`.
fn is_depthwise([outputs, inputs, ..]: [usize; 4], params: Conv2dParams) -> bool {
    params.groups > 1 && inputs == 1 && outputs == params.groups
}

/// The weights of a convolution, laid out once for one device. A clone shares them.
#[derive(Debug, Clone)]
pub struct PreparedConv2d {
    /// `[O, I/groups, kh, kw]`.
    dims: [usize; 4],
    params: Conv2dParams,
    /// Of inputs and residuals.
    dtype: DType,
    /// Of results.
    output: DType,
    device: Device,
    weights: Weights,
}

/// As the kernels of a device want them.
#[derive(Debug, Clone)]
enum Weights {
    Cpu(Arc<cpu::Weights>),
    #[cfg(feature = "cuda")]
    Cuda(Arc<cuda::Weights>),
}

impl PreparedConv2d {
    /// Lays out the weights of a convolution. The tensors given are not kept. The dtype of `weight` is that of inputs,
    /// and of results unless [`Self::with_output`] says otherwise; sums are in f32 whatever it is.
    ///
    /// # Shapes
    /// | argument | shape | dtype |
    /// | --- | --- | --- |
    /// | `weight` | `[O, I/groups, kh, kw]`, all at least 1 | f32; see Devices of [`conv2d`] |
    /// | `bias` | `[O]` | f32 |
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType) or [`Error::Device`](crate::Error::Device) when the tensors don't fit the table,
    /// [`Error::Shape`](crate::Error::Shape) for a stride, dilation or number of groups of zero, or groups that don't divide
    /// `O`, [`Error::Unsupported`](crate::Error::Unsupported) on devices without kernels.
    pub fn new(weight: &Tensor, bias: &Tensor, params: Conv2dParams) -> Result<Self> {
        Self::with_choice(Isa::preferred(), cpu::Algorithm::choose, weight, bias, params)
    }

    /// Like [`new`](Self::new); on the CPU, for this instruction set and with a way to choose the algorithm.
    fn with_choice(
        isa: Isa,
        choose: impl FnOnce([usize; 4], Conv2dParams) -> cpu::Algorithm,
        weight: &Tensor,
        bias: &Tensor,
        params: Conv2dParams,
    ) -> Result<Self> {
        let dims = check_weights(weight, bias, params)?;
        let weights = match weight.device() {
            Device::Cpu => {
                let algorithm = choose(dims, params);
                let weights = with_slice::<f32, _>(bias, |bias| match weight.dtype() {
                    DType::BF16 => with_slice::<bf16, _>(weight, |weight| {
                        cpu::Weights::new(isa, algorithm, weight, dims, bias, params)
                    }),
                    _ => with_slice::<f32, _>(weight, |weight| {
                        cpu::Weights::new(isa, algorithm, weight, dims, bias, params)
                    }),
                })??;
                Weights::Cpu(Arc::new(weights))
            }
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => {
                let algorithm = cuda::Algorithm::PREFERRED;
                Weights::Cuda(Arc::new(cuda::Weights::new(algorithm, weight, bias, params)?))
            }
            other => return Err(unsupported(OP, other)),
        };
        let (dtype, device) = (weight.dtype(), weight.device().clone());
        Ok(Self { dims, params, dtype, output: dtype, device, weights })
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
        self.dims[0]
    }

    /// Channels of the input, `I`.
    pub fn in_channels(&self) -> usize {
        self.dims[1] * self.params.groups
    }

    /// Stride, padding, groups and dilation.
    pub fn params(&self) -> Conv2dParams {
        self.params
    }

    /// The device that the weights were laid out for.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

/// Checks the tensors of a convolution's weights; returns `[O, I/groups, kh, kw]`.
fn check_weights(weight: &Tensor, bias: &Tensor, params: Conv2dParams) -> Result<[usize; 4]> {
    let expected = "[O, I/groups, kh, kw], all at least 1";
    let checked = argument(OP, "weight", weight).compute_dtype()?;
    let dims = checked.dims::<4>(expected)?;
    if dims.contains(&0) {
        return Err(checked.shape_error(expected));
    }
    let Conv2dParams { stride, groups, dilation, .. } = params;
    if stride == 0 || groups == 0 || dilation == 0 {
        return Err(checked.shape_error("a stride, dilation and number of groups of at least 1"));
    }
    if !dims[0].is_multiple_of(groups) {
        return Err(checked.shape_error(&format!("[O, ..], O a multiple of the {groups} groups")));
    }
    argument(OP, "bias", bias).dtype(DType::F32)?.same_device(weight)?.shape(&dims[..1], "[O]")?;
    Ok(dims)
}

/// Convolves features with a window of weights (a cross-correlation, as everywhere in the field).
///
/// `out[n, y, x, o] = activation(bias[o] + residual[n, y, x, o] + Σ weight[o, i, dy, dx] · input[n, y·s + dy·d − p, x·s + dx·d − p, g + i])`
/// with zeros outside of the input, and `g` the first channel of the group that `o` belongs to;
/// `Ho = ⌊(H + 2p − d·(kh − 1) − 1) / s⌋ + 1`, `Wo` likewise.
/// The order of summation is not fixed: results agree with the sum to about 1e-5 of the largest output,
/// and are equal from run to run on one machine.
///
/// # Shapes
/// | argument | shape | dtype |
/// | --- | --- | --- |
/// | `input` | `[N, H, W, I]` | that of the weights |
/// | `residual` | `[N, Ho, Wo, O]` | that of the weights |
/// | returns | `[N, Ho, Wo, O]` | that of the weights, or what [`PreparedConv2d::with_output`] chose |
///
/// # Devices
/// CPU in f32 and bf16, on the threads of the current rayon pool; CUDA in f32, f16 and bf16, as products of cuBLAS with windows
/// that are laid out for up to 64 MiB at a time, and one launch for all that follows them. A 1×1 window with stride 1
/// needs no layout, and groups have a product each; a convolution of each channel by itself is a kernel of its own. With
/// feature `cudnn`, cuDNN computes what it has a kernel for, with all that follows in the same
/// kernel, by an algorithm whose results are equal from run to run; it rounds the bias to the dtype of the weights. On
/// CUDA, products of f32 are exact unless candle's `cuda::set_gemm_reduced_precision_f32` allows TF32.
///
/// # Gradients
/// Of `input` and `residual`; weights that change are those of [`conv2d_trainable`].
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType) or [`Error::Device`](crate::Error::Device) when the arguments don't fit the table, or when the
/// window is larger than the padded input.
///
/// # Example
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_detection::ops::{Activation, Conv2dParams, PreparedConv2d, conv2d};
///
/// let weight = Tensor::ones((8, 3, 3, 3), DType::F32, &Device::Cpu)?;
/// let bias = Tensor::zeros(8, DType::F32, &Device::Cpu)?;
/// let prepared = PreparedConv2d::new(&weight, &bias, Conv2dParams::new(2, 1))?;
/// let image = Tensor::ones((1, 5, 7, 3), DType::F32, &Device::Cpu)?;
/// let features = conv2d(&image, &prepared, None, Activation::Relu)?;
/// assert_eq!(features.dims(), [1, 3, 4, 8]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Reference: torch `nn.Conv2d`.
pub fn conv2d(
    input: &Tensor,
    weights: &PreparedConv2d,
    residual: Option<&Tensor>,
    activation: Activation,
) -> Result<Tensor> {
    let mut inputs = vec![input];
    inputs.extend(residual);
    if is_apart(activation, &inputs) {
        let before = conv2d(input, weights, residual, Activation::None)?;
        return activate(OP, &before, activation);
    }
    let output = run(input, weights, residual, activation)?;
    train::record_prepared(input, weights, residual, activation, output)
}

fn run(
    input: &Tensor,
    weights: &PreparedConv2d,
    residual: Option<&Tensor>,
    activation: Activation,
) -> Result<Tensor> {
    let [outputs, _, window_height, window_width] = weights.dims;
    let (inputs, params) = (weights.in_channels(), weights.params);
    let checked = argument(OP, "input", input).dtype(weights.dtype)?;
    let expected = format!("[N, H, W, {inputs}]");
    let dims @ [batch, height, width, channels] = checked.dims::<4>(&expected)?;
    if channels != inputs {
        return Err(checked.shape_error(&expected));
    }
    checked.on(&weights.device)?;
    let positions = |size: usize, window: usize| {
        let free = (size + 2 * params.padding).checked_sub(params.reach(window))?;
        Some(free / params.stride + 1)
    };
    let (Some(out_height), Some(out_width)) =
        (positions(height, window_height), positions(width, window_width))
    else {
        let (height, width) = (params.reach(window_height), params.reach(window_width));
        let least = format!("H and W of a {height}×{width} window at least");
        return Err(checked.shape_error(&least));
    };
    let out_dims = [batch, out_height, out_width, outputs];
    if let Some(residual) = residual {
        argument(OP, "residual", residual)
            .dtype(weights.dtype)?
            .same_device(input)?
            .shape(&out_dims, "[N, Ho, Wo, O]")?;
    }
    match &weights.weights {
        Weights::Cpu(packed) => for_cpu_dtypes!(
            OP,
            weights.dtype,
            weights.output,
            run_on_cpu(input, dims, out_dims, packed, residual, activation)
        ),
        #[cfg(feature = "cuda")]
        Weights::Cuda(layer) => {
            cuda::run(input, layer, out_dims, weights.params, residual, activation, weights.output)
        }
    }
}

fn run_on_cpu<E: Element, O: Element>(
    input: &Tensor,
    dims: [usize; 4],
    out_dims: [usize; 4],
    weights: &cpu::Weights,
    residual: Option<&Tensor>,
    activation: Activation,
) -> Result<Tensor> {
    let values: Vec<O> = with_slice::<E, _>(input, |input| {
        with_optional_slice::<E, _>(residual, |residual| {
            let epilogue = Epilogue { residual: residual.map(Values::of), activation };
            cpu::run(input, dims, out_dims, weights, epilogue)
        })
    })??;
    Ok(Tensor::from_vec(values, &out_dims, &Device::Cpu)?)
}
