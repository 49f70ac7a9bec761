#!/bin/bash
# Compiles the device API to LLVM bitcode, for Triton and other compilers of kernels: kernels/bitcode/device.cu to
# python/symrail/libsymrail_device.bc. It needs clang 14 or newer with the target NVPTX (scripts/setup.sh --tests
# installs it), and neither a GPU nor CUDA's headers. One file serves all GPUs from compute capability 7.0 on.
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
"$clang" -x cuda -std=c++17 --cuda-device-only --cuda-gpu-arch=sm_70 -nocudainc -nocudalib -fno-strict-aliasing -O2 \
  -fdiscard-value-names -S -emit-llvm kernels/bitcode/device.cu -o "$work/whole.ll"
# The target and the flags are those of the program that links it: other ones would forbid inlining, or linking.
sed -E -e '/^!llvm\.(module\.flags|ident) = /d' -e '/^attributes #/s/ "[a-z-]+"="[^"]*"//g' "$work/whole.ll" > "$work/device.ll"
mkdir -p "$(dirname "$out")"
"$clang" -x ir --target=nvptx64-nvidia-cuda -O0 -c -emit-llvm "$work/device.ll" -o "$work/device.bc"
# Replaced at once, for programs that read it meanwhile.
mv "$work/device.bc" "$out.new" && mv "$out.new" "$out"
