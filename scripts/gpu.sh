#!/bin/bash
# Verifies and measures the device API on this machine's GPUs, from binaries that were built elsewhere:
#
#   scripts/gpu.sh build            where Rust is: builds and strips them into target/gpu/
#   scripts/gpu.sh [run [FOLDER]]   where GPUs are: runs everything from FOLDER (target/gpu/)
#
# PARTS chooses among: guide (the program of docs/gpu.md), suite (verify and measure), engine (the same with copies by
# copy engines), ep (expert parallelism), collectives (on streams), nccl (collectives beside NCCL's), pencils
# (transposes and halos), transposes (the same beside NCCL's and NVSHMEM's), products (overlapped
# products), beside (copies and overlapped products beside NCCL's and PyTorch's; figures go to the folder FIGURES),
# python (the Python package, with PyTorch and CuPy), perf, proxies (one, two and four proxy threads over four rails),
# sanitize, nvshmem (the same kernels on NVSHMEM, for a comparison), again (ROUNDS=100 of all checks). A PE for each GPU,
# or PES of them; with one GPU, two PEs share it. NVLink multicast is never used.
set -uo pipefail
root=$(dirname "$(realpath "$0")")/..
bin=$root/target/gpu

build() {
  local programs="symrail pe" each
  local examples="gpu_suite device_ring gpu_experts gpu_high_throughput" libraries="libsymrail.so libsymrail_nccl.so libsymrail_decomp_c.so libsymrail_agent_c.so"
  local built=${CARGO_TARGET_DIR:-$root/target}/release
  # One call, so that crates are built with one set of features.
  # shellcheck disable=SC2046
  cargo build --release --lib $(printf -- '--bin %s ' $programs) $(printf -- '--example %s ' $examples) \
    $(printf -- '-p symrail%s ' "" -perftest -kernels -ep -tests -c -python -nccl -decomp-c -agent-c) || exit 1
  mkdir -p "$bin"
  for each in $programs $libraries $(printf 'examples/%s ' $examples); do
    strip -o "$bin/$(basename "$each")" "$built/$each" || exit 1
  done
  cc -O2 -o "$bin/beside_nccl" "$root/collectives/nccl/bench/beside_nccl.c" -ldl || exit 1
  for each in one_thread one_sided; do
    cc -O2 -o "$bin/$each" "$root/collectives/nccl/tests/gpu/$each.c" -ldl || exit 1
  done
  cc -O2 -I "$root/decomp/capi/include" -o "$bin/gpu_pencils" "$root/decomp/capi/tests/programs/gpu_pencils.c" \
    "$bin/libsymrail_decomp_c.so" -Wl,-rpath,"\$ORIGIN" -ldl || exit 1
  ln -sf libsymrail_decomp_c.so "$bin/libcudecomp.so.0"
  rm -rf "$bin/python"
  mkdir -p "$bin/python"
  cp -r "$root/python/symrail" "$bin/python/" || exit 1
  strip -o "$bin/python/symrail/_symrail.abi3.so" "$built/lib_symrail.so" || exit 1
}

# The most queues, so that no copy waits behind a kernel of another stream that itself waits for the copy.
export NCCL_NVLS_ENABLE=0 NVSHMEM_DISABLE_NVLS=1 CUDA_MODULE_LOADING=EAGER CUDA_DEVICE_MAX_CONNECTIONS=32
failed=0

# Runs a case under a time limit, and records a failure.
case_of() {
  local title=$1
  shift
  printf '\n== %s\n' "$title"
  timeout --kill-after=5 ${LIMIT:-120} env "$@" || { echo "FAILED ($?): $title"; failed=1; }
}

run() {
  command -v nvidia-smi >/dev/null || { echo "SKIPPED: no NVIDIA GPU on this machine"; exit 0; }
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
  local nvrtc
  nvrtc=$(find / -name 'libnvrtc.so.1*' -not -path '/proc/*' 2>/dev/null | head -1)
  LD_LIBRARY_PATH=$(dirname "$nvrtc")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export LD_LIBRARY_PATH
  local part
  for part in ${PARTS:-guide suite engine ep collectives pencils products python perf sanitize nvshmem}; do $part; done
  exit $failed
}

