//! What the three formats give, for every naming, wrapper and element type.

use candle_core::{DType, Device};
use candle_detection::checkpoint::{Checkpoint, Format, StoredDType};
use half::{bf16, f16};

use super::{bits, fixture, load, open, truth, truth_bits};

#[test]
fn all_formats_and_namings_give_identical_tensors() {
    let expected = truth("expected.safetensors");
    let files = [
        ("expected.safetensors", Format::Safetensors, 0, None),
        ("old.safetensors", Format::Safetensors, 8, None),
        ("today.zip.pth", Format::PthZip, 0, None),
        ("today.legacy.pth", Format::PthLegacy, 0, None),
        ("old.zip.pth", Format::PthZip, 8, None),
        ("old.legacy.pth", Format::PthLegacy, 8, None),
        ("protocol4.zip.pth", Format::PthZip, 0, None),
        ("protocol4.legacy.pth", Format::PthLegacy, 0, None),
        ("old_wrapped.zip.pth", Format::PthZip, 8, Some("model_state_dict")),
        ("old_wrapped.legacy.pth", Format::PthLegacy, 8, Some("model_state_dict")),
    ];
    for (file, format, renamed, wrapper) in files {
        let checkpoint = open(file);
        assert_eq!(checkpoint.format(), format, "{file}");
        assert_eq!(checkpoint.renamed(), renamed, "{file}");
        assert_eq!(checkpoint.wrapper(), wrapper, "{file}");
        assert_eq!(checkpoint.prefix(), None, "{file}");
        let names: Vec<&str> = checkpoint.tensors().map(|tensor| tensor.name).collect();
        assert_eq!(names, expected.keys().collect::<Vec<_>>(), "{file}");
        for (name, (shape, bytes)) in &expected {
            let info = checkpoint.get(name).unwrap();
            assert_eq!(
                (info.shape, info.dtype),
                (shape.as_slice(), StoredDType::F32),
                "{file} {name}"
            );
            let tensor = load(&checkpoint, name);
            assert_eq!(tensor.dims(), shape.as_slice(), "{file} {name}");
            assert_eq!(bits(&tensor), truth_bits(bytes), "{file} {name}");
        }
    }
}

/// The name of a file says nothing: the same content opens under any other.
#[test]
fn formats_are_recognised_by_content() {
    let folder = tempfile::tempdir().unwrap();
    for (file, format) in [
        ("expected.safetensors", Format::Safetensors),
        ("today.zip.pth", Format::PthZip),
        ("today.legacy.pth", Format::PthLegacy),
    ] {
        for disguise in ["w.pth", "w.safetensors", "w.zip", "w"] {
            let path = folder.path().join(disguise);
            std::fs::copy(fixture(file), &path).unwrap();
            assert_eq!(Checkpoint::open(&path).unwrap().format(), format, "{file} as {disguise}");
        }
    }
}

#[test]
fn floats_of_other_widths_are_rounded_once() {
    let expected = truth("expected.safetensors");
    for kind in ["zip", "legacy"] {
        let half = open(&format!("float16.{kind}.pth"));
        let brain = open(&format!("bfloat16.{kind}.pth"));
        let double = open(&format!("float64.{kind}.pth"));
        for (name, (_, bytes)) in &expected {
            let values: Vec<f32> = truth_bits(bytes).into_iter().map(f32::from_bits).collect();
            let through = |round: &dyn Fn(f32) -> f32| -> Vec<u32> {
                values.iter().map(|value| round(*value).to_bits()).collect()
            };
            assert_eq!(half.get(name).unwrap().dtype, StoredDType::F16);
            assert_eq!(bits(&load(&half, name)), through(&|v| f16::from_f32(v).to_f32()), "{name}");
            assert_eq!(brain.get(name).unwrap().dtype, StoredDType::BF16);
            assert_eq!(
                bits(&load(&brain, name)),
                through(&|v| bf16::from_f32(v).to_f32()),
                "{name}"
            );
            assert_eq!(double.get(name).unwrap().dtype, StoredDType::F64);
            assert_eq!(bits(&load(&double, name)), through(&|v| v), "{name}");
            // And the other way, from f64 on disk.
            let narrow = double.tensor(name, DType::F16, &Device::Cpu).unwrap();
            let narrow = narrow.to_dtype(DType::F32).unwrap();
            assert_eq!(bits(&narrow), through(&|v| f16::from_f32(v).to_f32()), "{name}");
        }
    }
}

