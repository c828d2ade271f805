//! The sample weights at full size, when they are there.

use candle_core::{DType, Device};
use candle_detection::checkpoint::{Checkpoint, Format, Precision, write_safetensors};

#[test]
fn sample_weights_load_and_convert() {
    let Some(data) = std::env::var_os("CANDLE_DETECTION_DATA") else {
        eprintln!("skipped: CANDLE_DETECTION_DATA is not set");
        return;
    };
    let path = std::path::Path::new(&data).join("weights/maskrcnn_coco12.safetensors");
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(checkpoint.format(), Format::Safetensors);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("f32.safetensors");
    write_safetensors(&checkpoint, &out, Precision::F32).unwrap();
    let copy = Checkpoint::open(&out).unwrap();
    let mut elements = 0;
    for tensor in checkpoint.tensors() {
        let one = checkpoint.tensor(tensor.name, DType::F32, &Device::Cpu).unwrap();
        let other = copy.tensor(tensor.name, DType::F32, &Device::Cpu).unwrap();
        assert_eq!(super::bits(&one), super::bits(&other), "{}", tensor.name);
        elements += one.elem_count();
    }
    // 44.4 million parameters, and the statistics of 53 norms.
    assert!((44_401_393..44_600_000).contains(&elements), "{elements}");
}