gpus=$(nvidia-smi -L 2>/dev/null | wc -l)
pes=${PES:-$((gpus > 2 ? gpus : 2))}
common="SYMRAIL_PROXY_POLL=spin SYMRAIL_TIMEOUT_S=30 SYMRAIL_PROXY_CHANNELS=2"
mapped="$common SYMRAIL_HEAP_KIND=device SYMRAIL_HEAP_SIZE=2560M SYMRAIL_LIBFABRIC_PROVIDER=shm"
pinned="$common SYMRAIL_HEAP_KIND=pinned SYMRAIL_HEAP_SIZE=512M"
staged="$common SYMRAIL_HEAP_KIND=device SYMRAIL_HEAP_SIZE=512M"
tcp='tcp;ofi_rxm'

# The program of docs/gpu.md: by NVRTC from Rust, by nvcc from C++; mapped, and through proxies.
guide() {
  local work ring hosts
  work=$(mktemp -d)
  for hosts in 1 2; do
    case_of "device_ring from Rust, $hosts hosts" $staged "$bin/symrail" run -n $pes --hosts $hosts -- "$bin/device_ring" gpu
  done
  command -v nvcc >/dev/null || { echo "SKIPPED: no nvcc"; return; }
  nvcc -O2 -std=c++17 -arch=native -I"$root/kernels/include" -I"$root/shmem/include" "$root/shmem/examples/device_ring.cu" \
    -o "$work/device_ring" -L"$bin" -lsymrail -Xlinker -rpath="$bin" || { failed=1; return; }
  for hosts in 1 2; do
    case_of "device_ring from C++, $hosts hosts" $staged "$bin/symrail" run -n $pes --hosts $hosts -- "$work/device_ring"
  done
  case_of "device_ring from C++, pinned heap" $pinned "$bin/symrail" run -n $pes -- "$work/device_ring"
  rm -rf "$work"
}

# Verifies, then measures, on every kind of heap and path.
suite() {
  local run="$bin/symrail run -n $pes" suite="$bin/gpu_suite ${SUITE-}" provider heap
  case_of "device heap, mapped" $mapped $run -- $suite
  case_of "pinned heap, mapped" $pinned $run -- $suite
  for provider in ${PROVIDERS:-shm "$tcp"}; do
    case_of "pinned heap, proxy over $provider" $pinned SYMRAIL_DISABLE_P2P=1 SYMRAIL_LIBFABRIC_PROVIDER="$provider" $run -- $suite
  done
  # Transfers that no rail can reach are staged; each PE simulates a host, and TCP has four rails.
  for provider in ${PROVIDERS:-shm "$tcp"}; do
    local rails=
    [ "$provider" = shm ] || rails="--rails 4"
    case_of "device heap, staged over $provider" $staged SYMRAIL_LIBFABRIC_PROVIDER="$provider" $run --hosts $pes $rails -- $suite
  done
  # Two PEs on each of two hosts, so that barriers go host by host; PEs share GPUs if these are fewer.
  for heap in pinned staged; do
    LIMIT=300 case_of "$heap heap, 4 PEs on 2 hosts over $tcp" ${!heap} SYMRAIL_TIMEOUT_S=100 SYMRAIL_LIBFABRIC_PROVIDER="$tcp" \
      "$bin/symrail" run -n 4 --hosts 2 -- "$bin/gpu_suite" --no-bench
  done
}

# A mapped heap, copies by copy engines: all sizes verified; large ones verified and measured.
engine() {
  local run="$bin/symrail run -n $pes" suite="$bin/gpu_suite ${SUITE-}"
  case_of "device heap, mapped, all copies by engines" $mapped SYMRAIL_DEVICE_COPY=engine SYMRAIL_DEVICE_COPY_THRESHOLD=1 $run -- $suite --no-bench
  case_of "device heap, mapped, large copies by engines" $mapped SYMRAIL_DEVICE_COPY=engine $run -- $suite
}

