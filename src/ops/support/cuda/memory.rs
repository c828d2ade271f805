//! Addresses of tensors, and tensors made of what kernels wrote.

use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr, DeviceRepr};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, DType, Shape, Storage, Tensor};
use half::{bf16, f16};

use crate::error::Result;
use crate::ops::support::check::unsupported;

/// The address of a contiguous CUDA tensor's first value.
pub(crate) fn pointer<T: CudaDType + DeviceRepr>(tensor: &Tensor) -> Result<u64> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else {
        return Err(unsupported("a CUDA kernel", tensor.device()));
    };
    let stream = storage.device.cuda_stream();
    let (start, _) = storage.as_cuda_slice::<T>()?.device_ptr(&stream);
    Ok(start + (layout.start_offset() * size_of::<T>()) as u64)
}

/// Like [`pointer`], for a tensor of any compute dtype.
pub(crate) fn address(tensor: &Tensor) -> Result<u64> {
    match tensor.dtype() {
        DType::F16 => pointer::<f16>(tensor),
        DType::BF16 => pointer::<bf16>(tensor),
        _ => pointer::<f32>(tensor),
    }
}

/// Turns variables that hold CUDA tensors into their addresses, for the rest of the scope.
///
/// `point!(boxes: f32, groups: u32);` or, for tensors of any compute dtype, `point!(features);` A tensor that is not contiguous is copied first, which no room does.
macro_rules! point {
    ($($name:ident: $value:ty),+) => {$(
        let held = $name.contiguous()?;
        let $name = $crate::ops::support::cuda::pointer::<$value>(&held)?;
    )+};
    ($($name:ident),+) => {$(
        let held = $name.contiguous()?;
        let $name = $crate::ops::support::cuda::address(&held)?;
    )+};
}
pub(crate) use point;

/// Memory that a kernel fills.
pub(crate) struct Output<T> {
    values: CudaSlice<T>,
    device: CudaDevice,
}

impl<T: CudaDType + DeviceRepr> Output<T> {
    /// Room for `n` values, which are not set. The kernels must write all of them.
    pub fn new(device: &CudaDevice, n: usize) -> Result<Self> {
        // SAFETY: nothing reads the values before a kernel has written them; see above. An empty allocation is
        // refused by devices without memory pools, hence at least one.
        let values = unsafe { device.alloc::<T>(n.max(1)) }?;
        Ok(Self { values, device: device.clone() })
    }

    /// The address of the first value.
    pub fn pointer(&self) -> u64 {
        self.values.device_ptr(&self.device.cuda_stream()).0
    }

    /// The values as storage, for an op of candle's.
    pub fn into_storage(self) -> CudaStorage {
        T::wrap_cuda_slice(self.values, self.device)
    }

    /// The values as a tensor, cut off from any graph.
    pub fn into_tensor(self, shape: impl Into<Shape>) -> Tensor {
        Tensor::from_storage(Storage::Cuda(self.into_storage()), shape, BackpropOp::none(), false)
    }
}

/// A tensor of a compute dtype that a kernel fills, and its address; see [`Output::new`].
pub(crate) fn output(
    device: &CudaDevice,
    dtype: DType,
    shape: impl Into<Shape>,
) -> Result<(Tensor, u64)> {
    fn of<T: CudaDType + DeviceRepr>(device: &CudaDevice, shape: Shape) -> Result<(Tensor, u64)> {
        let values = Output::<T>::new(device, shape.elem_count())?;
        let address = values.pointer();
        Ok((values.into_tensor(shape), address))
    }
    let shape = shape.into();
    match dtype {
        DType::F16 => of::<f16>(device, shape),
        DType::BF16 => of::<bf16>(device, shape),
        _ => of::<f32>(device, shape),
    }
}
