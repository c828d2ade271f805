//! The device, and comparisons across devices.

use std::sync::LazyLock;

use candle_core::{DType, Device, Tensor};

use super::counters::{Counts, count};

static DEVICE: LazyLock<Device> =
    LazyLock::new(|| candle_detection::device::parse("cuda").expect("a GPU, or the emulator"));

/// The GPU that all tests share.
pub fn cuda() -> Device {
    DEVICE.clone()
}

/// A copy on the GPU.
pub fn upload(tensor: &Tensor) -> Tensor {
    tensor.to_device(&DEVICE).unwrap()
}

/// Values in memory order, as f32, wherever the tensor is.
pub fn values(tensor: &Tensor) -> Vec<f32> {
    let host = tensor.to_device(&Device::Cpu).unwrap().to_dtype(DType::F32).unwrap();
    host.flatten_all().unwrap().to_vec1().unwrap()
}

/// Panics with the first place in which two tensors differ by more than `tolerance`; NaN equals NaN.
#[track_caller]
pub fn assert_close(found: &Tensor, expected: &Tensor, tolerance: f32) {
    assert_eq!(found.dims(), expected.dims(), "shapes differ");
    assert_eq!(found.dtype(), expected.dtype(), "dtypes differ");
    for (i, (a, b)) in values(found).iter().zip(values(expected)).enumerate() {
        let same = (a - b).abs() <= tolerance || (a.is_nan() && b.is_nan()) || *a == b;
        assert!(same, "at {i} of {:?}: found {a}, expected {b} ± {tolerance}", found.dims());
    }
}

/// Panics unless all values are the same.
#[track_caller]
pub fn assert_equal(found: &Tensor, expected: &Tensor) {
    assert_close(found, expected, 0.0);
}

/// Runs an op twice, once to load its kernels, and panics unless the second run makes this number of launches and
/// nothing else: no copy, no wait.
#[track_caller]
pub fn assert_launches<T>(launches: u64, op: impl Fn() -> T) -> T {
    op();
    let (result, counts) = count(&op);
    let expected = Counts { launches, ..Counts::default() };
    assert_eq!(counts.unwrap_or(expected), expected);
    result
}

/// A small deterministic generator (xorshift64*).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number in `0..1`.
    pub fn unit(&mut self) -> f32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 40) as f32 / (1u64 << 24) as f32
    }

    /// A number in `low..high`.
    pub fn range(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.unit()
    }

    /// A whole number in `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        ((self.unit() * n as f32) as usize).min(n - 1)
    }

    /// A CPU tensor of numbers in `-1..1`.
    pub fn tensor(&mut self, dims: &[usize]) -> Tensor {
        let values: Vec<f32> = (0..dims.iter().product()).map(|_| self.range(-1.0, 1.0)).collect();
        Tensor::from_vec(values, dims, &Device::Cpu).unwrap()
    }

    /// Boxes with sides of at least one pixel inside an image, as a CPU tensor `[n, 4]`.
    pub fn boxes(&mut self, n: usize, width: f32, height: f32) -> Tensor {
        let corners: Vec<f32> = (0..n)
            .flat_map(|_| {
                let (x, y) = (self.range(0.0, width - 2.0), self.range(0.0, height - 2.0));
                [x, y, self.range(x + 1.0, width), self.range(y + 1.0, height)]
            })
            .collect();
        Tensor::from_vec(corners, (n, 4), &Device::Cpu).unwrap()
    }
}

/// What ops compute in.
pub const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// What a sum may differ by, relative to the largest: of f32, the order of additions; of halves, the roundings of the
/// sum and of what bias and residual make of it, four units of half a last place.
pub fn tolerance(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => 2f32.powi(-10),
        DType::BF16 => 2f32.powi(-7),
        _ => 1e-5,
    }
}

/// Compares a result on CUDA with that of the CPU in f32.
#[track_caller]
pub fn assert_agrees(found: &Tensor, expected: &Tensor, tolerance: f32) {
    let largest =
        values(expected).iter().filter(|v| v.is_finite()).fold(1e-6f32, |m, v| m.max(v.abs()));
    let found = found.to_device(&Device::Cpu).unwrap().to_dtype(expected.dtype()).unwrap();
    assert_close(&found, expected, tolerance * largest);
}

/// The result of a second call, which must neither copy nor wait; the first loads the kernels.
#[track_caller]
pub fn quiet<T>(uploads: u64, work: impl Fn() -> T) -> T {
    work();
    let (result, counts) = count(&work);
    if let Some(counts) = counts {
        let copies = [counts.host_to_device, counts.device_to_host, counts.device_to_device];
        assert_eq!((copies, counts.synchronizations), ([uploads, 0, 0], 0), "{counts:?}");
    }
    result
}

/// A tensor as it is after rounding to a dtype, in f32 on the CPU and in the dtype on the GPU.
pub fn rounded(tensor: &Tensor, dtype: DType) -> (Tensor, Tensor) {
    let halves = tensor.to_dtype(dtype).unwrap();
    (halves.to_dtype(DType::F32).unwrap(), upload(&halves))
}

/// The same values as a part of a larger tensor, so that they begin at an odd address.
pub fn misaligned(tensor: &Tensor) -> Tensor {
    let n = tensor.elem_count();
    let flat = Tensor::cat(
        &[
            &Tensor::zeros(1, tensor.dtype(), tensor.device()).unwrap(),
            &tensor.flatten_all().unwrap(),
        ],
        0,
    );
    flat.unwrap().narrow(0, 1, n).unwrap().reshape(tensor.dims()).unwrap()
}
