//! Compiles the hand-written kernels to PTX with nvcc (see ../toolkit.sh).
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=NVCC");
    let nvcc = std::env::var("NVCC").unwrap_or_else(|_| "nvcc".into());
    for name in ["candle", "contract"] {
        let source = format!("src/kernels/{name}.cu");
        println!("cargo:rerun-if-changed={source}");
        let out = PathBuf::from(std::env::var("OUT_DIR").unwrap()).join(format!("{name}.ptx"));
        let done = Command::new(&nvcc)
            .args(["-ptx", "-arch=compute_80", "-std=c++17", "-O3", "-o"])
            .arg(&out)
            .arg(&source)
            .status()
            .unwrap_or_else(|e| panic!("{nvcc}: {e}; source ../toolkit.sh first"));
        assert!(done.success(), "nvcc failed");
    }
}
