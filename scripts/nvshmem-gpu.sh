#!/bin/bash
# Verifies NVSHMEM over Symrail's rails on this machine's GPUs, with the remote transport built elsewhere:
#
#   scripts/nvshmem-gpu.sh build             where Rust is: builds and strips it into target/gpu/nvshmem
#   scripts/nvshmem-gpu.sh [run [FOLDER]]    where two GPUs, NVSHMEM, nvcc and mpirun are: runs everything
#   scripts/nvshmem-gpu.sh load [FOLDER]     there: jobs with all kinds of heaps at the same time
#
# SECONDS_EACH: the duration of each combination of heap and fabric (default 5). HEAPS, FABRICS: some of them only.
# VERIFY_ONLY: no PE is killed, and no job interrupted. NVSHMEM_HOME: another NVSHMEM than the one that Python finds.
# NVLink is not used between PEs (NVSHMEM_DISABLE_P2P), and NVLink multicast never.
set -uo pipefail
root=$(dirname "$(realpath "$0")")/..
bin=$root/target/gpu/nvshmem

build() {
  local target=${CARGO_TARGET_DIR:-$root/target}
  cargo build --release --manifest-path "$root/Cargo.toml" -p symrail-nvshmem || exit 1
  mkdir -p "$bin"
  strip -o "$bin/libsymrail_nvshmem.so" "$target/release/libsymrail_nvshmem.so"
}

export NCCL_NVLS_ENABLE=0 NVSHMEM_DISABLE_NVLS=1 CUDA_MODULE_LOADING=EAGER
failed=0 work='' preload='' home='' host='' pids=()

