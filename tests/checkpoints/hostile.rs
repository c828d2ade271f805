//! Pickles written by hand to do harm: nothing is executed, read outside, or allocated out of
//! proportion.

use std::time::Instant;

use candle_detection::Error;
use candle_detection::checkpoint::Checkpoint;

use super::fixture;

const MAGIC: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
const VERSION: &[u8] = b"\x80\x02M\xe9\x03.";
const MACHINE: &[u8] = b"\x80\x02}q\x00X\x0d\x00\x00\x00little_endian\x88s.";

/// A legacy file around a checkpoint's pickle, with one storage `s` of four floats.
fn legacy(checkpoint: &[u8]) -> Vec<u8> {
    let mut file = [MAGIC, VERSION, MACHINE, checkpoint].concat();
    file.extend(b"\x80\x02](X\x01\x00\x00\x00se.");
    file.extend(4u64.to_le_bytes());
    for value in [1.0f32, 2.0, 3.0, 4.0] {
        file.extend(value.to_le_bytes());
    }
    file
}

fn text(value: &str) -> Vec<u8> {
    let mut out = vec![b'X'];
    out.extend((value.len() as u32).to_le_bytes());
    out.extend(value.as_bytes());
    out
}

fn int(value: i64) -> Vec<u8> {
    let mut out = vec![0x8a, 8];
    out.extend(value.to_le_bytes());
    out
}

fn tuple(values: &[i64]) -> Vec<u8> {
    let items: Vec<u8> = values.iter().flat_map(|value| int(*value)).collect();
    [b"(".as_slice(), &items, b"t"].concat()
}

/// The reference to the storage `s`; `view` is (first element, number of elements).
fn storage(view: Option<(i64, i64)>) -> Vec<u8> {
    let view = match view {
        None => b"N".to_vec(),
        Some((first, length)) => {
            [b"(".as_slice(), &text("v"), &int(first), &int(length), b"t"].concat()
        }
    };
    [
        b"(".as_slice(),
        &text("storage"),
        b"ctorch\nFloatStorage\n",
        &text("s"),
        &text("cpu"),
        &int(4),
        &view,
        b"tQ",
    ]
    .concat()
}

fn tensor(view: Option<(i64, i64)>, offset: i64, shape: &[i64], strides: &[i64]) -> Vec<u8> {
    [
        b"ctorch._utils\n_rebuild_tensor_v2\n(".as_slice(),
        &storage(view),
        &int(offset),
        &tuple(shape),
        &tuple(strides),
        b"\x89}tR",
    ]
    .concat()
}

/// `{"w": value}`.
fn dict(value: &[u8]) -> Vec<u8> {
    [b"\x80\x02}".as_slice(), &text("w"), value, b"s."].concat()
}

fn try_open(content: &[u8]) -> Result<Checkpoint, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hostile.pth");
    std::fs::write(&path, content).unwrap();
    Checkpoint::open(&path).map_err(|error| match error {
        Error::CheckpointFormat { problem, .. } => problem,
        other => panic!("{other:?}"),
    })
}

fn refused(checkpoint: &[u8], part: &str) {
    let problem = try_open(&legacy(checkpoint)).unwrap_err();
    assert!(problem.contains(part), "`{problem}` lacks `{part}`");
}

#[test]
fn globals_are_named_and_not_executed() {
    let marker = std::path::Path::new("/tmp/candle-detection-pwned");
    for file in ["evil.zip.pth", "evil.legacy.pth"] {
        let message = Checkpoint::open(&fixture(file)).unwrap_err().to_string();
        assert!(message.contains("`posix.system`"), "{message}");
    }
    let message = Checkpoint::open(&fixture("whole_module.zip.pth")).unwrap_err().to_string();
    assert!(message.contains("`torch.nn.modules.container.Sequential`"), "{message}");
    for global in [
        "os.system",
        "builtins.eval",
        "torch.storage._load_from_bytes",
        "torch.FloatTensor",
        "argparse.ArgumentParser",
        "torch._utils._rebuild_tensor_v2.__globals__",
        "collections.OrderedDict ",
    ] {
        let (module, name) = global.rsplit_once('.').unwrap();
        refused(&dict(format!("c{module}\n{name}\n").as_bytes()), &format!("`{global}`"));
        let stacked = [text(module), text(name), b"\x93".to_vec()].concat();
        refused(&dict(&stacked), &format!("`{global}`"));
    }
    // Instructions that make objects in other ways.
    for opcode in [b'i', b'o', 0x82, 0x83, 0x84, 0x92, b'P', 0x97] {
        refused(&dict(&[opcode]), "no place in a checkpoint");
    }
    assert!(!marker.exists());
}

