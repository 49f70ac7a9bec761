#!/bin/bash
# Builds the public OpenSHMEM test suite (the repository tests-sos of openshmem-org) with our compiler wrapper,
# unmodified, and runs it with 2 and 4 PEs, mapped, and over the wire with two rails and with one, where blocks of
# collectives take another path. The suite is not part of this repository.
#
#   SYMRAIL_TESTS_SOS=FOLDER scripts/shmem-suite.sh                        all six settings, all programs
#   SYMRAIL_TESTS_SOS=FOLDER scripts/shmem-suite.sh 4-wire …               some of [24]-mapped, [24]-wire, [24]-rail
#   SYMRAIL_TESTS_SOS=FOLDER scripts/shmem-suite.sh 2-mapped unit/put1 …   some of the programs
#
# The folder has the suite's source, with `configure` (its autogen.sh makes that). Everything is built and kept in
# target/shmem-suite: a line for each program in SETTING.txt, failures in SETTING/. Exit code 0: nothing failed.
set -uo pipefail
root=$(dirname "$(dirname "$(realpath "$0")")")
target=$(realpath -m "${CARGO_TARGET_DIR:-$root/target}")
if [ -z "${SYMRAIL_TESTS_SOS:-}" ]; then
  echo "SKIPPED: SYMRAIL_TESTS_SOS does not name a folder with the suite's source"
  exit 77
fi
source=$(realpath "$SYMRAIL_TESTS_SOS")
if [ ! -x "$source/configure" ]; then
  echo "shmem-suite: no configure in $source; run autogen.sh there (it needs autoconf and automake)" >&2
  exit 1
fi

settings=() programs=()
for word; do
  case $word in
    [24]-mapped | [24]-wire | [24]-rail) settings+=("$word") ;;
    */*) programs+=("$word") ;;
    *) sed -n '5,7s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
[ ${#settings[@]} -gt 0 ] || settings=(2-mapped 2-wire 2-rail 4-mapped 4-wire 4-rail)

# The tests run without a user's settings.
for name in "${!SYMRAIL_@}"; do
  [ "$name" = SYMRAIL_TESTS_SOS ] || unset "$name"
done

CARGO_TARGET_DIR=$target cargo build --quiet --release --manifest-path "$root/Cargo.toml" \
  -p symrail-perftest -p symrail-c || exit 1
symrail=$target/release/symrail
work=$target/shmem-suite
mkdir -p "$work/bin" "$work/build"
ln -sf "$symrail" "$work/bin/oshcc"
ln -sf "$symrail" "$work/bin/oshc++"

# Extensions, deprecated routines and the profiling interface exist, so their programs are built too. Compiled once per
# suite and headers: a program finds the library when it starts.
stamp=$(cd "$root/shmem/include" && find . -name '*.h' -print0 | sort -z | xargs -0 cat | cksum)" $source"
if [ "$(cat "$work/stamp" 2>/dev/null)" != "$stamp" ]; then
  rm -rf "$work/build"
  mkdir "$work/build"
  echo "shmem-suite: building"
  (cd "$work/build" && "$source/configure" CC="$work/bin/oshcc" CXX="$work/bin/oshc++" --enable-shmemx \
    --enable-deprecated-tests --enable-profiling > configure.log 2>&1 &&
    nice make -k -j2 check TESTS= > make.log 2>&1)
  if [ ! -e "$work/build/make.log" ]; then
    echo "shmem-suite: configure fails: $work/build/configure.log" >&2
    tail -n 3 "$work/build/configure.log" >&2
    exit 1
  fi
  # Programs that do not compile are listed below, as NOT BUILT.
  grep -E 'error:|Error [0-9]' "$work/build/make.log" | head -n 20
  echo "$stamp" > "$work/stamp"
fi

# The programs of a folder, as its makefile lists them.
listed() { # folder
  # shellcheck disable=SC2016 # for make
  make -s --no-print-directory -C "$work/build/test/$1" -f Makefile -f <(printf 'print-programs:;@echo $(check_PROGRAMS)\n') \
    print-programs 2>/dev/null | tr ' ' '\n' | sed "/^$/d; s|^|$1/|"
}
if [ ${#programs[@]} = 0 ]; then
  mapfile -t programs < <(for folder in unit spec-example apps shmemx; do listed "$folder"; done)
fi

failures=0
for setting in "${settings[@]}"; do
  pes=${setting%-*} results=$work/$setting.txt logs=$work/$setting
  case $setting in
    *-mapped) options=(-n "$pes") environment=() ;;
    # As many hosts as PEs, so that all operations go over the wire.
    *)
      rails=2
      [ "${setting#*-}" = wire ] || rails=1
      options=(-n "$pes" --hosts "$pes" --rails "$rails")
      environment=(SYMRAIL_TRANSPORT=libfabric 'SYMRAIL_LIBFABRIC_PROVIDER=tcp;ofi_rxm')
      ;;
  esac
  rm -rf "$logs"
  mkdir "$logs"
  : > "$results"
  started=$SECONDS
  for program in "${programs[@]}"; do
    log=$logs/${program//\//-}.log
    binary=$work/build/test/$program
    began=$(date +%s%N)
    if [ ! -x "$binary" ]; then
      result='NOT BUILT'
    else
      env "${environment[@]}" timeout -k 5 140 \
        "$symrail" run "${options[@]}" --timeout 120 -- "$binary" > "$log" 2>&1 < /dev/null
      code=$?
      case $code in
        0) result=PASS ;;
        77) result=SKIP ;;
        *) result="FAIL($code)" ;;
      esac
    fi
    [ "$result" = PASS ] && rm -f "$log"
    printf '%s %s %d ms\n' "$result" "$program" $((($(date +%s%N) - began) / 1000000)) >> "$results"
  done
  passed=$(grep -c '^PASS' "$results") skipped=$(grep -c '^SKIP' "$results") missing=$(grep -c '^NOT BUILT' "$results")
  # A program without another result has failed, even if the results are gone.
  failed=$((${#programs[@]} - passed - skipped - missing))
  failures=$((failures + failed))
  grep -v '^PASS' "$results"
  printf '%s: %d passed, %d failed, %d skipped, %d not built, of %d programs, in %d s\n' \
    "$setting" "$passed" "$failed" "$skipped" "$missing" ${#programs[@]} $((SECONDS - started))
done
[ "$failures" = 0 ] && [ ${#programs[@]} -gt 0 ]
