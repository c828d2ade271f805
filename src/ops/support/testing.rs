//! What the tests of ops share: random input, comparison, tolerances.

use std::path::PathBuf;

use candle_core::{DType, Device, Tensor, Var};

/// Absolute tolerance of boxes and anchors in pixels.
pub(crate) const BOX_TOLERANCE: f32 = 1e-4;
/// Tolerance of products over at most 1000 terms, relative to the largest output.
pub(crate) const PRODUCT_TOLERANCE: f32 = 1e-5;

/// A small deterministic generator (xorshift64*), so that tests depend on no crate's stream.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

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

    /// A tensor of numbers in `-1..1`.
    pub fn tensor(&mut self, dims: &[usize]) -> Tensor {
        let values: Vec<f32> = (0..dims.iter().product()).map(|_| self.range(-1.0, 1.0)).collect();
        Tensor::from_vec(values, dims, &Device::Cpu).unwrap()
    }

    /// Boxes with sides of at least one pixel inside an image.
    pub fn boxes(&mut self, n: usize, width: f32, height: f32) -> Vec<[f32; 4]> {
        (0..n)
            .map(|_| {
                let (x, y) = (self.range(0.0, width - 2.0), self.range(0.0, height - 2.0));
                [x, y, self.range(x + 1.0, width), self.range(y + 1.0, height)]
            })
            .collect()
    }
}

/// All values of a tensor in memory order, as f32.
pub(crate) fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Panics with the first place in which two tensors differ by more than `tolerance`; NaN equals NaN.
#[track_caller]
pub(crate) fn assert_close(found: &Tensor, expected: &Tensor, tolerance: f32) {
    assert_eq!(found.dims(), expected.dims(), "shapes differ");
    for (i, (a, b)) in values(found).iter().zip(values(expected)).enumerate() {
        let same = (a - b).abs() <= tolerance || (a.is_nan() && b.is_nan()) || *a == b;
        assert!(same, "at {i} of {:?}: found {a}, expected {b} ± {tolerance}", found.dims());
    }
}

/// Like [`assert_close`], with a tolerance relative to the largest expected value.
#[track_caller]
pub(crate) fn assert_close_relative(found: &Tensor, expected: &Tensor, tolerance: f32) {
    let largest = values(expected).iter().fold(0f32, |m, v| m.max(v.abs()));
    assert_close(found, expected, tolerance * largest.max(1e-6));
}

/// A committed fixture: tensors made by the reference, by name.
#[track_caller]
pub(crate) fn fixture(file: &str) -> std::collections::HashMap<String, Tensor> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(file);
    candle_core::safetensors::load(&path, &Device::Cpu)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Step of differences of smooth functions computed in f64.
pub(crate) const SMALL_STEP: f64 = 1e-6;

/// Compares the gradients that an op records with central differences of its twin.
///
/// The function is a weighted sum of the op's output, the weights being random. Of large inputs, some entries are compared.
/// Where the op is linear, a large step spares the twin from computing in f64.
#[track_caller]
pub(crate) fn assert_gradients(
    inputs: &[Tensor],
    step: f64,
    op: impl Fn(&[Tensor]) -> Tensor,
    twin: impl Fn(&[Vec<f64>]) -> Vec<f64>,
) {
    /// Entries compared of each input, at least.
    const COMPARED: usize = 40;
    /// Tolerance relative to the largest entry compared.
    const TOLERANCE: f64 = 1e-4;

    let variables: Vec<Var> = inputs.iter().map(|input| Var::from_tensor(input).unwrap()).collect();
    let tensors: Vec<Tensor> = variables.iter().map(|var| var.as_tensor().clone()).collect();
    let output = op(&tensors);
    let weights = Random::new(99).tensor(output.dims());
    let gradients = (&output * &weights).unwrap().sum_all().unwrap().backward().unwrap();
    let weights = exact(&values(&weights));
    let mut at: Vec<Vec<f64>> = inputs.iter().map(|input| exact(&values(input))).collect();
    let forward = twin(&at);
    assert_eq!(forward.len(), output.elem_count(), "the twin's output has another size");
    for index in 0..inputs.len() {
        let found = gradients
            .get(&tensors[index])
            .unwrap_or_else(|| panic!("input {index} has no gradient"));
        assert_eq!(found.dims(), inputs[index].dims(), "gradient of input {index}");
        let found = values(found);
        let places: Vec<usize> =
            (0..found.len()).step_by((found.len() / COMPARED).max(1)).collect();
        let expected: Vec<f64> = places
            .iter()
            .map(|&place| {
                let mut moved = |step: f64| {
                    let before = at[index][place];
                    at[index][place] += step;
                    let out = twin(&at);
                    at[index][place] = before;
                    out
                };
                let (above, below) = (moved(step), moved(-step));
                let terms = above.iter().zip(&below).zip(&weights);
                terms.map(|((above, below), weight)| (above - below) * weight).sum::<f64>()
                    / (2.0 * step)
            })
            .collect();
        let largest = expected.iter().fold(1e-3, |largest: f64, v| largest.max(v.abs()));
        for (place, expected) in places.iter().zip(expected) {
            let difference = (f64::from(found[*place]) - expected).abs();
            assert!(
                difference <= TOLERANCE * largest,
                "input {index} at {place}: gradient {}, by differences {expected}",
                found[*place]
            );
        }
    }
}

/// As f32, for twins that compute in it.
pub(crate) fn rounded(values: &[f64]) -> Vec<f32> {
    values.iter().map(|value| *value as f32).collect()
}

/// From f32.
pub(crate) fn exact(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}
