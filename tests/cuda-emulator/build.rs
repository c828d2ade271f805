//! Writes a placeholder for each entry point that cudarc may link against and that the
//! sources here do not define, so that a program loads even with immediate binding.
use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=src");
    println!("cargo:rerun-if-changed=stub-names.txt");
    println!("cargo:rerun-if-changed=build.rs");

    let mut defined = HashSet::new();
    let mut files = vec![];
    sources(Path::new("src"), &mut files);
    for file in files {
        let text = std::fs::read_to_string(file).unwrap();
        for marker in ["extern \"C\" fn ", "fwd!(", "stub!("] {
            for piece in text.split(marker).skip(1) {
                let end =
                    piece.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(0);
                defined.insert(piece[..end].to_string());
            }
        }
    }

    let mut out = String::new();
    for line in std::fs::read_to_string("stub-names.txt").unwrap().lines() {
        let mut words = line.split_whitespace();
        let (Some(lib), Some(name)) = (words.next(), words.next()) else {
            continue;
        };
        if lib == "#" || defined.contains(name) {
            continue;
        }
        // The "not supported" status of each library.
        let code = match lib {
            "cuda" => 801,
            "cublas" | "cublasLt" => 15,
            "curand" => 999,
            "cudnn" => 3000,
            "nccl" => 5,
            _ => 11,
        };
        writeln!(
            out,
            "#[no_mangle] pub unsafe extern \"C\" fn {name}() -> i32 {{ crate::not_emulated(\"{name}\"); {code} }}"
        )
        .unwrap();
    }
    let dir = std::env::var("OUT_DIR").unwrap();
    std::fs::write(Path::new(&dir).join("placeholders.rs"), out).unwrap();
}

fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, files);
        } else {
            files.push(path);
        }
    }
}
