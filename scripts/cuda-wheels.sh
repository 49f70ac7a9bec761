# Fetches NVIDIA's run-time compiler from the Python package index into a target folder, for the tests that compile
# kernels: no GPU, no driver and no toolkit are needed. To be sourced.
#
#    provide_cuda_wheels TARGET    afterwards NVRTC is in TARGET/cuda/nvidia/cu13/lib; no effect if it is there already

provide_cuda_wheels() {
  local target=$1
  compgen -G "$target/cuda/nvidia/cu13/lib/libnvrtc.so.*" >/dev/null && return 0
  mkdir -p "$target/cuda"
  python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --no-deps --only-binary=:all: \
    --target "$target/cuda" "nvidia-cuda-nvrtc==13.0.*"
}
