//! Convolution on CUDA: one of two ways to the sums, then bias, residual and activation.
//!
//! Without feature `cudnn`, windows are laid out as lines of a matrix, which cuBLAS multiplies with the filters. With it,
//! cuDNN does all in one kernel, except what it has no kernel for. A convolution of each channel by itself is a kernel of
//! ours in both cases.

pub(super) mod backward;
#[cfg(feature = "cudnn")]
mod cudnn;
mod depthwise;
mod windows;

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{CudaDevice, DType, Tensor};

use super::{Conv2dParams, OP, is_depthwise};
use crate::error::Result;
use crate::ops::support::activation::Activation;
use crate::ops::support::cuda::{CONV2D, Finish, address, for_dtype, launch, of, output};

/// Who computes the sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    /// cuBLAS, from windows laid out in memory.
    #[cfg_attr(all(feature = "cudnn", not(test)), expect(dead_code, reason = "a test's choice"))]
    Windows,
    /// cuDNN, or else as above.
    #[cfg(feature = "cudnn")]
    Cudnn,
}

impl Algorithm {
    #[cfg(feature = "cudnn")]
    pub const PREFERRED: Self = Self::Cudnn;
    #[cfg(not(feature = "cudnn"))]
    pub const PREFERRED: Self = Self::Windows;
}

/// Filters and bias, copied to the layout that both algorithms want.
#[derive(Debug)]
pub(super) struct Weights {
    algorithm: Algorithm,
    /// `[O, I/groups, kh, kw]`, as they were given.
    dims: [usize; 4],
    /// `[O, kh, kw, I/groups]`, or where each channel is a group `[kh, kw, 1, O]`.
    filters: Tensor,
    /// `[O]`, f32.
    bias: Tensor,
    /// `[O]`, in the dtype of the filters.
    #[cfg(feature = "cudnn")]
    rounded_bias: Tensor,
}

impl Weights {
    /// From a weight `[O, I/groups, kh, kw]`.
    pub fn new(
        algorithm: Algorithm,
        weight: &Tensor,
        bias: &Tensor,
        params: Conv2dParams,
    ) -> Result<Self> {
        let dims = weight.dims4()?.into();
        let order = if is_depthwise(dims, params) { [2, 3, 1, 0] } else { [0, 2, 3, 1] };
        let filters = weight.detach().permute(order)?.force_contiguous()?;
        let bias = bias.detach().force_contiguous()?;
        Ok(Self {
            algorithm,
            dims,
            #[cfg(feature = "cudnn")]
            rounded_bias: bias.to_dtype(filters.dtype())?,
            filters,
            bias,
        })
    }
}

impl Weights {
    /// From a weight `[O, I/groups, kh, kw]` of f32 that training changes, times `scale` `[O]`: in one launch, or two where
    /// each channel is a group, and the bias is not copied.
    pub fn for_training(
        weight: &Tensor,
        scale: Option<&Tensor>,
        bias: &Tensor,
        params: Conv2dParams,
    ) -> Result<Self> {
        let bias = bias.detach();
        Ok(Self {
            algorithm: Algorithm::PREFERRED,
            dims: weight.dims4()?.into(),
            #[cfg(feature = "cudnn")]
            rounded_bias: bias.clone(),
            filters: backward::filters(weight, scale, params)?,
            bias,
        })
    }

    /// `[O, kh, kw, I/groups]`, or where each channel is a group `[kh, kw, 1, O]`.
    pub fn filters(&self) -> &Tensor {
        &self.filters
    }
}

/// One convolution: sizes and addresses.
struct Job<'a> {
    device: &'a CudaDevice,
    weights: &'a Weights,
    dims: [usize; 4],
    out_dims: [usize; 4],
    /// Height and width.
    window: [usize; 2],
    params: Conv2dParams,
    dtype: DType,
    output: DType,
    input: u64,
    residual: Option<u64>,
    activation: Activation,
    out: u64,
}

/// Convolves `[N, H, W, I]` to `[N, Ho, Wo, O]` of a dtype.
pub(super) fn run(
    input: &Tensor,
    weights: &Weights,
    out_dims: [usize; 4],
    params: Conv2dParams,
    residual: Option<&Tensor>,
    activation: Activation,
    dtype: DType,
) -> Result<Tensor> {
    let device = of(OP, input.device())?;
    let (tensor, out) = output(device, dtype, &out_dims)?;
    if tensor.elem_count() == 0 {
        return Ok(tensor);
    }
    let input = input.contiguous()?;
    let residual = residual.map(Tensor::contiguous).transpose()?;
    let [_, _, window_height, window_width] = weights.dims;
    let job = Job {
        device,
        weights,
        dims: input.dims4()?.into(),
        out_dims,
        window: [window_height, window_width],
        params,
        dtype: input.dtype(),
        output: dtype,
        input: address(&input)?,
        residual: residual.as_ref().map(address).transpose()?,
        activation,
        out,
    };
    if is_depthwise(weights.dims, params) {
        job.run_by_channel()?;
        return Ok(tensor);
    }
    let done = match weights.algorithm {
        Algorithm::Windows => false,
        #[cfg(feature = "cudnn")]
        Algorithm::Cudnn => job.run_with_cudnn()?,
    };
    if !done {
        job.multiply_windows()?;
        job.finish()?;
    }
    Ok(tensor)
}

#[repr(C)]
#[derive(Clone, Copy)]
struct FinishSum {
    finish: Finish,
    residual: u64,
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for FinishSum {}

impl Job<'_> {
    /// Pixels of the output.
    fn pixels(&self) -> usize {
        self.out_dims[..3].iter().product()
    }

    /// Adds bias and residual to the sums, and applies the activation.
    fn finish(&self) -> Result<()> {
        let bias = address(&self.weights.bias)?;
        let sizes = (self.pixels(), self.out_dims[3]);
        let finish = Finish::new(sizes, self.out, bias, self.residual, self.activation);
        let (device, grid) = (self.device, finish.rows.grid());
        let Some(residual) = self.residual else {
            launch!(device, CONV2D, for_dtype!("conv2d_finish", self.output), grid, finish);
            return Ok(());
        };
        let kernel = if self.output == self.dtype {
            for_dtype!("conv2d_finish_sum", self.dtype)
        } else {
            for_dtype!("conv2d_finish_sum_to_f32", self.dtype)
        };
        launch!(device, CONV2D, kernel, grid, FinishSum { finish, residual });
        Ok(())
    }
}
