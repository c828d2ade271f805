#!/usr/bin/env bash
# Builds the emulator for this machine's CPU and lays out a folder for LD_LIBRARY_PATH.
#   tests/cuda-emulator/build.sh [DIR]      (default: $HOME/.cache/cuda-emulator)
# Prints the folder to put in front, DIR/lib. Does nothing when the sources, the compiler, its flags
# and the CPU are those of the last build. CARGO_TARGET_DIR is honoured; otherwise DIR/target.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
out="${1:-$HOME/.cache/cuda-emulator}"
mkdir -p "$out/lib"
out="$(cd "$out" && pwd)"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$out/target}"
# Fused multiply-add and wide vectors matter a lot to the interpreter, so build for the host's CPU.
export RUSTFLAGS="${EMULATOR_RUSTFLAGS:--C target-cpu=native}"

if command -v flock >/dev/null 2>&1; then
    exec 9>"$out/.lock"
    flock 9
fi

# What the library depends on, as one line.
state() {
    local cpu
    cpu="$(grep -m1 '^flags' /proc/cpuinfo 2>/dev/null || uname -m)"
    {
        find "$here/src" "$here/Cargo.toml" "$here/Cargo.lock" "$here/build.rs" "$here/build.sh" \
            "$here/stub-names.txt" -type f -print0 | LC_ALL=C sort -z | xargs -0 cat
        printf '%s\n' "$RUSTFLAGS" "$cpu"
        cd "$here" && rustc --version
    } | cksum
}

cudart() { # candle's statically compiled quantised kernels want the CUDA runtime to be loadable
    local home
    for home in "${CUDA_HOME:-}" "$HOME/.cache/cuda-toolkit/site/nvidia/cu13"; do
        if [ -n "$home" ] && [ -e "$home/lib/libcudart.so.13" ]; then
            ln -sfn "$home/lib/libcudart.so.13" "$out/lib/libcudart.so.13"
            return
        fi
    done
    echo "note: no libcudart.so.13 found; source tests/cuda-emulator/toolkit.sh first" >&2
}

want="$(state)"
if [ "$(cat "$out/built" 2>/dev/null)" != "$want" ] || [ ! -e "$out/lib/libcudaemu.so" ]; then
    rm -f "$out/built"
    (cd "$here" && cargo build --release --locked)
    # Copy then rename, so that a program which has the old file mapped keeps it.
    cp "$CARGO_TARGET_DIR/release/libcudaemu.so" "$out/lib/.libcudaemu.new"
    mv -f "$out/lib/.libcudaemu.new" "$out/lib/libcudaemu.so"
    for name in libcuda.so.1 libcublas.so.13 libcublasLt.so.13 libcudnn.so.9 libcurand.so.10 libnvrtc.so.13 \
        libnccl.so.2; do
        ln -sfn libcudaemu.so "$out/lib/$name"
    done
    printf '%s\n' "$want" >"$out/built"
fi
[ -e "$out/lib/libcudart.so.13" ] || cudart
echo "$out/lib"
