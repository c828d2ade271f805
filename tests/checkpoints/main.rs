//! Weight files: every format × naming × element type × wrapper × damage.
//!
//! Fixtures are PyTorch's own files, made by `tests/fixtures/make_checkpoints.py`; what they hold is
//! read back by the safetensors crate, not by the reader under test.

mod convert;
mod damage;
mod formats;
mod full_size;
mod hostile;
mod loading;

use std::collections::BTreeMap;
use std::path::PathBuf;

use candle_core::{DType, Device, Tensor};
use candle_detection::checkpoint::Checkpoint;
use safetensors::SafeTensors;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/checkpoints").join(name)
}

fn open(name: &str) -> Checkpoint {
    Checkpoint::open(&fixture(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Name → shape and raw little-endian bytes, as the safetensors crate reads them.
fn truth(name: &str) -> BTreeMap<String, (Vec<usize>, Vec<u8>)> {
    let bytes = std::fs::read(fixture(name)).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    file.iter()
        .map(|(name, view)| (name.to_owned(), (view.shape().to_vec(), view.data().to_vec())))
        .collect()
}

/// The bits of a tensor of f32.
fn bits(tensor: &Tensor) -> Vec<u32> {
    assert_eq!(tensor.dtype(), DType::F32);
    assert!(tensor.is_contiguous());
    tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap().iter().map(|v| v.to_bits()).collect()
}

fn truth_bits(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|raw| u32::from_le_bytes(raw.try_into().unwrap())).collect()
}

fn load(checkpoint: &Checkpoint, name: &str) -> Tensor {
    checkpoint.tensor(name, DType::F32, &Device::Cpu).unwrap()
}
