#!/bin/bash
# From a fresh machine to an answer: installs missing packages, builds, runs every test that this machine can run, and
# at the end lists the skipped tests with reasons. The last line is `N passed, N failed, N skipped`; exit code 0 means
# none failed.
#
#   scripts/test.sh
#
# Logs: target/test-logs/. A part of it: `cargo test -p CRATE`, scripts/roce-guest/test.sh, scripts/netns-rails.sh.
set -uo pipefail
case ${1-} in
  "") ;;
  -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
self=$(realpath "$0")
cd "$(dirname "$self")/.." || exit 1
# libfabric's provider verbs reads all of the kernel's symbols twice in every process, to see whether its NICs reach
# GPUs: two thirds of the processor time of a short job. The tests find none, where a mount of their own is possible.
hide='mount --bind /dev/null /proc/kallsyms'
if [ -n "$(head -c 1 /proc/kallsyms 2> /dev/null)" ] && unshare --mount sh -c "$hide" 2> /dev/null; then
  exec unshare --mount sh -c "$hide && exec \"\$0\"" "$self"
fi
CARGO_TARGET_DIR=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export CARGO_TARGET_DIR
target=$CARGO_TARGET_DIR
# Each crate is built once: what incremental builds keep would only fill the disk, and debug information is 5 of 6 parts
# of a test program (panics name file and line without it). One unit a crate takes a quarter less processor time.
export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_CODEGEN_UNITS=1
logs=$target/test-logs
rm -rf "$logs"
mkdir -p "$logs"
: > "$logs/skipped"
: > "$logs/tally"
started=$SECONDS

# The tests run without a user's settings.
for name in "${!SYMRAIL_@}"; do
  case $name in SYMRAIL_TEST_*) ;; *) echo "test: $name is left out"; unset "$name" ;; esac
done

# ---- reports

heading() { printf '\n==== %s (at %d s)\n' "$1" $((SECONDS - started)); }

skip() { # what why
  printf '%s: %s\n' "$1" "$2" >> "$logs/skipped"
}

tally() { # passed failed
  echo "$1 $2" >> "$logs/tally"
}

fail() { # what
  tally 0 1
  echo "FAILED: $1"
}

answer() { # prints `N passed, N failed, N skipped`; exit code 0 when none failed
  awk -v skipped="$(sed 's/: .*//' "$logs/skipped" | sort -u | grep -c .)" '
    { passed += $1; failed += $2 }
    END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped; exit failed > 0 }' "$logs/tally"
}

run() { # log seconds command…: what matters of its output is shown at once, all of it is in the log. The command is
  # ended when it says nothing for so many seconds
  local log=$logs/$1.log silence=$2 code
  shift 2
  scripts/while-it-talks.sh "$silence" "$@" | tee "$log" |
    grep --line-buffered -E '^( +Running | +Doc-tests |test result: .* 0 filtered out|test .* FAILED|error|guest:)'
  code=${PIPESTATUS[0]}
  [ "$code" = 124 ] && echo "it said nothing for $silence s"
  return "$code"
}

# Adds up the results in a log of Rust's test harness, except for test binaries that `elsewhere` matches: these have run
# in a better environment. A test that prints SKIPPED does not count as passed. Exit code 1 when one failed.
count() { # log [elsewhere]
  local log=$logs/$1.log totals silent
  awk -v elsewhere="${2-}" '/^ +(Running|Doc-tests) / { off = elsewhere != "" && $0 ~ elsewhere } !off' "$log" > "$log.counted"
  # Second processes of a test run its binary with a filter, and write to the same log.
  totals=$(sed -n 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed;.* 0 filtered out.*/\1 \2/p' "$log.counted" |
    awk '{ p += $1; f += $2 } END { print p + 0, f + 0 }')
  # The harness holds this output back until a test ends, then shows it below the test's name; or the test writes it to
  # stderr with its name.
  awk '/^---- .* stdout ----$/ { name = $0; sub(/^---- /, "", name); sub(/ stdout ----$/, "", name) }
       /^SKIPPED: / { sub(/^SKIPPED: /, ""); print name ": " $0; next }
       /: SKIPPED: / { sub(/^test .* \.\.\. /, ""); sub(/: SKIPPED: /, ": "); print }' \
    "$log.counted" | sort -u > "$logs/$1.skipped"
  cat "$logs/$1.skipped" >> "$logs/skipped"
  silent=$(sed 's/: .*//' "$logs/$1.skipped" | sort -u | grep -c .)
  tally $((${totals% *} - silent)) "${totals#* }"
  # The failures, in full.
  awk '/^failures:$/ { on = 1 } on { print } /^test result/ { on = 0 }' "$log.counted"
  [ "${totals#* }" = 0 ]
}

# Runs tests and adds them up; a command that fails without a failed test counts as a failure too.
tests() { # log seconds command…
  local log=$1 code
  run "$@"
  code=$?
  ! count "$log" || [ $code = 0 ] || fail "$log: exit code $code without a failed test; see $logs/$log.log"
  return $code
}

# ---- the tests

heading "setup"
scripts/setup.sh --tests || fail "setup: building needs more than this machine has"
newer=$target/libfabric-new/libfabric.so.1
if [ -e "$newer" ]; then
  export SYMRAIL_TEST_LIBFABRIC_NEW=$newer
fi

heading "build"
if ! cargo test --workspace --no-run --quiet || ! cargo build --workspace --lib --bins --examples --quiet; then
  fail "the build"
  answer
  exit 1
fi