# Installs the transport and compiles the program, or ends if that is impossible.
prepare() {
  command -v nvidia-smi >/dev/null || { echo "SKIPPED: no NVIDIA GPU on this machine"; exit 0; }
  [ "$(nvidia-smi -L | wc -l)" -ge 2 ] || { echo "SKIPPED: NVSHMEM needs a GPU for each PE"; exit 0; }
  command -v nvcc mpirun >/dev/null || { echo "SKIPPED: no nvcc or mpirun"; exit 0; }
  home=${NVSHMEM_HOME:-$(python3 -c 'import nvidia.nvshmem as n; print(list(n.__path__)[0])' 2>/dev/null)} || { echo "SKIPPED: no NVSHMEM"; exit 0; }
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  host=$(find "$home/lib" -name 'libnvshmem_host.so.*' | head -1)
  SYMRAIL_INSTALL_FROM=$bin "$root/scripts/nvshmem-install.sh" --prefix "$work/prefix" --nvshmem "$home/lib" > "$work/settings" || exit 1
  cat "$work/settings"
  preload=$(sed -n 's/^export LD_PRELOAD=//p' "$work/settings")
  nvcc -O2 -std=c++17 -rdc=true -arch=sm_90 -I"$home/include" -o "$work/verify" "$root/nvshmem/gpu/verify.cu" \
    -L"$home/lib" -lnvshmem_device -Xlinker "$host" -lcuda -Xlinker -rpath -Xlinker "$home/lib" || exit 1
  export LD_LIBRARY_PATH=$home/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

run() {
  prepare
  local heap fabric
  for heap in ${HEAPS:-sysmem vmm cudamalloc}; do
    for fabric in ${FABRICS:-tcp shm}; do
      job "$heap" "$fabric" "$work/verify" "${SECONDS_EACH:-5}"
    done
  done
  [ -n "${VERIFY_ONLY-}" ] || { for fabric in ${FABRICS:-tcp shm}; do dead_pe vmm "$fabric"; done; interrupt; }
  exit $failed
}

# Jobs with different heaps share the GPUs, each over one fabric after the other. (Two jobs with
# NVSHMEM_HEAP_KIND=SYSMEM that start at the same time keep each other from making their memory, in NVSHMEM itself.)
load() {
  prepare
  local heap fabric
  for heap in ${HEAPS:-sysmem vmm cudamalloc}; do
    (for fabric in ${FABRICS:-tcp shm}; do job "$heap" "$fabric" "$work/verify" "${SECONDS_EACH:-5}"; done; exit $failed) > "$work/said-$heap" 2>&1 &
    pids+=($!)
  done
  local pid
  for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
  cat "$work"/said-*
  exit $failed
}

# A PE is killed, and the shell that started it lingers, so that mpirun does not end the job at once: the other PE must
# name it. (That PE then calls exit, which waits in CUDA for the kernel that waits for PE 1.)
dead_pe() { # heap fabric
  printf '\n== a PE that is killed: heap %s, %s\n' "$1" "$2"
  # shellcheck disable=SC2016 # for the shell that starts a PE
  local linger='"$@"; code=$?; echo "a PE ended with $code"; [ $code != 137 ] || sleep 7'
  if SYMRAIL_TIMEOUT_S=3 start "$1" "$2" bash -c "$linger" -- "$work/verify" 60 die > "$work/said" 2>&1; then
    failed=1
    echo "FAILED: the job succeeded"
  fi
  grep 'symrail:\|^a PE ended' "$work/said"
  grep -q '^symrail: NVSHMEM transport.* PE 1 ' "$work/said" || { failed=1; echo "FAILED: PE 0 has not said that PE 1 is dead"; }
  nobody_left
}

interrupt() {
  echo "== Ctrl-C"
  local began=$SECONDS
  STOP='timeout -s INT 12' start "${HEAP_STOPPED:-sysmem}" tcp "$work/verify" 60 > "$work/said" 2>&1
  local code=$?
  grep -m1 'are up' "$work/said"
  echo "ended with $code after $((SECONDS - began)) s"
  nobody_left
}

nobody_left() {
  sleep 1
  if pgrep -f "^$work/verify" > /dev/null; then failed=1; echo "FAILED: PEs are still there"; fi
}

# Starts two PEs with a heap of a kind over a fabric. Each needs more than the one core that it would be bound to.
start() { # heap fabric program…
  local heap=$1 fabric=$2 settings=()
  shift 2
  case $heap in
    sysmem) settings+=(-x NVSHMEM_HEAP_KIND=SYSMEM) ;;
    cudamalloc) settings+=(-x NVSHMEM_DISABLE_CUDA_VMM=1) ;;
  esac
  case $fabric in
    tcp) settings+=(-x "NVSHMEM_LIBFABRIC_PROVIDER=tcp;ofi_rxm" -x SYMRAIL_NIC_LIST=127.0.0.2,127.0.0.3,127.0.0.4,127.0.0.5) ;;
    *) settings+=(-x "NVSHMEM_LIBFABRIC_PROVIDER=$fabric") ;;
  esac
  timeout --kill-after=5 "$((${SECONDS_EACH:-5} + ${GRACE:-90}))" ${STOP-} mpirun --allow-run-as-root --oversubscribe --bind-to none -n 2 \
    -x "LD_PRELOAD=$preload" -x NVSHMEM_REMOTE_TRANSPORT=libfabric -x NVSHMEM_DISABLE_P2P=1 -x NVSHMEM_BOOTSTRAP=MPI \
    -x NVSHMEM_SYMMETRIC_SIZE="${SYMMETRIC_SIZE:-256M}" -x NVSHMEM_DISABLE_NVLS=1 -x LD_LIBRARY_PATH -x SYMRAIL_LOG="${SYMRAIL_LOG:-warn}" -x CUDA_MODULE_LOADING=EAGER \
    -x SYMRAIL_TIMEOUT_S="${SYMRAIL_TIMEOUT_S:-20}" "${settings[@]}" "$@"
}

job() { # heap fabric program…
  printf '\n== heap %s, %s\n' "$1" "$2"
  start "$@" || { echo "FAILED ($?): heap $1, $2"; failed=1; }
}

case ${1-run} in
  build) build ;;
  run) bin=${2-$bin} && run ;;
  load) bin=${2-$bin} && load ;;
  *) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
