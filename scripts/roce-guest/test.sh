#!/bin/bash
# Builds the ibverbs tests, of rails and of whole jobs, and runs them in the guest, all in one boot. Exit code 0: all
# passed.
#
#   scripts/roce-guest/test.sh [FILTER...]     only tests whose names contain one of these
set -euo pipefail
here=$(dirname "$(realpath "$0")")
cd "$here/../.."
# The tests of jobs start programs in the same folder: the launcher, and the programs that are built with the tests.
# The features of `cargo test --workspace`, so that nothing is compiled again.
cargo build -q --workspace --lib --bins --examples
# The line tells a watcher of the output that builds, which take minutes on a loaded machine, make progress.
echo "guest: programs are built"
binaries=$(cargo test -q --no-run --message-format=json --workspace --test 'verbs_*' |
  sed -n '/"profile":{[^}]*"test":true/s/.*"executable":"\([^"]*\)".*/\1/p')
[ -n "$binaries" ] || { echo "$0: no test binaries" >&2; exit 1; }
echo "guest: tests are built"
# A test that finds no device prints SKIPPED and passes; here that is a failure. Three rails, since one of the tests
# removes the address of the third.
# shellcheck disable=SC2016
exec "$here/run.sh" --rails 3 --wire --silence "${SILENCE:-300}" -- bash -c '
  set -o pipefail
  code=0
  binaries=$1
  shift
  for binary in $binaries; do "$binary" --test-threads=1 "$@" 2>&1 | tee -a /tmp/log || code=1; done
  if grep SKIPPED: /tmp/log; then code=1; fi
  exit $code' tests "$binaries" "$@"
