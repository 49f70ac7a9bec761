#!/bin/bash
# Compiles the device API to LLVM bitcode, for Triton and other compilers of kernels: kernels/bitcode/device.cu to
# python/symrail/libsymrail_device.bc, and without the functions that Triton's kernels do not call (100 KB in place of 3 MB)
# to libsymrail_program.bc beside it. symrail_device.cuh there has all headers in one, for numba. It needs clang 14 or newer with the
# target NVPTX (scripts/setup.sh --tests installs it), and neither a GPU nor CUDA's headers. The files serve all GPUs
# from compute capability 7.0 on.
#
#   scripts/bitcode.sh [FILE]      does nothing if FILE is newer than the headers; CLANG names the compiler
#
# Exit code 77, and SKIPPED with the reason, without such a clang.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
out=$(realpath -m "${1:-python/symrail/libsymrail_device.bc}")

# The oldest that will do: every newer LLVM reads its bitcode.
clang=${CLANG:-}
for name in clang-{14..30} clang; do
  [ -n "$clang" ] || clang=$(command -v "$name" || true)
done
[ -n "$clang" ] || { echo "SKIPPED: there is no clang (Debian's and Ubuntu's packages: clang-19)"; exit 77; }

sources=(scripts/bitcode.sh kernels/bitcode/* kernels/include/symrail_*.* kernels/include/symrail/*)
if [ -e "$out" ]; then
  newer=$(find "${sources[@]}" -newer "$out")
  [ -n "$newer" ] || exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
folder=$(dirname "$out")
mkdir -p "$folder"

# place MADE FILE: replaces FILE at once, for programs that read it meanwhile.
place() { mv "$1" "$2.new" && mv "$2.new" "$2"; }

# compiled NAME OPTIONS…: $work/NAME.bc
compiled() {
  local name=$1; shift
  "$clang" -x cuda -std=c++17 --cuda-device-only --cuda-gpu-arch=sm_70 -nocudainc -nocudalib -fno-strict-aliasing -O2 \
    -fdiscard-value-names -S -emit-llvm "$@" kernels/bitcode/device.cu -o "$work/$name-whole.ll"
  # The target and the flags are those of the program that links it: other ones would forbid inlining, or linking.
  # No kernel writes the state: as a constant, loops load it once.
  sed -E -e '/^@symrail_state = /s/ externally_initialized global / externally_initialized constant /' -e '/^!llvm\.(module\.flags|ident) = /d' \
    -e '/^attributes #/s/ "[a-z-]+"="[^"]*"//g' "$work/$name-whole.ll" > "$work/$name.ll"
  "$clang" -x ir --target=nvptx64-nvidia-cuda -O0 -c -emit-llvm "$work/$name.ll" -o "$work/$name.bc"
}

# one FILE: the file with the headers that it includes, each once.
declare -A included
one() {
  local line other
  other=$(realpath "$1")
  [ -z "${included[$other]:-}" ] || return 0
  included[$other]=1
  while IFS= read -r line; do
    if [[ $line =~ ^#include\ \"(.*)\" ]]; then one "$(dirname "$other")/${BASH_REMATCH[1]}"; else printf '%s\n' "$line"; fi
  done < "$1"
}

compiled device & whole=$!
compiled program -DSYMRAIL_PROGRAM_ONLY
wait "$whole"
one kernels/include/symrail_device.cuh > "$work/symrail_device.cuh"
place "$work/program.bc" "$folder/libsymrail_program.bc"
place "$work/symrail_device.cuh" "$folder/symrail_device.cuh"
place "$work/device.bc" "$out"
