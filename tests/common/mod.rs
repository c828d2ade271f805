//! What integration tests share: fixtures, tolerances, sample data.
#![allow(dead_code, reason = "each test binary uses its part")]

#[cfg(feature = "train")]
pub mod narrow;
#[cfg(feature = "train")]
pub mod rectangles;
#[cfg(feature = "train")]
pub mod runs;
#[cfg(feature = "train")]
pub mod training;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use candle_detection::{Detector, ImageInput};

/// What the reference's own results change, relatively, when all weights are perturbed by three parts in ten million, which
/// is what rounding amounts to, where that is more than the tolerance: fifty layers add up, and levels of one cell have
/// running variances near zero, by which norms divide.
const NOISE: [(&str, &str, f32); 4] = [
    ("tiny_r50_v2", "scores", 6.6e-4),
    ("tiny_mobilenet", "scores", 4.4e-4),
    ("tiny_ssdlite", "features.4", 2.8e-4),
    ("tiny_ssdlite", "features.5", 2.3e-3),
];

/// A tolerance, or the noise of what is compared.
pub fn tolerance(name: &str, what: &str, tolerance: f32) -> f32 {
    let noise = NOISE.iter().find(|(model, part, _)| (*model, *part) == (name, what));
    noise.map_or(tolerance, |(.., noise)| *noise)
}

/// The folder of committed fixtures.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// The folder of sample photos and weights, or `None` after saying what is skipped.
pub fn sample_data(test: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("CANDLE_DETECTION_DATA")
        .filter(|folder| !folder.is_empty())
        .map(PathBuf::from);
    if folder.is_none() {
        eprintln!("skipped: {test}: CANDLE_DETECTION_DATA is not set");
    }
    folder
}

/// A narrow model with its weights, and the reference's tensors of every stage.
pub struct Fixture {
    name: String,
    stages: HashMap<String, Tensor>,
}

impl Fixture {
    pub fn load(name: &str) -> Self {
        let path = fixtures().join(format!("{name}_stages.safetensors"));
        let stages = candle_core::safetensors::load(&path, &Device::Cpu)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { name: name.to_owned(), stages }
    }

    pub fn detector(&self) -> Detector {
        let file = |extension: &str| fixtures().join(format!("{}.{extension}", self.name));
        Detector::from_files(&file("toml"), &file("safetensors")).unwrap()
    }

    pub fn has(&self, key: &str) -> bool {
        self.stages.contains_key(key)
    }

    pub fn tensor(&self, key: &str) -> Tensor {
        self.stages.get(key).unwrap_or_else(|| panic!("{}: no tensor {key}", self.name)).clone()
    }

    /// A tensor of the reference, channels last as ours.
    pub fn features(&self, key: &str) -> Tensor {
        channels_last(&self.tensor(key))
    }

    pub fn images(&self) -> Vec<ImageInput> {
        (0..)
            .map_while(|i| self.stages.get(&format!("image.{i}")))
            .map(|pixels| {
                let (height, width, _) = pixels.dims3().unwrap();
                let bytes: Vec<u8> = pixels.flatten_all().unwrap().to_vec1().unwrap();
                ImageInput::from_rgb8(width, height, bytes).unwrap()
            })
            .collect()
    }
}

pub fn channels_last(tensor: &Tensor) -> Tensor {
    tensor.permute((0, 2, 3, 1)).unwrap().contiguous().unwrap()
}

pub fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

pub fn largest_value(tensor: &Tensor) -> f32 {
    values(tensor).iter().fold(0.0, |largest, v| largest.max(v.abs()))
}

/// NaN counts as infinitely different.
pub fn largest_difference(a: &Tensor, b: &Tensor) -> f32 {
    assert_eq!(a.elem_count(), b.elem_count(), "{:?} and {:?}", a.dims(), b.dims());
    values(a).iter().zip(values(b)).fold(0.0, |largest, (a, b)| {
        let difference = (a - b).abs();
        if difference.is_nan() { f32::INFINITY } else { largest.max(difference) }
    })
}

/// The executable of an example. `cargo test` builds it; when only some tests were asked for, it is built here.
pub fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let path = profile.join(format!("examples/{name}{}", std::env::consts::EXE_SUFFIX));
    if !path.is_file() {
        let mut cargo = std::process::Command::new(env!("CARGO"));
        cargo.args(["build", "--example", name, "--target-dir"]).arg(profile.parent().unwrap());
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success());
    }
    path
}
