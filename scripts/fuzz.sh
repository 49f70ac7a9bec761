#!/bin/bash
# Fuzzes the inputs of Symrail from strangers, peers, devices and users: optimised code, with the address sanitizer.
#
#   scripts/fuzz.sh [SECONDS [TARGET…]]      SECONDS (default 60) for each target (default: all)
#
# Needs a nightly compiler (rustup) and cargo-fuzz, which it installs if it is missing. Findings stay in
# tests/fuzz/artifacts, and `cargo +nightly fuzz run --fuzz-dir tests/fuzz TARGET FILE` repeats one. Exit code 77: this
# machine has no nightly compiler.
set -euo pipefail
self=$(realpath "$0")
cd "$(dirname "$self")/.."
seconds=${1:-60}
shift || true
[[ $seconds =~ ^[0-9]+$ ]] || { sed -n '2,8s/^# \{0,1\}//p' "$self"; exit 2; }
if ! cargo +nightly --version > /dev/null 2>&1; then
  echo "SKIPPED: there is no nightly compiler (rustup toolchain install nightly)"
  exit 77
fi
command -v cargo-fuzz > /dev/null || cargo install --quiet cargo-fuzz
targets=("$@")
[ $# -gt 0 ] || mapfile -t targets < <(cargo +nightly fuzz list --fuzz-dir tests/fuzz)
for target in "${targets[@]}"; do
  echo "==== $target for $seconds s"
  cargo +nightly fuzz run --fuzz-dir tests/fuzz "$target" -- -max_total_time="$seconds" -max_len=4096 -verbosity=0 -print_final_stats=1
done
