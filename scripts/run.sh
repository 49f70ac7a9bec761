#!/bin/bash
# From a fresh machine to a table of puts over two rails.
#
#   scripts/run.sh                   installs what is missing, builds, and measures puts between two PEs over two rails
#   scripts/run.sh OPTION…           the same, and puts that a device starts, with options of `symrail perf`, such as
#                                    -b 1M, -n 4, --json FILE
#   scripts/run.sh TEST [OPTION…]    another test: `symrail perf TEST OPTION…`
#   scripts/run.sh --help            this, and `symrail perf --help`, which lists tests and options, once it is built
#
# The rails are addresses of the loopback interface unless SYMRAIL_NIC_LIST names NICs.
set -euo pipefail
root=$(dirname "$(realpath "$0")")/..
symrail=${CARGO_TARGET_DIR:-$root/target}/quick/symrail

case ${1-} in
  -h | --help)
    sed -n '2,10s/^# \{0,1\}//p' "$0"
    [ ! -x "$symrail" ] || { echo; exec "$symrail" perf --help; }
    exit 0
    ;;
esac

"$root/scripts/setup.sh"
# On a terminal cargo shows its progress.
quiet=--quiet
[ ! -t 2 ] || quiet=
cargo build $quiet --profile quick --manifest-path "$root/Cargo.toml" -p symrail-perftest --bin symrail --no-default-features

case ${1-} in
  "")
    cat <<'TEXT'

Two processes (PEs) put data into each other's memory, over two rails at once; the target's memory is compared for every
size. A row is a size. avg(MB/s) is what both rails carry together: some GB/s in the last row. Rails of the loopback
interface share its processor time, so four of them are not faster than two here; on NICs they are.

TEXT
    "$symrail" perf put-bw --rails 2 -b 8 -e 4M
    cat <<'TEXT'

This works when the line `data at the target checked for every size` is above. What this machine lacks for the fastest
path: `target/quick/symrail doctor`. Your own program, and figures of a release build: README.md, "Use it".
TEXT
    ;;
  -*)
    "$symrail" perf put-bw --rails 2 --device cpu "$@"
    echo
    exec "$symrail" perf put-bw --rails 2 --device host "$@"
    ;;
  *) exec "$symrail" perf "$@" ;;
esac