guest() {
  heading "ibverbs in a guest with soft-RoCE"
  export ROCE_GUEST_DIR=${ROCE_GUEST_DIR:-$target/roce-guest}
  if [ "$(uname -m)" != x86_64 ]; then
    skip "ibverbs in a guest" "the guest is an x86-64 one"
  elif ! scripts/roce-guest/setup.sh > "$logs/roce-setup.log" 2>&1; then
    skip "ibverbs in a guest" "the guest cannot be set up: $(tail -n 1 "$logs/roce-setup.log")"
  else
    touch "$logs/guest"
    tests roce 600 scripts/roce-guest/test.sh
  fi
}

models() {
  local file crate name
  for file in */model/tests/loom_*.rs; do
    [ -e "$file" ] || continue
    crate=${file%%/*}/model name=$(basename "$file" .rs)
    heading "$name: every interleaving of a model"
    # In a separate target folder, since the flag changes every crate below. The model is done before link-time
    # optimization would pay.
    tests "$name" 600 env RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="$target/loom" \
      CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
      cargo test --manifest-path "$crate/Cargo.toml" --release --test "$name"
  done
}

python_package() {
  local code unwell
  heading "the Python package"
  scripts/python-tests.sh 2>&1 < /dev/null | tee "$logs/python.log" | tail -n 30
  code=${PIPESTATUS[0]}
  if [ "$code" = 77 ]; then
    skip "the Python package" "$(sed -n 's/^SKIPPED: //p' "$logs/python.log" | head -n 1)"
    return
  fi
  # The last line of pytest: `2 failed, 40 passed, 1 skipped in 50.00s`.
  of_pytest() { tail -n 1 "$logs/python.log" | grep -oE "[0-9]+ $1" | grep -oE '^[0-9]+' || echo 0; }
  unwell=$(($(of_pytest failed) + $(of_pytest error)))
  tally "$(of_pytest passed)" "$unwell"
  sed -n 's/^SKIPPED \[[0-9]*\] /python: /p' "$logs/python.log" >> "$logs/skipped"
  [ "$code" = 0 ] || [ "$unwell" -gt 0 ] || fail "the Python package: see $logs/python.log"
}

script() { # log name script: exit code 0: passed; 77: skipped
  local code
  heading "$2"
  "$3" 2>&1 < /dev/null | tee "$logs/$1.log" | tail -n 30
  code=${PIPESTATUS[0]}
  case $code in
    0) tally 1 0 ;;
    77) skip "$2" "$(sed -n 's/^SKIPPED: //p' "$logs/$1.log")" ;;
    *) fail "$2: see $logs/$1.log" ;;
  esac
}

# One way on all machines: the harness that comes with Rust; its tests of one binary share a process, as they expect.
workspace() { # log options…
  run "$1" 900 env RUST_TEST_THREADS=$((1 + $(nproc))) cargo test --workspace --no-fail-fast "${@:2}" -- --show-output
}
# Tests that compute, and have no time limits.
computing="torture simulated nvrtc computing"

# Beside the guest only what has no time limits, in the time that it leaves: an emulated machine gets its time limits by
# the processors that it has.
(
  renice -n 10 -p $BASHPID > /dev/null
  models
  heading "tests of the workspace that compute"
  # shellcheck disable=SC2046,SC2086
  workspace computing $(printf -- '--test %s ' $computing)
) > "$logs/beside-guest.out" 2>&1 &
computing_tests=$!
guest

# Three programs at a time, since tests wait half of their time. What the others print follows.
python_package > "$logs/beside.out" 2>&1 &
beside=$!

heading "tests of the workspace"
# The programs `it` of these packages are half of the work. `--lib` in place of a runner would also build libraries
# without tests.
packages="symrail-tests symrail-c symrail-kernels symrail-ep symrail-decomp"
runner() { # a branch of a shell's `case`, of PACKAGE:PROGRAM: what is done with a program of tests
  echo "target.'cfg(unix)'.runner = ['sh', '-c', 'case \$CARGO_PKG_NAME:\$0 in $1 esac']"
}
# shellcheck disable=SC2016
it_runs='exec "$0" "$@" ;;'
# shellcheck disable=SC2086
in_half=$(printf '|%s:*/it-*' $packages) not_here=$in_half$(printf '|*/%s-*' $computing)
workspace half --test it --config "$(runner "${in_half#|}) $it_runs")" > "$logs/half.out" 2>&1 &
half=$!
workspace others --config "$(runner "${not_here#|}) ;; *) $it_runs")"
others=$?
wait $half
half=$?
cat "$logs/half.out"
wait $computing_tests
computing=$?
cat "$logs/beside-guest.out"
wait $beside
cat "$logs/beside.out"
for log in half others computing; do
  elsewhere=
  [ ! -e "$logs/guest" ] || elsewhere='/verbs_[^/]*[.]rs'
  code=${!log}
  ! count "$log" "$elsewhere" || [ "$code" = 0 ] ||
    fail "$log: exit code $code without a failed test; see $logs/$log.log"
done

# Alone: it measures.
script netns "rails in network namespaces" scripts/netns-rails.sh
[ -z "${SYMRAIL_TEST_WHEEL-}" ] || script wheel "the wheel" scripts/wheel.sh

# ---- the answer

heading "done"
# Measurements, and second processes of other tests: they do not run by themselves, but are listed.
cat "$logs"/*.log | sed -n 's/^test \(.*\) \.\.\. ignored,\{0,1\} *\(.*\)/not run by itself: \1: \2/p' | sort -u
[ -n "${SYMRAIL_TEST_WHEEL-}" ] || echo "not run by itself: scripts/wheel.sh: a release build; SYMRAIL_TEST_WHEEL=1 runs it"
sort -u "$logs/skipped" | sed 's/^/SKIPPED: /'
answer
