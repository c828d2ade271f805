#!/usr/bin/env bash
# Builds the emulator as build.sh does and runs the tests that need nothing but cargo.
#   tests/cuda-emulator/test.sh [DIR] [arguments of cargo test]
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
out="${1:-$HOME/.cache/cuda-emulator}"
shift || true
"$here/build.sh" "$out" >/dev/null
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$(cd "$out" && pwd)/target}"
export RUSTFLAGS="${EMULATOR_RUSTFLAGS:--C target-cpu=native}"
cd "$here" && cargo test --release --locked "$@"
