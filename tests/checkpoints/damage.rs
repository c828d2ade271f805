//! Files that are something else, or cut, or altered: a typed error that quotes them, never a panic.

use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use candle_core::{DType, Device};
use candle_detection::Error;
use candle_detection::checkpoint::Checkpoint;

use super::fixture;

/// Opens, and loads everything; says what is wrong.
fn try_all(path: &Path) -> Result<(), Error> {
    let checkpoint = Checkpoint::open(path)?;
    for tensor in checkpoint.tensors() {
        let loaded = checkpoint.tensor(tensor.name, DType::F32, &Device::Cpu)?;
        assert_eq!(loaded.dims(), tensor.shape);
    }
    Ok(())
}

fn refused(path: &Path, content: &[u8]) -> String {
    std::fs::write(path, content).unwrap();
    match try_all(path) {
        Err(Error::CheckpointFormat { path: named, problem }) => {
            assert_eq!(named, path);
            problem
        }
        other => panic!("{} bytes: {other:?}", content.len()),
    }
}

#[test]
fn other_files_are_named_and_quoted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.pth");
    let cases: [(&[u8], &[&str]); 11] = [
        (b"", &["empty", "0 bytes"]),
        (b"abc", &["3 bytes", "61 62 63", "`abc`"]),
        (&[7; 100], &["100 bytes", "07 07"]),
        (b"\n <!DOCTYPE html><html><body>404</body></html>", &["web page", "3c 21 44"]),
        (b"<html><head>", &["web page"]),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9", &["Git LFS"]),
        (&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0], &["gzip", "1f 8b"]),
        (b"\x80\x02.", &["not one that PyTorch wrote"]),
        (b"PK\x03\x04 and no more", &["zip archive"]),
        // Safetensors: a header longer than the file; a header that is no JSON.
        (b"\xff\xff\0\0\0\0\0\0{}", &["eader"]),
        (b"\x08\0\0\0\0\0\0\0{\"a\": 3}", &["eader"]),
    ];
    for (content, parts) in cases {
        let problem = refused(&path, content);
        for part in parts {
            assert!(problem.contains(part), "{problem} lacks {part}");
        }
    }
    for (file, part) in [
        ("plain.pkl", "not one that PyTorch wrote"),
        ("other.zip", "without data.pkl"),
        ("big_endian.zip.pth", "big-endian"),
        ("list.zip.pth", "a list in place of a state dict"),
        ("list.legacy.pth", "a list in place of a state dict"),
        ("no_tensors.zip.pth", "`epoch` (an integer), `model` (a dict)"),
        ("no_tensors.legacy.pth", "`epoch` (an integer), `model` (a dict)"),
        ("collision.zip.pth", "`rpn.head.conv.weight` and `rpn.head.conv.0.0.weight`"),
    ] {
        let message = Checkpoint::open(&fixture(file)).unwrap_err().to_string();
        assert!(message.contains(part) && message.contains(file), "{message}");
        assert!(message.contains("begins with"), "{message}");
    }
    assert!(matches!(Checkpoint::open(folder.path()), Err(Error::CheckpointFormat { .. })));
    let absent = folder.path().join("absent.pth");
    assert!(matches!(Checkpoint::open(&absent), Err(Error::Io { path, .. }) if path == absent));
}

/// A copy of a fixture whose bytes are changed in place, which is cheaper than writing it anew.
struct Victim {
    _folder: tempfile::TempDir,
    path: std::path::PathBuf,
    file: std::fs::File,
    whole: Vec<u8>,
}

impl Victim {
    fn of(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("victim");
        let whole = std::fs::read(fixture(name)).unwrap();
        std::fs::write(&path, &whole).unwrap();
        try_all(&path).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        Self { _folder: folder, path, file, whole }
    }

    fn write(&mut self, at: usize, byte: u8) {
        self.file.seek(SeekFrom::Start(at as u64)).unwrap();
        self.file.write_all(&[byte]).unwrap();
    }

    /// Sets bytes, tries to load everything, and puts the bytes back. Gives whether it was refused.
    fn try_with(&mut self, changes: &[(usize, u8)]) -> bool {
        for (at, byte) in changes {
            self.write(*at, *byte);
        }
        let refused = match try_all(&self.path) {
            Ok(()) => false,
            Err(Error::CheckpointFormat { .. }) => true,
            Err(other) => panic!("{changes:?}: {other:?}"),
        };
        for (at, _) in changes {
            self.write(*at, self.whole[*at]);
        }
        refused
    }
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    for name in ["nested.legacy.pth", "nested.zip.pth", "module.safetensors"] {
        let victim = Victim::of(name);
        for length in (0..victim.whole.len()).rev() {
            victim.file.set_len(length as u64).unwrap();
            let result = try_all(&victim.path);
            assert!(
                matches!(&result, Err(Error::CheckpointFormat { path, problem })
                    if *path == victim.path && (length == 0 || problem.contains("begins with"))),
                "{name} cut to {length}: {result:?}"
            );
        }
    }
}

/// Each byte of small files set to several values: the result may be right or an error.
#[test]
fn altered_bytes_never_panic() {
    for name in ["nested.legacy.pth", "module.zip.pth", "module.safetensors"] {
        let mut victim = Victim::of(name);
        let mut refusals = 0;
        for at in 0..victim.whole.len() {
            let byte = victim.whole[at];
            for value in [0, 1, 0x7f, 0x80, 0xff, byte ^ 1, byte ^ 0x40] {
                refusals += usize::from(victim.try_with(&[(at, value)]));
            }
        }
        assert!(refusals > victim.whole.len(), "{name}: {refusals} refusals");
    }
}

/// Several bytes altered at once, at random.
#[test]
fn scrambled_files_never_panic() {
    let mut state = 1u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    for name in ["training.legacy.pth", "views.legacy.pth", "views.zip.pth", "deflated.zip.pth"] {
        let mut victim = Victim::of(name);
        let mut refusals = 0;
        for _ in 0..3000 {
            let changes: Vec<(usize, u8)> = (0..1 + random(6))
                .map(|_| (random(victim.whole.len()), random(256) as u8))
                .collect();
            refusals += usize::from(victim.try_with(&changes));
        }
        assert!(refusals > 500, "{name}: {refusals} refusals");
    }
}
