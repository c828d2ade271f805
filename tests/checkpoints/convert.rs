//! Any checkpoint as safetensors, read back by the safetensors crate.

use candle_core::{DType, Device};
use candle_detection::Error;
use candle_detection::checkpoint::{Checkpoint, Format, Precision, write_safetensors};
use half::bf16;
use safetensors::{Dtype, SafeTensors};

use super::{bits, fixture, open, truth, truth_bits};

#[test]
fn conversion_keeps_every_bit_and_drops_counters() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.safetensors");
    for (file, expected) in [
        ("old.legacy.pth", "expected.safetensors"),
        ("old_wrapped.zip.pth", "expected.safetensors"),
        ("views.legacy.pth", "views.safetensors"),
        ("deflated.zip.pth", "views.safetensors"),
        ("kinds.zip.pth", "kinds.safetensors"),
        ("training.legacy.pth", "module.safetensors"),
    ] {
        let mut expected = truth(expected);
        let counters = usize::from(expected.remove("1.num_batches_tracked").is_some());
        let written = write_safetensors(&open(file), &out, Precision::AsStored).unwrap();
        assert_eq!(written.tensors, expected.len(), "{file}");
        assert_eq!(written.dropped.len(), counters, "{file}");
        let bytes = std::fs::read(&out).unwrap();
        assert_eq!(written.bytes, bytes.len() as u64, "{file}");
        let read = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(read.len(), expected.len(), "{file}");
        for (name, (shape, content)) in &expected {
            let tensor = read.tensor(name).unwrap();
            assert_eq!(
                (tensor.shape(), tensor.data()),
                (shape.as_slice(), content.as_slice()),
                "{file} {name}"
            );
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "{file}: leftovers");
    }
}

#[test]
fn precision_applies_to_floats_only() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.safetensors");
    write_safetensors(&open("kinds.legacy.pth"), &out, Precision::BF16).unwrap();
    let bytes = std::fs::read(&out).unwrap();
    let read = SafeTensors::deserialize(&bytes).unwrap();
    for name in ["f64", "f32", "f16", "bf16"] {
        let tensor = read.tensor(name).unwrap();
        assert_eq!(tensor.dtype(), Dtype::BF16, "{name}");
        assert_eq!(tensor.data()[..2], bf16::from_f64(1.0 / 3.0).to_le_bytes(), "{name}");
    }
    assert_eq!(read.tensor("i64").unwrap().dtype(), Dtype::I64);
    assert_eq!(read.tensor("bool").unwrap().dtype(), Dtype::BOOL);

    for (precision, dtype) in [(Precision::F32, Dtype::F32), (Precision::F16, Dtype::F16)] {
        write_safetensors(&open("float64.zip.pth"), &out, precision).unwrap();
        let bytes = std::fs::read(&out).unwrap();
        let read = SafeTensors::deserialize(&bytes).unwrap();
        assert!(read.iter().all(|(_, tensor)| tensor.dtype() == dtype));
    }
}

/// The file is mapped while it is replaced.
#[test]
fn a_file_may_be_converted_onto_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.pth");
    std::fs::copy(fixture("old.legacy.pth"), &path).unwrap();
    let before = Checkpoint::open(&path).unwrap();
    write_safetensors(&before, &path, Precision::AsStored).unwrap();
    let after = Checkpoint::open(&path).unwrap();
    assert_eq!((after.format(), after.renamed()), (Format::Safetensors, 0));
    for (name, (_, content)) in truth("expected.safetensors") {
        for checkpoint in [&before, &after] {
            let tensor = checkpoint.tensor(&name, DType::F32, &Device::Cpu).unwrap();
            assert_eq!(bits(&tensor), truth_bits(&content), "{name}");
        }
    }
}

#[test]
fn a_failure_leaves_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.safetensors");
    std::fs::write(&path, "old").unwrap();
    // Compressed bytes that don't have their checksum: found out while writing.
    let damaged = folder.path().join("damaged.pth");
    let mut bytes = std::fs::read(fixture("deflated.zip.pth")).unwrap();
    let at = bytes.windows(6).position(|w| w == b"data/0").unwrap() + 20;
    bytes[at] ^= 0x55;
    std::fs::write(&damaged, bytes).unwrap();
    let checkpoint = Checkpoint::open(&damaged).unwrap();
    let error = write_safetensors(&checkpoint, &path, Precision::AsStored).unwrap_err();
    assert!(
        matches!(&error, Error::CheckpointFormat { path, .. } if *path == damaged),
        "{error:?}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "leftovers");
    let nowhere = folder.path().join("absent/out.safetensors");
    let error = write_safetensors(&open("old.zip.pth"), &nowhere, Precision::F32).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error:?}");
}

/// Names with characters that JSON escapes survive.
#[test]
fn odd_names_are_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("a"), folder.path().join("b"));
    let name = "a\"b\\c\u{1}ü";
    let view = safetensors::tensor::TensorView::new(Dtype::U8, vec![1], &[9]).unwrap();
    safetensors::serialize_to_file([(name, view)], None, &first).unwrap();
    write_safetensors(&Checkpoint::open(&first).unwrap(), &second, Precision::AsStored).unwrap();
    assert!(Checkpoint::open(&second).unwrap().get(name).is_some());
}
