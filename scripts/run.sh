#!/bin/bash
# From a fresh machine to a table of puts over two rails.
#
#   scripts/run.sh                   installs what is missing, builds, and measures: puts that a device starts (through
#                                    channel and proxy), then puts of the host, over two rails between two PEs
#   scripts/run.sh OPTION…           the same with options of `symrail perf`, such as -b 1M, -n 4, --json FILE
#   scripts/run.sh TEST [OPTION…]    another test: `symrail perf TEST OPTION…`
#   scripts/run.sh --help            this, and `symrail perf --help`, which lists tests and options, once it is built
#
# The rails are addresses of the loopback interface unless SYMRAIL_NIC_LIST names NICs.
set -euo pipefail
root=$(dirname "$(realpath "$0")")/..
symrail=${CARGO_TARGET_DIR:-$root/target}/release/symrail

case ${1-} in
  -h | --help)
    sed -n '2,10s/^# \{0,1\}//p' "$0"
    [ ! -x "$symrail" ] || { echo; exec "$symrail" perf --help; }
    exit 0
    ;;
esac

"$root/scripts/setup.sh"
cargo build --quiet --release --manifest-path "$root/Cargo.toml" -p symrail-perftest --bin symrail

case ${1-} in
  "")
    "$symrail" perf put-bw --rails 2 --device cpu -b 8
    echo
    exec "$symrail" perf put-lat put-bw --rails 2 -b 8 -e 64K
    ;;
  -*)
    "$symrail" perf put-bw --rails 2 --device cpu "$@"
    echo
    exec "$symrail" perf put-bw --rails 2 --device host "$@"
    ;;
  *) exec "$symrail" perf "$@" ;;
esac