# Dispatch and combine both ways, compared with the host, and measured if peers are mapped.
ep() {
  local run="$bin/symrail run -n $pes" experts="$bin/gpu_experts" many="$bin/gpu_high_throughput" provider
  case_of "high throughput, device heap, mapped" $mapped $run -- $many measure
  case_of "high throughput, pinned heap, mapped" $pinned $run -- $many
  case_of "high throughput, pinned heap, proxy over shm" $pinned SYMRAIL_DISABLE_P2P=1 SYMRAIL_LIBFABRIC_PROVIDER=shm $run -- $many
  case_of "high throughput, device heap, 4 PEs on 2 hosts" $staged SYMRAIL_LIBFABRIC_PROVIDER=shm "$bin/symrail" run -n 4 --hosts 2 -- $many
  case_of "expert parallelism, device heap, mapped" $staged SYMRAIL_LIBFABRIC_PROVIDER=shm $run -- $experts 10000 measure
  case_of "expert parallelism, pinned heap, mapped" $pinned $run -- $experts
  case_of "a killed rank is named" $staged SYMRAIL_TIMEOUT_S=5 "$bin/pe" gpu_ep_lost
  case_of "a killed rank is masked by the GPU" $staged SYMRAIL_TIMEOUT_S=5 "$bin/pe" gpu_ep_lost mask
  for provider in shm "$tcp"; do
    case_of "expert parallelism, pinned heap, proxy over $provider" $pinned SYMRAIL_DISABLE_P2P=1 SYMRAIL_LIBFABRIC_PROVIDER="$provider" $run -- $experts 400
    case_of "expert parallelism, device heap, staged over $provider" $staged SYMRAIL_LIBFABRIC_PROVIDER="$provider" $run --hosts $pes -- $experts 400
  done
}

# Collectives and memory channels on streams and in graphs; times; torch.distributed's back end "nccl" on them.
collectives() {
  local what work
  for what in channels all late given-up bench; do
    LIMIT=300 case_of "collectives, $what" $staged SYMRAIL_HEAP_SIZE=600M SYMRAIL_TIMEOUT_S=5 SYMRAIL_LIBFABRIC_PROVIDER=shm \
      "$bin/symrail" run -n $pes -- "$bin/pe" gpu_collectives $what
  done
  # Over rails, where proxy threads copy while kernels wait.
  LIMIT=300 case_of "collectives, device heap, staged over $tcp" $staged SYMRAIL_HEAP_SIZE=1200M SYMRAIL_TIMEOUT_S=5 SYMRAIL_LIBFABRIC_PROVIDER="$tcp" \
    "$bin/symrail" run -n $pes --hosts $pes -- "$bin/pe" gpu_collectives all
  work=$(mktemp -d)
  LIMIT=300 case_of "collectives, tuned" $staged SYMRAIL_LIBFABRIC_PROVIDER=shm "$bin/symrail" tune -n $pes --device cuda --out "$work/table.json"
  rm -rf "$work"
  # In place of NCCL, with all ranks in one thread; and under torch.distributed.
  case_of "ranks of one thread" SYMRAIL_TIMEOUT_S=30 "$bin/one_thread" "$bin/libsymrail_nccl.so"
  case_of "ranks of one thread, pinned heap, proxy" SYMRAIL_TIMEOUT_S=30 SYMRAIL_HEAP_KIND=pinned SYMRAIL_DISABLE_P2P=1 \
    "$bin/one_thread" "$bin/libsymrail_nccl.so"
  for what in SYMRAIL_HEAP_KIND=device SYMRAIL_HEAP_KIND=pinned SYMRAIL_DISABLE_P2P=1; do
    case_of "windows, $what" SYMRAIL_TIMEOUT_S=60 "$what" "$bin/one_sided" "$bin/libsymrail_nccl.so" $pes
  done
  python3 -c 'import torch' 2>/dev/null || { echo "SKIPPED: no PyTorch"; return; }
  LIMIT=600 case_of "torch.distributed on libsymrail_nccl.so" \
    python3 "$root/collectives/nccl/tests/gpu/torch_distributed.py" "$bin/libsymrail_nccl.so"
}

