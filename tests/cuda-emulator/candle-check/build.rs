//! Compiles the hand-written kernels to PTX with nvcc (see ../toolkit.sh).
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=src/kernels.cu");
    println!("cargo:rerun-if-env-changed=NVCC");
    let out = PathBuf::from(std::env::var("OUT_DIR").unwrap()).join("kernels.ptx");
    let nvcc = std::env::var("NVCC").unwrap_or_else(|_| "nvcc".into());
    let done = Command::new(&nvcc)
        .args(["-ptx", "-arch=compute_80", "-std=c++17", "-O3", "-o"])
        .arg(&out)
        .arg("src/kernels.cu")
        .status()
        .unwrap_or_else(|e| panic!("{nvcc}: {e}; source ../toolkit.sh first"));
    assert!(done.success(), "nvcc failed");
}
