//! Convolutions by cuDNN, which adds bias and residual and applies the activation in the same kernel.
//!
//! What is asked of cuDNN depends on shapes and dtypes alone, so it is worked out once per shape and kept: descriptors,
//! the algorithm that its heuristics put first, and the size of its workspace. Tensors and filters are channels last.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use candle_core::cuda_backend::cudarc::cudnn::{CudnnError, result, sys};
use candle_core::cuda_backend::cudarc::driver::CudaStream;
use candle_core::cuda_backend::{DeviceId, gemm_reduced_precision_f32};
use candle_core::{CudaDevice, DType};

use super::Job;
use crate::error::Result;
use crate::ops::conv2d::Conv2dParams;
use crate::ops::support::activation::Activation;
use crate::ops::support::cuda::{Event, Output, address, count};

/// The most memory that an algorithm may ask for.
const WORKSPACE_BYTES: usize = 256 << 20;
/// Plans that are kept. A model has some sixty shapes per size of its batches.
const PLANS: usize = 4096;
/// Algorithms that cuDNN has.
const ALGORITHMS: usize = sys::cudnnConvolutionFwdAlgo_t::CUDNN_CONVOLUTION_FWD_ALGO_COUNT as usize;

type CudnnResult<T> = std::result::Result<T, CudnnError>;

/// What a plan depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    dims: [usize; 4],
    out_dims: [usize; 4],
    window: [usize; 2],
    params: Conv2dParams,
    dtype: DType,
    relu: bool,
    tf32: bool,
}

/// cuDNN on one device, and what it has been asked for so far.
struct Library {
    handle: sys::cudnnHandle_t,
    /// Lives as long as the handle that uses it.
    _stream: Arc<CudaStream>,
    /// `None` where cuDNN has no kernel.
    plans: HashMap<Shape, Option<Plan>>,
}

// SAFETY: a handle may be used by any thread, by one at a time; so may descriptors. The mutex sees to it.
unsafe impl Send for Library {}

/// By device, each behind its own lock. A handle is for one thread at a time; what it enqueues is ordered by the stream.
static LIBRARIES: LazyLock<Mutex<HashMap<DeviceId, Arc<Mutex<Library>>>>> =
    LazyLock::new(Mutex::default);

impl Library {
    /// That of a device.
    fn of(device: &CudaDevice) -> CudnnResult<Arc<Mutex<Self>>> {
        let mut libraries = LIBRARIES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = libraries.get(&device.id()) {
            return Ok(library.clone());
        }
        let stream = device.cuda_stream();
        let handle = result::create_handle()?;
        // SAFETY: both were made just now or are kept alive next to the handle.
        unsafe { result::set_stream(handle, stream.cu_stream().cast()) }?;
        let library = Self { handle, _stream: stream, plans: HashMap::new() };
        let library = Arc::new(Mutex::new(library));
        libraries.insert(device.id(), library.clone());
        Ok(library)
    }

    /// The plan for a shape; `None` where cuDNN has no kernel.
    fn plan(&mut self, shape: Shape) -> CudnnResult<Option<&Plan>> {
        if self.plans.len() >= PLANS && !self.plans.contains_key(&shape) {
            self.plans.clear();
        }
        let handle = self.handle;
        let plan = match self.plans.entry(shape) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(Plan::new(handle, shape)?)
            }
        };
        Ok(plan.as_ref())
    }
}

/// Descriptors of a kind of cuDNN's objects.
struct Descriptor<T: Copy> {
    object: T,
    destroy: unsafe fn(T) -> CudnnResult<()>,
}

impl<T: Copy> Drop for Descriptor<T> {
    fn drop(&mut self) {
        // A failure leaks some bytes.
        // SAFETY: the object was made with this value and is used by nothing else.
        let _ = unsafe { (self.destroy)(self.object) };
    }
}

/// How to convolve a shape.
struct Plan {
    input: Descriptor<sys::cudnnTensorDescriptor_t>,
    filters: Descriptor<sys::cudnnFilterDescriptor_t>,
    bias: Descriptor<sys::cudnnTensorDescriptor_t>,
    convolution: Descriptor<sys::cudnnConvolutionDescriptor_t>,
    activation: Descriptor<sys::cudnnActivationDescriptor_t>,
    output: Descriptor<sys::cudnnTensorDescriptor_t>,
    algorithm: sys::cudnnConvolutionFwdAlgo_t,
    workspace: usize,
}

