# shellcheck shell=bash
# Source this file: `source tests/cuda-emulator/toolkit.sh [DIR]`
# DIR defaults to $HOME/.cache/cuda-toolkit; it has to contain a slash, because a sourced file
# may see its caller's own arguments.
#
# It makes a CUDA 13.0 compiler and the libraries to link against, on a machine that
# has neither a GPU nor NVIDIA's installer, so that crates with candle's `cuda`
# feature compile and link:
#   * nvcc, cicc, libdevice, headers and cudart come from PyPI wheels of fixed versions;
#   * libcuda, libcublas, libcublasLt, libcurand, libnvrtc, libcudnn and libnccl are empty stand-ins
#     that carry the right SONAMEs and symbol names. They satisfy the linker and, if
#     called, end the program with a message. To *run*, put either NVIDIA's libraries
#     or the emulator's (README.md) in front with LD_LIBRARY_PATH.
#
# A second run with the same versions only sets the environment (about 0.1 s).
# Exports: CUDA_HOME CUDA_PATH NVCC PATH CUDA_COMPUTE_CAP LIBRARY_PATH CUDA_STUBS.
# Returns non-zero, with a message on stderr, when something could not be had.
# Needs: bash, python3 with pip, a C compiler (cc), PyPI reachable on the first run.

_cuda_toolkit_self="${BASH_SOURCE[0]:-$0}"

_cuda_toolkit_install() (
    set -eu
    dir="$1"
    here="$2"
    names="$here/stub-names.txt"
    packages=(
        nvidia-cuda-nvcc==13.0.88
        nvidia-nvvm==13.0.88
        nvidia-cuda-crt==13.0.88
        nvidia-cuda-runtime==13.0.96
        nvidia-cuda-cccl==13.0.85
    )
    stamp="$dir/installed"
    want="layout 3; ${packages[*]}; stubs $(cksum <"$names")"

    mkdir -p "$dir"
    exec 9>"$dir/.lock"
    if command -v flock >/dev/null 2>&1; then flock 9; fi

    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && [ -x "$dir/site/nvidia/cu13/bin/nvcc" ]; then
        exit 0
    fi
    rm -rf "$dir/site" "$dir/stubs" "$stamp"

    echo "cuda-toolkit: installing ${packages[*]} into $dir" >&2
    python3 -m pip install --quiet --disable-pip-version-check --no-deps --no-compile \
        --root-user-action=ignore --target "$dir/site" "${packages[@]}" >&2

    home="$dir/site/nvidia/cu13"
    [ -e "$home/bin/nvcc" ] || { echo "cuda-toolkit: no nvcc under $home" >&2; exit 1; }
    chmod +x "$home"/bin/* "$home"/nvvm/bin/* 2>/dev/null || true
    # The wheels ship lib/ only; nvcc, cudaforge and cudarc look in lib64/ too.
    [ -e "$home/lib64" ] || ln -s lib "$home/lib64"
    # The wheel has libcudart.so.13 without the bare name that the linker asks for.
    [ -e "$home/lib/libcudart.so" ] || ln -s libcudart.so.13 "$home/lib/libcudart.so"

    mkdir -p "$dir/stubs"
    stub() { # library  soname
        src="$dir/stubs/$1.c"
        {
            echo '#include <stdio.h>'
            echo '#include <stdlib.h>'
            echo 'static int missing(const char *f) {'
            echo "    fprintf(stderr, \"%s: this lib$1 is a link stub without code (see tests/cuda-emulator/toolkit.sh)\\n\", f);"
            echo '    abort();'
            echo '}'
            awk -v lib="$1" '$1 == lib { printf "int %s(void) { return missing(\"%s\"); }\n", $2, $2 }' "$names"
        } >"$src"
        cc -w -O1 -fPIC -shared -Wl,-soname,"$2" -o "$dir/stubs/$2" "$src"
        ln -sf "$2" "$dir/stubs/lib$1.so"
    }
    stub cuda libcuda.so.1
    stub cublas libcublas.so.13
    stub cublasLt libcublasLt.so.13
    stub curand libcurand.so.10
    stub nvrtc libnvrtc.so.13
    stub cudnn libcudnn.so.9
    stub nccl libnccl.so.2
    # cudarc's build script offers the linker $CUDA_HOME/lib64/stubs, so LIBRARY_PATH is
    # only a second way in, for linkers that are called with a cleaned environment.
    [ -e "$home/lib/stubs" ] || ln -s "$dir/stubs" "$home/lib/stubs"

    "$home/bin/nvcc" --version >/dev/null
    printf '%s\n' "$want" >"$stamp"
    echo "cuda-toolkit: ready" >&2
)

_cuda_toolkit_prepend() { # variable  folder : puts folder in front unless it is there
    local now="${!1:-}"
    case ":$now:" in
        *":$2:"*) ;;
        *) export "$1=$2${now:+:$now}" ;;
    esac
}

_cuda_toolkit_main() {
    local dir="${1:-$HOME/.cache/cuda-toolkit}" here
    here="$(cd "$(dirname "$_cuda_toolkit_self")" && pwd)" || return 1
    mkdir -p "$dir" && dir="$(cd "$dir" && pwd)" || return 1
    _cuda_toolkit_install "$dir" "$here" || {
        echo "cuda-toolkit: could not set up $dir" >&2
        return 1
    }
    export CUDA_HOME="$dir/site/nvidia/cu13"
    export CUDA_PATH="$CUDA_HOME"
    export CUDA_STUBS="$dir/stubs"
    export NVCC="$CUDA_HOME/bin/nvcc"
    export CUDA_COMPUTE_CAP=80
    _cuda_toolkit_prepend PATH "$CUDA_HOME/bin"
    _cuda_toolkit_prepend LIBRARY_PATH "$CUDA_HOME/lib"
    _cuda_toolkit_prepend LIBRARY_PATH "$CUDA_STUBS"
}

# `source file` without arguments sees the caller's own "$@"; only take a folder that
# was really meant: an absolute path or one with a slash in it.
case "${1:-}" in
    */*) _cuda_toolkit_main "$1" ;;
    *) _cuda_toolkit_main ;;
esac