# NCCL's interface beside NCCL in the same processes, verified: in graphs, launched one by one, and over sockets; then
# tuning. RESULTS names a folder for the figures, from which scripts/beside-nccl.py draws.
nccl() {
  local theirs work results
  theirs=${NCCL_LIBRARY:-$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0])' 2>/dev/null)/lib/libnccl.so.2}
  [ -e "$theirs" ] || { echo "SKIPPED: no NCCL"; return; }
  [ "$gpus" -ge "$pes" ] || { echo "SKIPPED: NCCL needs a GPU for each rank"; return; }
  work=$(mktemp -d)
  results=${RESULTS:-$work}
  local beside="$bin/beside_nccl $theirs $bin/libsymrail_nccl.so --ranks $pes"
  rm -f "$results/beside-nccl.json"
  LIMIT=170 case_of "collectives beside NCCL" $beside --json "$results/beside-nccl.json" --seconds ${SECONDS_BESIDE:-110}
  LIMIT=80 case_of "collectives beside NCCL, two hosts' sockets" $beside --json "$results/beside-nccl.json" --sockets --seconds 45
  # The blocks that push and their bytes at a time, which are the same for all sizes here.
  local pair blocks chunk kind
  kind=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1 | tr '[:upper:]' '[:lower:]' | tr -c 'a-z0-9\n' -)
  for pair in ${PUSHES-32:65536 48:65536 64:16384 64:32768 64:65536}; do
    blocks=${pair%:*} chunk=${pair#*:}
    sed "s/KIND/$kind/; s/PES/$pes/; s/BLOCKS/$blocks, \"chunk\": $chunk/" > "$work/pushed.json" <<'END'
{"device": "KIND", "pes": PES, "hosts": 1, "rows": [
  {"collective": "allreduce", "up_to": null, "algorithm": "pushed", "blocks": BLOCKS, "microseconds": null},
  {"collective": "allgather", "up_to": null, "algorithm": "pushed", "blocks": BLOCKS, "microseconds": null},
  {"collective": "reducescatter", "up_to": null, "algorithm": "pushed", "blocks": BLOCKS, "microseconds": null}]}
END
    LIMIT=40 case_of "collectives beside NCCL, $blocks blocks push $chunk" SYMRAIL_TUNING="$work/pushed.json" \
      $beside --only graph/plain --least 2097152 --most 268435456 --seconds 30
  done
  LIMIT=40 case_of "collectives beside NCCL, kernels begin early" SYMRAIL_EARLY_LAUNCH=1 \
    $beside --only graph/plain --most 4194304 --seconds 30
  LIMIT=60 case_of "collectives, tuned" $staged SYMRAIL_HEAP_SIZE=600M SYMRAIL_LIBFABRIC_PROVIDER=shm \
    "$bin/symrail" tune -n $pes --device cuda -b 1K -e 16M --out "$results/table.json"
  rm -rf "$work"
}

# Transposes and halos, every byte; times; by cuDecomp's names.
pencils() {
  local what test="$bin/pe gpu_decomp" run="$bin/symrail run -n $pes" heap="SYMRAIL_HEAP_SIZE=400M SYMRAIL_TIMEOUT_S=5"
  for what in small large graph two all misuse late bench crossover; do
    case_of "pencils, device heap, mapped, $what" $staged $heap SYMRAIL_LIBFABRIC_PROVIDER=shm $run -- $test $what
  done
  for what in small graph two all misuse late; do
    case_of "pencils, pinned heap, proxy, $what" $pinned $heap SYMRAIL_DISABLE_P2P=1 SYMRAIL_LIBFABRIC_PROVIDER=shm $run -- $test $what
    case_of "pencils, device heap, staged over $tcp, $what" $staged $heap SYMRAIL_LIBFABRIC_PROVIDER="$tcp" $run --hosts $pes -- $test $what
  done
  case_of "pencils by cuDecomp's names, device heap, mapped" $staged $heap SYMRAIL_LIBFABRIC_PROVIDER=shm $run -- "$bin/gpu_pencils"
  case_of "pencils by cuDecomp's names, pinned heap, proxy" $pinned $heap SYMRAIL_DISABLE_P2P=1 SYMRAIL_LIBFABRIC_PROVIDER=shm $run -- "$bin/gpu_pencils"
}