#[test]
fn views_stay_inside_their_storage() {
    // The helper makes files that are accepted when nothing is wrong with them.
    let good = try_open(&legacy(&dict(&tensor(None, 1, &[3], &[1])))).unwrap();
    assert_eq!(super::load(&good, "w").to_vec1::<f32>().unwrap(), [2.0, 3.0, 4.0]);
    let part = try_open(&legacy(&dict(&tensor(Some((1, 2)), 1, &[1], &[7])))).unwrap();
    assert_eq!(super::load(&part, "w").to_vec1::<f32>().unwrap(), [3.0]);

    const FAR: i64 = i64::MAX;
    for (offset, shape, strides) in [
        (0, vec![5], vec![1]),
        (2, vec![3], vec![1]),
        (0, vec![2, 2], vec![3, 1]),
        (0, vec![2], vec![4]),
        (4, vec![1], vec![1]),
        (FAR, vec![1], vec![1]),
        (FAR, vec![2], vec![FAR]),
        (0, vec![2, 2], vec![FAR, FAR]),
    ] {
        refused(&dict(&tensor(None, offset, &shape, &strides)), "beyond its storage");
    }
    refused(&dict(&tensor(None, 0, &[FAR, FAR], &[0, 0])), "overflows");
    refused(&dict(&tensor(None, 0, &[FAR, FAR, 0], &[1, 1, 1])), "overflows");
    refused(&dict(&tensor(None, 0, &[2], &[-1])), "-1");
    refused(&dict(&tensor(None, -3, &[1], &[1])), "-3");
    refused(&dict(&tensor(None, 0, &[-2], &[1])), "-2");
    refused(&dict(&tensor(None, 0, &[2, 2], &[1])), "differ in length");
    refused(&dict(&tensor(Some((1, 2)), 2, &[1], &[1])), "beyond its storage");
    for view in [(3, 2), (5, 0), (FAR, FAR), (-1, 1)] {
        refused(&dict(&tensor(Some(view), 0, &[1], &[1])), "view");
    }
    // A thousand times more elements than bytes, all of them the same one.
    refused(&dict(&tensor(None, 0, &[1 << 30], &[0])), "repeating");
    refused(&dict(&tensor(None, 0, &[1 << 20, 1 << 20], &[0, 0])), "repeating");
}

/// Python 2 wrote names as byte strings and ordered dicts as lists of pairs; the first PyTorch had a
/// simpler way to rebuild tensors.
#[test]
fn the_oldest_dialect_is_understood() {
    let tensor = [
        b"ctorch._utils\n_rebuild_tensor\n(".as_slice(),
        &storage(None),
        b"K\x01ctorch\nSize\n",
        &tuple(&[2]),
        b"\x85R",
        &tuple(&[2]),
        b"tR",
    ]
    .concat();
    // A list with one pair, itself a list.
    let program =
        [b"\x80\x02ccollections\nOrderedDict\n]((U\x01w".as_slice(), &tensor, b"le\x85R."].concat();
    let checkpoint = try_open(&legacy(&program)).unwrap();
    assert_eq!(super::load(&checkpoint, "w").to_vec1::<f32>().unwrap(), [2.0, 4.0]);
}

#[test]
fn sizes_are_not_believed() {
    let huge = (u64::MAX / 4).to_le_bytes();
    let mut file = legacy(&dict(&tensor(None, 0, &[1], &[1])));
    let count = file.len() - 24;
    file[count..count + 8].copy_from_slice(&huge);
    assert!(try_open(&file).unwrap_err().contains("expected 4"));
    // Strings and integers that claim to be longer than the file.
    for claim in [
        b"X\xff\xff\xff\xff".as_slice(),
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x8b\xff\xff\xff\x7f",
        b"B\xff\xff\xff\xff",
    ] {
        refused(&dict(claim), "stops early");
    }
}

#[test]
fn bombs_are_cheap() {
    let start = Instant::now();
    // Tuples in tuples: a million levels, which must not recurse.
    let deep = [b")".as_slice(), &b"\x85".repeat(1 << 20)].concat();
    refused(&dict(&deep), "no state dict");
    // Each tuple holds the last one twice: 2^200 leaves.
    let mut doubled = b")q\x00".to_vec();
    doubled.extend(b"0h\x00h\x00\x86q\x00".repeat(200));
    refused(&dict(&doubled), "no state dict");
    // A dict that holds itself under a wrapper's name.
    let own = [b"\x80\x02}q\x00".as_slice(), &text("model"), b"h\x00s."].concat();
    refused(&own, "wrappers inside each other");
    // A parameter that is its own tensor.
    let parameter =
        b"ctorch._utils\n_rebuild_parameter\nctorch._utils\n_rebuild_parameter\n)R\x85R";
    refused(&dict(parameter), "parameter");
    // One long list, made into dicts again and again.
    let pairs = b"NN\x86".repeat(20_000);
    let mut dicts = [b"(".as_slice(), &pairs, b"lq\x00"].concat();
    dicts.extend(b"ccollections\nOrderedDict\nh\x00\x85R".repeat(20_000));
    refused(&dict(&dicts), "entries");
    // Five million values.
    refused(&dict(&b"N".repeat(5_000_000)), "values");
    // Marks without end.
    refused(&dict(&b"(".repeat(1 << 20)), "");
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}

/// What takes from an empty stack, or below a mark, or recalls what was never stored.
#[test]
fn the_machine_does_not_slip() {
    for program in [
        b".".as_slice(),
        b"0.",
        b"a.",
        b"s.",
        b"u.",
        b"e.",
        b"t.",
        b"R.",
        b"b.",
        b"Q.",
        b"2.",
        b"q\x00.",
        b"h\x00.",
        b"j\x01\x02\x03\x04.",
        b"N(0.",
        b"N(\x85.",
        b"(NNNu.",
        b"NNa.",
        b"NNNs.",
        b"NNR.",
        b"\x80\x09.",
        b"\x93.",
        b"NN\x93.",
        b"c\xff\nx\n.",
        b"cos",
        b"\x94.",
        b"N)R.",
        b"ctorch\nFloatStorage\nNR.",
    ] {
        let program = [b"\x80\x02".as_slice(), program].concat();
        assert!(try_open(&legacy(&program)).is_err(), "{program:?}");
    }
}