impl Plan {
    fn new(handle: sys::cudnnHandle_t, shape: Shape) -> CudnnResult<Option<Self>> {
        let mut plan = Self {
            input: tensor(shape.dtype, shape.dims)?,
            filters: filters(&shape)?,
            bias: tensor(shape.dtype, [1, 1, 1, shape.out_dims[3]])?,
            convolution: convolution(&shape)?,
            activation: activation(&shape)?,
            output: tensor(shape.dtype, shape.out_dims)?,
            algorithm:
                sys::cudnnConvolutionFwdAlgo_t::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
            workspace: 0,
        };
        // Without an activation, cuDNN adds the bias with this algorithm only.
        let candidates = if shape.relu { plan.candidates(handle)? } else { vec![plan.algorithm] };
        for algorithm in candidates {
            // SAFETY: handle and descriptors are alive.
            let workspace = unsafe {
                result::get_convolution_forward_workspace_size(
                    handle,
                    plan.input.object,
                    plan.filters.object,
                    plan.convolution.object,
                    plan.output.object,
                    algorithm,
                )
            };
            // An error says that the algorithm does not do this shape.
            if let Ok(workspace) = workspace
                && workspace <= WORKSPACE_BYTES
            {
                (plan.algorithm, plan.workspace) = (algorithm, workspace);
                return Ok(Some(plan));
            }
        }
        Ok(None)
    }

    /// Algorithms that give equal results from run to run, what the heuristics take for the fastest first.
    fn candidates(
        &self,
        handle: sys::cudnnHandle_t,
    ) -> CudnnResult<Vec<sys::cudnnConvolutionFwdAlgo_t>> {
        // SAFETY: numbers, and enumerations that have a variant of value 0.
        let mut found =
            [unsafe { std::mem::zeroed::<sys::cudnnConvolutionFwdAlgoPerf_t>() }; ALGORITHMS];
        let mut n = 0;
        // SAFETY: handle and descriptors are alive, and there is room for all algorithms.
        unsafe {
            result::get_convolution_forward_algorithm(
                handle,
                self.input.object,
                self.filters.object,
                self.convolution.object,
                self.output.object,
                ALGORITHMS as i32,
                &raw mut n,
                found.as_mut_ptr(),
            )
        }?;
        let usable = |choice: &&sys::cudnnConvolutionFwdAlgoPerf_t| {
            choice.status == sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS
                && choice.determinism == sys::cudnnDeterminism_t::CUDNN_DETERMINISTIC
        };
        Ok(found.iter().take(n as usize).filter(usable).map(|choice| choice.algo).collect())
    }
}

impl Job<'_> {
    /// Computes the convolution with all that follows; false where cuDNN has no kernel for it.
    pub fn run_with_cudnn(&self) -> Result<bool> {
        // cuDNN's results have the dtype of its inputs, and it applies no other activation in the same kernel.
        let fused = matches!(self.activation, Activation::None | Activation::Relu);
        if self.output != self.dtype || !fused {
            return Ok(false);
        }
        let shape = Shape {
            dims: self.dims,
            out_dims: self.out_dims,
            window: self.window,
            params: self.params,
            dtype: self.dtype,
            relu: self.activation == Activation::Relu,
            tf32: gemm_reduced_precision_f32(),
        };
        let library = Library::of(self.device).map_err(candle_core::Error::from)?;
        let mut library = library.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = library.handle;
        let plan = library.plan(shape).map_err(candle_core::Error::from)?;
        let Some(plan) = plan else { return Ok(false) };
        // From the pool, in the order of the stream; cuDNN doesn't mind what is in it.
        let workspace = Output::<u8>::new(self.device, plan.workspace)?;
        let (filters, bias) =
            (address(&self.weights.filters)?, address(&self.weights.rounded_bias)?);
        let (one, zero) = (1f32, 0f32);
        let share = if self.residual.is_some() { &one } else { &zero };
        count(Event::Product);
        // SAFETY: handle, descriptors and addresses are alive, and the sizes are those of the tensors. A residual with
        // share zero is not read, but must have an address.
        unsafe {
            result::convolution_bias_activation_forward(
                handle,
                (&raw const one).cast(),
                plan.input.object,
                self.input as *const _,
                plan.filters.object,
                filters as *const _,
                plan.convolution.object,
                plan.algorithm,
                workspace.pointer() as *mut _,
                plan.workspace,
                std::ptr::from_ref(share).cast(),
                plan.output.object,
                self.residual.unwrap_or(self.out) as *const _,
                plan.bias.object,
                bias as *const _,
                plan.activation.object,
                plan.output.object,
                self.out as *mut _,
            )
        }
        .map_err(candle_core::Error::from)?;
        Ok(true)
    }
}