# The four transposes and halos beside those of torch.distributed (NCCL) and of NVSHMEM, alternately; the
# size from which copy engines are faster. EDGES chooses sizes.
transposes() {
  local home host work turn run="$bin/symrail run -n $pes" here=$root/decomp/bench edges=${EDGES-64 128 256 512 1024}
  local huge="$common SYMRAIL_TIMEOUT_S=10 SYMRAIL_HEAP_KIND=device SYMRAIL_LIBFABRIC_PROVIDER=shm SYMRAIL_HEAP_SIZE=${HEAP_GIB:-36}G"
  [ "$gpus" -ge "$pes" ] || { echo "SKIPPED: NCCL and NVSHMEM need a GPU for each PE"; return; }
  command -v nvcc mpirun >/dev/null || { echo "SKIPPED: no nvcc or mpirun"; return; }
  work=$(mktemp -d)
  nvcc -O3 -std=c++17 -arch=native -shared -Xcompiler -fPIC -o "$work/libmoves.so" "$here/moves.cu" &
  if home=$(python3 -c 'import os, nvidia.nvshmem as n; print(list(n.__path__)[0])' 2>/dev/null); then
    host=$(find "$home/lib" -name 'libnvshmem_host.so.*' | head -1)
    nvcc -O3 -std=c++17 -rdc=true -arch=sm_90 -I"$home/include" -o "$work/nvshmem" "$here/nvshmem.cu" -L"$home/lib" \
      -lnvshmem_device -Xlinker "$host" -lcuda -Xlinker -rpath -Xlinker "$home/lib" || failed=1
  fi
  wait
  # decomp/bench/crossover_picture.py draws from this file.
  case_of "transposes, crossover" $huge SYMRAIL_HEAP_SIZE=1G $run -- "$bin/pe" gpu_decomp crossover 800 \
    > "${FIGURES:-$work}/crossover"
  cat "${FIGURES:-$work}/crossover"
  for turn in ${TURNS:-1 2}; do
    {
      LIMIT=90 case_of "transposes, turn $turn" $huge $run -- "$bin/pe" gpu_decomp versus ${HEAP_MIB:-18000} $edges
      LIMIT=90 case_of "torch.distributed, turn $turn" TORCH_SYMM_MEM_DISABLE_MULTICAST=1 python3 -m torch.distributed.run \
        --nproc-per-node $pes "$here/torch_all_to_all.py" "$work/libmoves.so" $edges
      [ ! -x "$work/nvshmem" ] || LIMIT=90 case_of "NVSHMEM, turn $turn" mpirun --allow-run-as-root --oversubscribe -n "$pes" \
        -x NVSHMEM_DISABLE_NVLS=1 -x NVSHMEM_BOOTSTRAP=MPI -x NVSHMEM_REMOTE_TRANSPORT=none "$work/nvshmem" $edges
    } |& tee -a "$work/figures" | grep -v '^{"system"'
  done
  # cuFFT by PyTorch and by CuPy.
  for turn in torch cupy; do
    LIMIT=60 case_of "Poisson's equation, $turn" $huge SYMRAIL_HEAP_SIZE=8G PYTHONPATH="$bin/python" $run -- \
      python3 "$root/python/examples/poisson.py" --arrays $turn --edge 256 ${FIGURES:+--plot "$FIGURES/poisson-$turn.svg"}
  done
  grep -q FAILED "$work/figures" && failed=1
  python3 "$here/table.py" "$work/figures" || failed=1
  rm -rf "$work"
}

# Overlapped products, every number; their bits; graphs; times.
products() {
  local what test="$bin/pe gpu_overlap" run="$bin/symrail run -n $pes" heap="SYMRAIL_HEAP_SIZE=600M SYMRAIL_TIMEOUT_S=5"
  for what in right bits graph late; do
    case_of "products, device heap, mapped, $what" $staged $heap SYMRAIL_LIBFABRIC_PROVIDER=shm $run -- $test $what
    case_of "products, pinned heap, proxy, $what" $pinned $heap SYMRAIL_DISABLE_P2P=1 SYMRAIL_LIBFABRIC_PROVIDER=shm $run -- $test $what
    case_of "products, device heap, staged over $tcp, $what" $staged $heap SYMRAIL_LIBFABRIC_PROVIDER="$tcp" $run --hosts $pes -- $test $what
  done
  LIMIT=300 case_of "products, times" $staged SYMRAIL_HEAP_SIZE=3G SYMRAIL_LIBFABRIC_PROVIDER=shm $run -- $test bench 2048
}

# Copies on streams and overlapped products beside NCCL's and PyTorch's: a GPU for each PE.
beside() {
  local part of="env PYTHONPATH=$bin/python $bin/symrail run -n $pes" file=${FIGURES:+$FIGURES/products.json}
  local products="python3 $root/python/benchmarks/products.py"
  for part in copies gather reduce all-reduce; do
    case_of "beside others: $part" $mapped SYMRAIL_HEAP_SIZE=14G $of -- $products $part $file
  done
  case_of "norms beside NCCL" $mapped $of -- python3 "$root/python/benchmarks/norms.py"
  case_of "products through proxies" $pinned SYMRAIL_HEAP_SIZE=2G SYMRAIL_LIBFABRIC_PROVIDER=shm $of --hosts $pes -- $products rails $file
}

