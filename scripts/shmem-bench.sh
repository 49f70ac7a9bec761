#!/bin/bash
# Times OpenSHMEM programs over Symrail beside other libraries: one C program (shmem/capi/bench/bench.c), compiled by
# each library's own wrapper and run alternately, so that all meet the machine in the same state.
#
#   SOS_PREFIX=FOLDER scripts/shmem-bench.sh           everything
#   SOS_PREFIX=FOLDER scripts/shmem-bench.sh wire 4    parts: wire, mapped, threads, or a number of PEs for collectives,
#                                                      or sets-2, sets-4, … for those of active sets
#
# SOS_PREFIX: the folder of Sandia OpenSHMEM, built for libfabric. SOS_LAUNCHER: the launcher of its programs, a PMI-1
# launcher such as Hydra's (default: mpiexec.hydra). Open MPI's OSHMEM is found as oshcc and oshrun in the path
# (OMPI_OSHCC, OMPI_OSHRUN). A missing library is left out, with the reason. REPETITIONS=9 for more turns than 5. The
# tables have medians over the turns, and of the ratios within each turn. Latencies of a busy machine mean little, so
# the load is printed.
set -uo pipefail
root=$(dirname "$(dirname "$(realpath "$0")")")
target=$(realpath -m "${CARGO_TARGET_DIR:-$root/target}")
repetitions=${REPETITIONS:-5}
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(wire mapped threads 2 3 4 8 16)

# The user's settings must not change the comparison.
for name in $(compgen -e | grep '^SYMRAIL_' || true); do unset "$name"; done

CARGO_TARGET_DIR=$target cargo build --quiet --release --manifest-path "$root/Cargo.toml" -p symrail-perftest -p symrail-c || exit 1
symrail=$target/release/symrail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
figures=$work/figures
: >"$figures"

compile() { # side wrapper…
  local side=$1
  shift
  "$@" -O2 -pthread -o "$work/$side" "$root/shmem/capi/bench/bench.c" >"$work/$side.log" 2>&1 && return
  echo "SKIPPED: $side: $* does not compile the program: $(grep -m 1 -i error "$work/$side.log")"
  return 1
}
compile symrail "$symrail" cc || exit 1
sos='' ompi=''
if [ -z "${SOS_PREFIX:-}" ]; then
  echo "SKIPPED: Sandia OpenSHMEM: SOS_PREFIX does not say where it is"
elif ! command -v "${SOS_LAUNCHER:-mpiexec.hydra}" >/dev/null; then
  echo "SKIPPED: Sandia OpenSHMEM: there is no launcher ${SOS_LAUNCHER:-mpiexec.hydra}; set SOS_LAUNCHER"
else
  compile sos "$SOS_PREFIX/bin/oshcc" && sos=1
fi
if ! command -v "${OMPI_OSHCC:-oshcc}" >/dev/null; then
  echo "SKIPPED: Open MPI's OSHMEM: there is no ${OMPI_OSHCC:-oshcc}"
else
  compile ompi "${OMPI_OSHCC:-oshcc}" -Wno-deprecated-declarations && ompi=1
fi

# once SIDE PES ARGS…: one run, over tcp;ofi_rxm, or with memory mapped for `ompi` and `symrail-mapped`. If there are
# enough cores, each PE has its own; otherwise the figure would depend on whether the scheduler puts two PEs on one.
once() {
  local side=$1 pes=$2 ours=() hydra=() openmpi=()
  shift 2
  if [ "$pes" -le "$(nproc)" ]; then
    ours=(--bind) hydra=(-bind-to core) openmpi=(--bind-to core)
  fi
  case $side in
    symrail)
      SYMRAIL_TRANSPORT=libfabric SYMRAIL_LIBFABRIC_PROVIDER='tcp;ofi_rxm' \
        timeout 200 "$symrail" run -n "$pes" --hosts "$pes" --rails 1 "${ours[@]}" -- "$work/symrail" "$@"
      ;;
    symrail-mapped) timeout 200 "$symrail" run -n "$pes" "${ours[@]}" -- "$work/symrail" "$@" ;;
    sos) SHMEM_OFI_PROVIDER='tcp;ofi_rxm' timeout 200 "${SOS_LAUNCHER:-mpiexec.hydra}" "${hydra[@]}" -n "$pes" "$work/sos" "$@" ;;
    ompi)
      OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 200 "${OMPI_OSHRUN:-oshrun}" --mca osc ^rdma \
        --oversubscribe "${openmpi[@]}" -n "$pes" "$work/ompi" "$@"
      ;;
  esac
}

# measure PART OURS THEIRS PES ARGS…: alternately, theirs only if it exists; then the table.
measure() {
  local part=$1 ours=$2 theirs=$3 pes=$4 load turn side code
  shift 4
  load=$(cut -d' ' -f1 /proc/loadavg)
  for ((turn = 1; turn <= repetitions; turn++)); do
    for side in $ours $theirs; do
      once "$side" "$pes" "$@" >"$work/out" 2>"$work/err" </dev/null
      code=$?
      [ $code = 0 ] || echo "$part, $side, turn $turn: ended with $code: $(tail -n 1 "$work/err")"
      sed "s/^/$part $turn $side /" "$work/out" >>"$figures"
    done
  done
  echo
  echo "$part, $pes PEs; load $load to $(cut -d' ' -f1 /proc/loadavg)"
  table "$part" "$ours" "$theirs"
}

table() {
  echo
  echo "| | bytes | unit | $2 | ${3:--} | ratio |"
  echo "|---|---:|---|---:|---:|---:|"
  awk -v part="$1" -v ours="$2" -v theirs="$3" '
    function median(list,   v, count, i, j, t) {
      count = split(list, v, " ")
      for (i = 2; i <= count; i++) for (j = i; j > 1 && v[j] + 0 < v[j-1] + 0; j--) { t = v[j]; v[j] = v[j-1]; v[j-1] = t }
      return count ? (count % 2 ? v[(count+1)/2] : (v[count/2] + v[count/2+1]) / 2) : ""
    }
    $1 == part && NF == 7 {
      key = $4 " " $5
      if (!(key in unit)) { unit[key] = $7; order[++rows] = key }
      all[$3, key] = all[$3, key] " " $6
      at[$3, key, $2] = $6
      if ($2 > turns) turns = $2
    }
    END {
      for (r = 1; r <= rows; r++) {
        key = order[r]; split(key, name, " "); ratios = ""
        for (t = 1; t <= turns; t++) if (at[theirs, key, t] > 0) ratios = ratios " " at[ours, key, t] / at[theirs, key, t]
        printf "| %s | %s | %s | %.3g | %s | %s |\n", name[1], name[2], unit[key], median(all[ours, key]), \
          all[theirs, key] == "" ? "-" : sprintf("%.3g", median(all[theirs, key])), ratios == "" ? "-" : sprintf("%.2f", median(ratios))
      }
    }' "$figures"
}

echo "$(date -u '+%Y-%m-%d %H:%M UTC'), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores, Linux $(uname -r)," \
  "commit $(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown); medians of $repetitions turns."
for part in "${parts[@]}"; do
  case $part in
    wire) measure wire symrail "${sos:+sos}" 2 pairs ;;
    mapped) measure mapped symrail-mapped "${ompi:+ompi}" 2 pairs ;;
    threads) measure threads symrail "${sos:+sos}" 2 threads 4 ;;
    sets-[1-9]*) measure "$part" symrail "${sos:+sos}" "${part#sets-}" sets ;;
    [1-9]*) measure "collectives-$part" symrail "${sos:+sos}" "$part" collectives ;;
    *) sed -n '5,7s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