#[test]
fn views_come_out_right() {
    let expected = truth("views.safetensors");
    for file in ["views.safetensors", "views.zip.pth", "views.legacy.pth", "deflated.zip.pth"] {
        let checkpoint = open(file);
        assert_eq!(checkpoint.tensors().count(), expected.len(), "{file}");
        for (name, (shape, bytes)) in &expected {
            let tensor = load(&checkpoint, name);
            assert_eq!(tensor.dims(), shape.as_slice(), "{file} {name}");
            assert_eq!(bits(&tensor), truth_bits(bytes), "{file} {name}");
        }
    }
    // The fixture is not trivial: an expanded row repeats, a transposed matrix starts with 0, 10.
    let transposed = load(&open("views.legacy.pth"), "transposed");
    assert_eq!(transposed.to_vec2::<f32>().unwrap()[0][..2], [0.0, 10.0]);
}

#[test]
fn every_element_type_is_readable() {
    for file in ["kinds.safetensors", "kinds.zip.pth", "kinds.legacy.pth"] {
        let checkpoint = open(file);
        let floats = |name| load(&checkpoint, name).to_vec1::<f32>().unwrap();
        let third = 1.0f32 / 3.0;
        assert_eq!(floats("f64"), [third, f32::NEG_INFINITY, 0.0], "{file}");
        assert_eq!(floats("f32"), [third, -1e30, f32::INFINITY], "{file}");
        let halves = [1.0 / 3.0, -65504.0, 6e-8].map(|v| f16::from_f64(v).to_f32());
        assert_eq!(floats("f16"), halves, "{file}");
        let brains = [1.0 / 3.0, -3e38, 1e-40].map(|v| bf16::from_f64(v).to_f32());
        assert_eq!(floats("bf16"), brains, "{file}");
        let integers = |name| {
            let tensor = checkpoint.tensor(name, DType::I64, &Device::Cpu).unwrap();
            tensor.flatten_all().unwrap().to_vec1::<i64>().unwrap()
        };
        assert_eq!(integers("i64"), [(1 << 40) + 3], "{file}");
        assert_eq!(checkpoint.get("i64").unwrap().shape, &[] as &[usize], "{file}");
        assert_eq!(integers("i32"), [-5, 6], "{file}");
        assert_eq!(integers("i16"), [-300], "{file}");
        assert_eq!(integers("i8"), [-7, 7], "{file}");
        assert_eq!(integers("u8"), [0, 255], "{file}");
        assert_eq!(integers("bool"), [1, 0, 1], "{file}");
        let clamped = checkpoint.tensor("i16", DType::U8, &Device::Cpu).unwrap();
        assert_eq!(clamped.to_vec1::<u8>().unwrap(), [0], "{file}");
    }
}

/// Training checkpoints: wrappers, one in another, `module.`, optimizer state, arguments, `_metadata`
/// and counters of batch norm.
#[test]
fn training_checkpoints_give_the_module() {
    let expected = truth("module.safetensors");
    assert!(expected.contains_key("1.num_batches_tracked"));
    for kind in ["zip", "legacy"] {
        for (file, wrapper, prefix) in [
            ("module", None, None),
            ("training", Some("model"), None),
            ("nested", Some("state_dict.model_state_dict"), Some("module.")),
        ] {
            let file = format!("{file}.{kind}.pth");
            let checkpoint = open(&file);
            assert_eq!(checkpoint.wrapper(), wrapper, "{file}");
            assert_eq!(checkpoint.prefix(), prefix, "{file}");
            assert_eq!(checkpoint.tensors().count(), expected.len(), "{file}");
            for (name, (shape, bytes)) in &expected {
                if name == "1.num_batches_tracked" {
                    let counter = checkpoint.tensor(name, DType::I64, &Device::Cpu).unwrap();
                    assert_eq!(counter.to_scalar::<i64>().unwrap(), 1, "{file}");
                } else {
                    let tensor = load(&checkpoint, name);
                    assert_eq!(tensor.dims(), shape.as_slice(), "{file} {name}");
                    assert_eq!(bits(&tensor), truth_bits(bytes), "{file} {name}");
                }
            }
        }
    }
}

#[test]
fn a_state_dict_elsewhere_needs_its_key() {
    for file in ["elsewhere.zip.pth", "elsewhere.legacy.pth"] {
        let path = fixture(file);
        let message = Checkpoint::open(&path).unwrap_err().to_string();
        assert!(
            message.contains("no state dict") && message.contains("`net` (a dict)"),
            "{message}"
        );
        let checkpoint = Checkpoint::open_under(&path, "net.ema").unwrap();
        assert_eq!(checkpoint.wrapper(), Some("net.ema"));
        assert_eq!(checkpoint.prefix(), Some("module."));
        assert!(checkpoint.get("0.weight").is_some());
        let message = Checkpoint::open_under(&path, "net.best").unwrap_err().to_string();
        assert!(message.contains("`net.best`") && message.contains("`ema`"), "{message}");
    }
    let message =
        Checkpoint::open_under(&fixture("expected.safetensors"), "x").unwrap_err().to_string();
    assert!(message.contains("safetensors") && message.contains("`x`"), "{message}");
}