# The Python package: arrays, streams, graphs, other libraries' views, PyTorch's symmetric memory by both back ends.
python() {
  local missing
  missing=$(PYTHONPATH=$bin/python python3 -c 'import torch, cupy, ml_dtypes, symrail' 2>&1) || { echo "SKIPPED: ${missing##*$'\n'}"; return; }
  local work backend each="env PYTHONPATH=$bin/python $bin/symrail run -n $pes" tests=$root/python/tests
  work=$(mktemp -d)
  case_of "Python, device heap, mapped" $staged $each -- python3 "$tests/gpu/checks.py"
  case_of "Python, pinned heap, mapped" $pinned $each -- python3 "$tests/gpu/checks.py"
  case_of "Python, pinned heap, proxy" $pinned SYMRAIL_DISABLE_P2P=1 $each -- python3 "$tests/gpu/checks.py"
  case_of "Python, device heap, staged over shm" $staged SYMRAIL_LIBFABRIC_PROVIDER=shm $each --hosts $pes -- python3 "$tests/gpu/checks.py"
  case_of "Python, device heap, staged over $tcp" $staged $each --hosts $pes --rails 2 -- python3 "$tests/gpu/checks.py"
  if [ -e "$root/python/symrail/libsymrail_device.bc" ]; then
    local triton="SYMRAIL_INCLUDE=$root/kernels/include"
    local kernels
    for kernels in triton numba; do
      if [ "$kernels" = numba ] && ! python3 -c 'import numba_cuda' 2>/dev/null; then
        echo "SKIPPED: numba's kernels: there is no numba-cuda"
        continue
      fi
      local program="python3 $tests/gpu/${kernels}_kernels.py"
      case_of "Python, $kernels kernels, device heap, mapped" $staged $triton $each -- $program
      case_of "Python, $kernels kernels, device heap, proxy" $staged $triton SYMRAIL_DISABLE_P2P=1 $each -- $program
      case_of "Python, $kernels kernels, pinned heap, proxy" $pinned $triton SYMRAIL_DISABLE_P2P=1 SYMRAIL_HEAP_KIND=pinned $each -- $program
      case_of "Python, $kernels kernels, device heap, staged over two rails" $staged $triton $each --hosts $pes --rails 2 -- $program
    done
  else
    echo "SKIPPED: Triton's kernels: scripts/bitcode.sh did not make libsymrail_device.bc"
  fi
  case_of "Python, pencils, device heap, mapped" $staged $each -- python3 "$tests/gpu/pencils.py"
  local experts="python3 $tests/gpu/experts.py"
  case_of "Python, expert parallelism, device heap, mapped" $staged $each -- $experts
  case_of "Python, expert parallelism, pinned heap, proxy" $pinned SYMRAIL_DISABLE_P2P=1 $each -- $experts
  case_of "Python, experts with the memory of DeepEP's hints" $common PYTHONPATH=$bin/python $bin/symrail run -n $pes -- $experts hints
  LIMIT=400 case_of "Python, experts of groups" $staged PYTHONPATH=$bin/python $bin/symrail run -n 4 -- $experts groups
  local beside="python3 $root/python/benchmarks/experts.py"
  LIMIT=240 case_of "experts beside NCCL, device heap, mapped" $mapped $each -- $beside
  case_of "experts, pinned heap, proxy over shm" $pinned SYMRAIL_DISABLE_P2P=1 SYMRAIL_LIBFABRIC_PROVIDER=shm $each -- $beside proxied
  case_of "experts, pinned heap, proxies over 4 rails of shm" $pinned SYMRAIL_DISABLE_P2P=1 SYMRAIL_LIBFABRIC_PROVIDER=shm \
    SYMRAIL_NIC_LIST=shm0,shm1,shm2,shm3 SYMRAIL_PROXY_THREADS=4 SYMRAIL_PROXY_CHANNELS=4 SYMRAIL_RAIL_POLICY=stripe \
    $each -- $beside proxied
  local collectives="python3 $tests/gpu/collectives.py"
  case_of "Python, collectives, device heap, mapped" $staged $each -- $collectives
  case_of "Python, collectives, pinned heap, mapped" $pinned $each -- $collectives
  case_of "Python, collectives, pinned heap, proxy" $pinned SYMRAIL_DISABLE_P2P=1 $each -- $collectives
  case_of "Python, collectives, device heap, staged over $tcp" $staged $each --hosts $pes --rails 2 -- $collectives
  local of_devices="python3 $tests/gpu/device_collectives.py"
  case_of "Python, collectives by plans, device heap, mapped" $staged $each -- $of_devices
  case_of "Python, collectives by plans, device heap, staged over $tcp" $staged $each --hosts $pes --rails 2 -- $of_devices
  local products="python3 $tests/gpu/overlap.py"
  # PEs that share a GPU get time slices of milliseconds.
  local replays=200
  [ "$gpus" -lt "$pes" ] || replays=10000
  case_of "Python, products, device heap, mapped" $mapped REPLAYS=$replays $each -- $products measure
  case_of "Python, products, one PE" $mapped env PYTHONPATH="$bin/python" "$bin/symrail" run -n 1 -- $products
  case_of "Python, products, pinned heap" $pinned $each -- $products
  case_of "Python, products, device heap, staged" $staged SYMRAIL_LIBFABRIC_PROVIDER=shm $each --hosts $pes -- $products
  case_of "Python, a rank that does not receive" $staged SYMRAIL_TIMEOUT_S=3 $each -- $products late
  case_of "Python, a wait that ends late" $staged SYMRAIL_TIMEOUT_S=3 $each -- python3 "$tests/gpu/checks.py" late
  case_of "Python, a wait that ends late, proxy" $pinned SYMRAIL_DISABLE_P2P=1 SYMRAIL_TIMEOUT_S=3 \
    $each -- python3 "$tests/gpu/checks.py" late
  case_of "Python, arrays, device heap" HEAP=device $each -- python3 "$tests/programs/device_arrays.py"
  case_of "Python, arrays, pinned heap" $pinned $each -- python3 "$tests/programs/operations.py"
  for backend in SYMRAIL CUDA; do
    case_of "PyTorch's symmetric memory by $backend" $staged TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES=1 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 \
      $each -- python3 "$tests/gpu/symmetric_memory.py" $backend "$work"
  done
  case_of "PyTorch's symmetric memory, a signal that does not come" $staged TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES=1 \
    $each -- python3 "$tests/gpu/symmetric_memory.py" SYMRAIL "$work" late
  case_of "PyTorch's symmetric memory by both" python3 "$tests/gpu/symmetric_memory.py" compare "$work"
  sed -n '/^# streams.py/,/^```/{/^```/!p}' "$root/docs/python.md" > "$work/streams.py"
  case_of "the example of docs/python.md" PYTHONPATH="$bin/python" python3 -m torch.distributed.run --nproc-per-node $pes "$work/streams.py"
  case_of "figures of calls on streams" $mapped $each -- python3 "$root/python/benchmarks/gpu.py"
  rm -rf "$work"
}

