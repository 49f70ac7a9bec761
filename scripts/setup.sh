#!/bin/bash
# Installs packages that a fresh Debian or Ubuntu machine with Rust lacks. A second run does nothing and is quick.
#
#   scripts/setup.sh            what building and running need
#   scripts/setup.sh --tests    also what only tests need; without it they are skipped
#
# As root or with sudo. Without either it says what to install; the exit code is then 1 only if building needs it.
set -euo pipefail
root=$(dirname "$(realpath "$0")")/..
target=${CARGO_TARGET_DIR:-$root/target}

# The linker …
build="gcc libc6-dev"
# … and libraries that are loaded if they exist: a machine without them still builds, and `symrail info` names them.
use="libfabric1"
# Other launchers, network namespaces, what C and C++ programs are built with, and programs that check C headers.
# util-linux has unshare and nsenter.
test="openmpi-bin libopenmpi-dev libpmix2 libpmix-dev pkg-config iproute2 util-linux python3 python3-pip python3-venv g++ gfortran cmake"
# clang-19 compiles the device functions to LLVM bitcode (scripts/bitcode.sh).
test="$test clang-19"
# Hosts to start PEs on, in network namespaces. A machine that starts services gets no server unasked.
[ -d /run/systemd/system ] || test="$test openssh-client openssh-server"

# The newest libfabric that a package index has ready-made: MPICH's wheel brings its own copy. One binary of ours has to
# work with it and with the distribution's.
newer_libfabric="mpich==5.0.2"

with_tests=0
case ${1-} in
  "") ;;
  --tests) with_tests=1 ;;
  *) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac

missing() {
  for package; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
  done
}

# Output of a successful command is dropped; that of a failed one is shown, and the failure is diagnosed afterwards.
quietly() {
  local said
  said=$("$@" 2>&1 < /dev/null) || printf '%s\n' "$said" >&2
}

# Installs packages; succeeds when they are there afterwards.
provide() {
  local lacking become=()
  # shellcheck disable=SC2046,SC2086
  lacking=$(missing $1)
  [ -n "$lacking" ] || return 0
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null && sudo -n true 2>/dev/null && become=(sudo -n)
    [ ${#become[@]} -gt 0 ] || return 1
  fi
  # shellcheck disable=SC2086
  echo "setup: installing" $lacking
  # The lists of a fresh image are empty; those of an old one name versions that no longer exist.
  quietly "${become[@]}" apt-get update -qq
  # One by one: a package that this release lacks must not keep the others away.
  for package in $lacking; do
    quietly "${become[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package"
  done
  # shellcheck disable=SC2086
  [ -z "$(missing $lacking)" ]
}

# Prints the remedy for packages that are still missing.
lament() {
  # shellcheck disable=SC2046,SC2086
  echo "setup: $2 needs:" $(missing $1) >&2
  # shellcheck disable=SC2046,SC2086
  echo "setup: install it as root:  apt-get install" $(missing $1) >&2
}

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "setup: not a Debian or Ubuntu machine; needed are a C linker, and libfabric for the wire." >&2
  echo "setup: Going on without installing anything." >&2
  exit 0
fi

code=0
command -v cargo >/dev/null || { echo "setup: no cargo; install Rust 1.95 or later, with rustup" >&2; code=1; }
provide "$build" || { lament "$build" "building"; code=1; }
provide "$use" || lament "$use" "the wire (other hosts; a PE alone and PEs of one host do without)"
[ "$with_tests" = 1 ] || exit $code

provide "$test" || lament "$test" "a part of the tests, which is skipped,"
if [ ! -e "$target/libfabric-new/libfabric.so.1" ]; then
  fetched=$(mktemp -d)
  trap 'rm -rf "$fetched"' EXIT
  if python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: -d "$fetched" "$newer_libfabric" &&
    python3 -m zipfile -e "$fetched"/*.whl "$fetched/wheel"; then
    mkdir -p "$target/libfabric-new"
    # Its optional providers are in the same folder and need further libraries; the tests use the built-in ones.
    cp "$fetched"/wheel/mpich-*.data/data/lib/mpich/libfabric.so.1 "$target/libfabric-new/new"
    mv "$target/libfabric-new/new" "$target/libfabric-new/libfabric.so.1"
  else
    echo "setup: $newer_libfabric could not be fetched; the tests with a newer libfabric are skipped" >&2
  fi
fi
# shellcheck source=scripts/cuda-wheels.sh
. "$root/scripts/cuda-wheels.sh"
provide_cuda_wheels "$target" ||
  echo "setup: NVIDIA's run-time compiler could not be fetched; the tests that compile kernels are skipped" >&2
exit $code