fn number(dtype: DType) -> sys::cudnnDataType_t {
    match dtype {
        DType::F16 => sys::cudnnDataType_t::CUDNN_DATA_HALF,
        DType::BF16 => sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16,
        _ => sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
    }
}

/// `[N, H, W, C]`.
fn tensor(
    dtype: DType,
    [n, h, w, c]: [usize; 4],
) -> CudnnResult<Descriptor<sys::cudnnTensorDescriptor_t>> {
    let object = result::create_tensor_descriptor()?;
    let descriptor = Descriptor { object, destroy: result::destroy_tensor_descriptor };
    let format = sys::cudnnTensorFormat_t::CUDNN_TENSOR_NHWC;
    let sizes = [n, c, h, w].map(|size| size as i32);
    // SAFETY: the descriptor is alive.
    unsafe { result::set_tensor4d_descriptor(object, format, number(dtype), sizes) }?;
    Ok(descriptor)
}

/// `[O, kh, kw, I/groups]`.
fn filters(shape: &Shape) -> CudnnResult<Descriptor<sys::cudnnFilterDescriptor_t>> {
    let object = result::create_filter_descriptor()?;
    let descriptor = Descriptor { object, destroy: result::destroy_filter_descriptor };
    let format = sys::cudnnTensorFormat_t::CUDNN_TENSOR_NHWC;
    let inputs = shape.dims[3] / shape.params.groups;
    let sizes = [shape.out_dims[3], inputs, shape.window[0], shape.window[1]];
    let sizes = sizes.map(|size| size as i32);
    // SAFETY: the descriptor is alive.
    unsafe { result::set_filter4d_descriptor(object, number(shape.dtype), format, sizes) }?;
    Ok(descriptor)
}

/// Sums in f32. Products of f32 are exact unless TF32 is allowed; those of halves are on tensor cores.
fn convolution(shape: &Shape) -> CudnnResult<Descriptor<sys::cudnnConvolutionDescriptor_t>> {
    let object = result::create_convolution_descriptor()?;
    let descriptor = Descriptor { object, destroy: result::destroy_convolution_descriptor };
    let Conv2dParams { stride, padding, groups, dilation } = shape.params;
    let [stride, padding, dilation] = [stride, padding, dilation].map(|n| n as i32);
    let math = match shape.dtype {
        DType::F32 if !shape.tf32 => sys::cudnnMathType_t::CUDNN_FMA_MATH,
        _ => sys::cudnnMathType_t::CUDNN_TENSOR_OP_MATH,
    };
    // SAFETY: the descriptor is alive.
    unsafe {
        result::set_convolution2d_descriptor(
            object,
            padding,
            padding,
            stride,
            stride,
            dilation,
            dilation,
            sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION,
            sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
        )?;
        result::set_convolution_math_type(object, math)?;
        result::set_convolution_group_count(object, groups as i32)?;
    }
    Ok(descriptor)
}

fn activation(shape: &Shape) -> CudnnResult<Descriptor<sys::cudnnActivationDescriptor_t>> {
    let object = result::create_activation_descriptor()?;
    let destroy = |object| {
        // SAFETY: `Descriptor` destroys what is its own, once.
        unsafe { sys::cudnnDestroyActivationDescriptor(object) }.result()
    };
    let descriptor = Descriptor { object, destroy };
    let mode = if shape.relu {
        sys::cudnnActivationMode_t::CUDNN_ACTIVATION_RELU
    } else {
        sys::cudnnActivationMode_t::CUDNN_ACTIVATION_IDENTITY
    };
    // The only one that cuDNN takes in a convolution: behind a ReLU, NaN becomes 0.
    let nan = sys::cudnnNanPropagation_t::CUDNN_NOT_PROPAGATE_NAN;
    // SAFETY: the descriptor is alive.
    unsafe { result::set_activation_descriptor(object, mode, nan, 0.0) }?;
    Ok(descriptor)
}