# Every test of `symrail perf`, started by kernels.
perf() {
  local cuda="$bin/symrail perf --device cuda -n $pes"
  local each="put-lat get-lat put-pingpong amo-lat amo-rate signal-lat put-signal-pingpong fence-lat p-rate put-rate barrier-lat"
  case_of "perf, device heap, mapped" $mapped $cuda $each put-bw get-bw alltoall-bw -b 8 -e 16M --hosts 1
  case_of "perf, pinned heap, mapped" $pinned $cuda $each put-bw get-bw -b 8 -e 1M -i 200 --hosts 1
  case_of "perf, pinned heap, $tcp, 2 rails" $pinned SYMRAIL_LIBFABRIC_PROVIDER="$tcp" $cuda $each put-bw get-bw -b 8 -e 64K -i 50 -w 5 --hosts 2 --rails 2
  case_of "perf, device heap, staged, shm" $staged SYMRAIL_LIBFABRIC_PROVIDER=shm $cuda $each put-bw get-bw -b 8 -e 64K -i 50 -w 5 --hosts 2
  local experts="ep-dispatch ep-combine ep-ll" few="-i 50 -w 5"
  case_of "experts, device heap, mapped" $mapped $cuda $experts --hosts 1
  case_of "experts, pinned heap, shm" $pinned SYMRAIL_LIBFABRIC_PROVIDER=shm $cuda $experts $few --hosts 2
  case_of "experts, pinned heap, $tcp, 2 rails" $pinned SYMRAIL_LIBFABRIC_PROVIDER="$tcp" $cuda $experts $few --hosts 2 --rails 2
  case_of "experts, device heap, staged, shm" $staged SYMRAIL_LIBFABRIC_PROVIDER=shm $cuda $experts $few --hosts 2
  local products="ag-gemm gemm-rs gemm-ar"
  case_of "products, device heap, mapped" $mapped $cuda $products -b 1M -e 64M -i 50 -w 5 --hosts 1
  case_of "products, pinned heap, shm" $pinned SYMRAIL_LIBFABRIC_PROVIDER=shm $cuda $products $few --hosts 2
  case_of "products, device heap, staged, shm" $staged SYMRAIL_LIBFABRIC_PROVIDER=shm $cuda $products $few --hosts 2
  case_of "transposes and halos, device heap, mapped" $mapped $cuda transpose halo --hosts 1
  case_of "transposes and halos, pinned heap, $tcp, 2 rails" $pinned SYMRAIL_LIBFABRIC_PROVIDER="$tcp" $cuda transpose halo -i 50 -w 5 --hosts 2 --rails 2
}

