#!/bin/bash
# Verifies and measures the device API on this machine's GPUs, from binaries that were built elsewhere:
#
#   scripts/gpu.sh build            where Rust is: builds and strips them into target/gpu/
#   scripts/gpu.sh [run] [FOLDER]   where GPUs are: runs everything from FOLDER (target/gpu/)
#
# One GPU: two PEs share it. With NVSHMEM and MPI installed, the same kernels run on NVSHMEM for a comparison.
# NVLink multicast is never used.
set -uo pipefail
root=$(dirname "$(realpath "$0")")/..
bin=$root/target/gpu

build() {
  cargo build --release -p symrail-perftest --bin symrail -p symrail-kernels --example gpu_suite || exit 1
  mkdir -p "$bin"
  local built=${CARGO_TARGET_DIR:-$root/target}/release
  for file in "$built/symrail" "$built/examples/gpu_suite"; do
    strip -o "$bin/$(basename "$file")" "$file" || exit 1
  done
}

export NCCL_NVLS_ENABLE=0 NVSHMEM_DISABLE_NVLS=1 CUDA_MODULE_LOADING=EAGER
failed=0

# Runs a case under a time limit, and remembers if it fails.
case_of() {
  local title=$1
  shift
  printf '\n== %s\n' "$title"
  timeout --kill-after=5 120 env "$@" || { echo "FAILED ($?): $title"; failed=1; }
}

run() {
  command -v nvidia-smi >/dev/null || { echo "SKIPPED: no NVIDIA GPU on this machine"; exit 0; }
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
  local nvrtc pes=2
  nvrtc=$(find / -name 'libnvrtc.so.1*' -not -path '/proc/*' 2>/dev/null | head -1)
  local suite="$bin/gpu_suite --nvrtc $(dirname "$nvrtc") ${SUITE-}"
  local common="SYMRAIL_HEAP_SIZE=512M SYMRAIL_PROXY_POLL=spin SYMRAIL_TIMEOUT_S=30"
  # shellcheck disable=SC2086
  {
    case_of "device heap, NVLink" $common "$bin/symrail" run -n $pes -- $suite --heap device
    case_of "pinned heap, mapped" $common SYMRAIL_PROXY_CHANNELS=2 "$bin/symrail" run -n $pes -- $suite --heap pinned
    for provider in ${PROVIDERS:-shm 'tcp;ofi_rxm'}; do
      case_of "pinned heap, proxy over $provider" $common SYMRAIL_DISABLE_P2P=1 SYMRAIL_PROXY_CHANNELS=2 \
        SYMRAIL_LIBFABRIC_PROVIDER="$provider" "$bin/symrail" run -n $pes -- $suite --heap pinned
    done
    # What no rail reaches is staged; each PE plays a host of its own, and TCP has four rails.
    for provider in ${PROVIDERS:-shm 'tcp;ofi_rxm'}; do
      local rails=
      [ "$provider" = shm ] || rails="--rails 4"
      case_of "device heap, staged over $provider" $common SYMRAIL_HEAP_KIND=device SYMRAIL_PROXY_CHANNELS=2 \
        SYMRAIL_LIBFABRIC_PROVIDER="$provider" "$bin/symrail" run -n $pes --hosts $pes $rails -- $suite --heap staged
    done
  }
  nvshmem
  exit $failed
}

# The same kernels on NVSHMEM.
nvshmem() {
  local home
  home=$(python3 -c 'import os, nvidia.nvshmem as n; print(list(n.__path__)[0])' 2>/dev/null) || { echo "SKIPPED: no NVSHMEM"; return; }
  command -v nvcc mpirun >/dev/null || { echo "SKIPPED: no nvcc or mpirun"; return; }
  [ "$(nvidia-smi -L | wc -l)" -ge 2 ] || { echo "SKIPPED: NVSHMEM needs a GPU for each PE"; return; }
  local work host
  work=$(mktemp -d)
  host=$(find "$home/lib" -name 'libnvshmem_host.so.*' | head -1)
  printf '\n== NVSHMEM, NVLink\n'
  nvcc -O3 -std=c++17 -DBENCH_ON_NVSHMEM -rdc=true -arch=sm_90 -I"$home/include" -o "$work/bench" "$root/kernels/cu/bench.cu" \
    "$root/kernels/cu/nvshmem_host.cu" -L"$home/lib" -lnvshmem_device -Xlinker "$host" -lcuda -Xlinker -rpath -Xlinker "$home/lib" &&
    timeout --kill-after=5 120 mpirun --allow-run-as-root --oversubscribe -n 2 -x NVSHMEM_DISABLE_NVLS=1 \
      -x NVSHMEM_BOOTSTRAP=MPI -x NVSHMEM_REMOTE_TRANSPORT=none "$work/bench" || failed=1
  rm -rf "$work"
}

case ${1-run} in
  build) build ;;
  run) bin=${2-$bin} && run ;;
  *) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
