//! The device, and comparisons across devices.

use std::sync::LazyLock;

use candle_core::{DType, Device, Tensor};

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