# Puts over four rails by one, two and four proxy threads: rates of 8 B by 8,192 threads, bandwidth of 1 MiB by blocks.
proxies() {
  local heap threads each tests=("put-rate -b 8 -e 8" "put-bw -b 1M -e 1M")
  for heap in ${HEAPS:-pinned staged}; do
    for each in "${tests[@]}"; do
      for threads in 1 2 4; do
        case_of "$heap heap, $tcp, 4 rails, $threads proxy threads: $each" ${!heap} SYMRAIL_LIBFABRIC_PROVIDER="$tcp" \
          SYMRAIL_PROXY_CHANNELS=8 SYMRAIL_PROXY_THREADS=$threads \
          "$bin/symrail" perf --device cuda -n $pes $each --hosts 2 --rails 4
      done
    done
  done
}

# The checks under compute-sanitizer. Driver calls that may fail (attempts) are no errors of ours.
sanitize() {
  local tool of="$bin/gpu_suite --no-bench --no-spin"
  command -v compute-sanitizer >/dev/null || { echo "SKIPPED: no compute-sanitizer"; return; }
  for tool in memcheck racecheck; do
    local under="compute-sanitizer --tool $tool --error-exitcode 9 --report-api-errors no"
    case_of "$tool, device heap, mapped" $mapped SYMRAIL_HEAP_SIZE=512M SYMRAIL_TIMEOUT_S=100 "$bin/symrail" run -n $pes -- $under $of
    case_of "$tool, collectives, device heap, mapped" $staged SYMRAIL_TIMEOUT_S=100 SYMRAIL_LIBFABRIC_PROVIDER=shm \
      "$bin/symrail" run -n $pes -- $under "$bin/pe" gpu_collectives channels
    case_of "$tool, pinned heap, proxy" $pinned SYMRAIL_TIMEOUT_S=100 SYMRAIL_DISABLE_P2P=1 SYMRAIL_LIBFABRIC_PROVIDER=shm \
      "$bin/symrail" run -n $pes -- $under $of
  done
}

# The checks again and again: ROUNDS=100 PARTS=again scripts/gpu.sh
again() { SUITE="--no-bench --rounds ${ROUNDS:-100}" suite; }

# The same kernels on NVSHMEM.
nvshmem() {
  local home
  home=$(python3 -c 'import os, nvidia.nvshmem as n; print(list(n.__path__)[0])' 2>/dev/null) || { echo "SKIPPED: no NVSHMEM"; return; }
  command -v nvcc mpirun >/dev/null || { echo "SKIPPED: no nvcc or mpirun"; return; }
  [ "$gpus" -ge "$pes" ] || { echo "SKIPPED: NVSHMEM needs a GPU for each PE"; return; }
  local work host
  work=$(mktemp -d)
  host=$(find "$home/lib" -name 'libnvshmem_host.so.*' | head -1)
  printf '\n== NVSHMEM, NVLink\n'
  nvcc -O3 -std=c++17 -DBENCH_ON_NVSHMEM -rdc=true -arch=sm_90 -I"$home/include" -o "$work/bench" "$root/kernels/cu/bench.cu" \
    "$root/kernels/cu/nvshmem_host.cu" -L"$home/lib" -lnvshmem_device -Xlinker "$host" -lcuda -Xlinker -rpath -Xlinker "$home/lib" &&
    timeout --kill-after=5 120 mpirun --allow-run-as-root --oversubscribe -n "$pes" -x NVSHMEM_DISABLE_NVLS=1 \
      -x NVSHMEM_BOOTSTRAP=MPI -x NVSHMEM_REMOTE_TRANSPORT=none "$work/bench" || failed=1
  rm -rf "$work"
}

case ${1-run} in
  build) build ;;
  run) bin=${2-$bin} && run ;;
  *) sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
