#!/bin/bash
# Tests under memory checkers: Miri (rings, messages, tables: code without foreign functions) and valgrind (two
# processes over tcp;ofi_rxm that run every operation).
#
#   scripts/sanitize.sh [miri|valgrind …]      default: both
#
# Needs a nightly compiler with miri (rustup) and valgrind; it skips missing ones. Takes minutes each. Exit code 77:
# nothing could be run. scripts/fuzz.sh uses the address sanitizer.
set -uo pipefail
self=$(realpath "$0")
cd "$(dirname "$self")/.." || exit 1
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
failed=0 ran=0

check() { # what command…
  local what=$1
  shift
  echo "==== $what"
  ran=1
  "$@" || { failed=1; echo "FAILED: $what"; }
}

nightly_with() { # component
  rustup component list --toolchain nightly --installed 2> /dev/null | grep -q "^$1" && return
  echo "SKIPPED: there is no nightly compiler with $1 (rustup toolchain install nightly --component $1)"
  return 1
}

miri() {
  nightly_with miri || return
  export PROPTEST_CASES=${PROPTEST_CASES:-4} MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance"
  check "codes, AMOs, segments" cargo +nightly miri test -p symrail-core --lib
  check "messages and tables" cargo +nightly miri test -p symrail-transport --lib -- wire:: endpoint::queue
  # Miri cannot wait for descriptors, and eight threads take it very long.
  check "channel" cargo +nightly miri test -p symrail-proxy --test it -- codec:: channel:: \
    --skip sleep --skip doorbell --skip eight_producers
}

valgrind() {
  if ! type -P valgrind > /dev/null; then
    echo "SKIPPED: there is no valgrind (apt-get install valgrind)"
    return
  fi
  cargo build --quiet -p symrail-tests -p symrail-perftest || { failed=1; return; }
  check "every operation, two processes" env SYMRAIL_TRANSPORT=libfabric SYMRAIL_LIBFABRIC_PROVIDER="tcp;ofi_rxm" \
    SYMRAIL_TIMEOUT_S=120 "$target/debug/symrail" run -n 2 --hosts 2 --rails 2 --timeout 600 -- \
    valgrind --quiet --error-exitcode=99 "$target/debug/pe" ops tiny
}

[ $# -gt 0 ] || set -- miri valgrind
for tool in "$@"; do
  case $tool in
    miri | valgrind) "$tool" ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$self"; exit 2 ;;
  esac
done
[ $failed = 0 ] || exit 1
[ $ran = 1 ] || exit 77
