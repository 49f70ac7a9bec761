#!/bin/bash
# Measures Symrail's promises about its speed, and prints for each whether it is kept here and now.
#
#   scripts/bench.sh             prints a table
#   scripts/bench.sh --record    also writes it to docs/benchmarks/README.md
#   REPETITIONS=9 scripts/bench.sh
#   SYMRAIL_OLD=PROGRAM scripts/bench.sh     also measures another build's `symrail`, in turns, and prints new over old
#   SYMRAIL_NEW=PROGRAM scripts/bench.sh     measures this one and builds nothing
#   PREFIX="chrt -r 10" scripts/bench.sh     runs programs so: at real-time priority on a machine that does other things
#
# `symrail perf` measures the compared programs alternately (bare, ours, bare, ours, …). The table has the median over
# the turns: of latencies' medians, of total rates, and of the ratios within each turn. Windows end when they are
# complete on both sides, and latencies are those of awaited operations, so both columns have the same meaning. Absolute
# figures mean little on a busy machine, so run it on an idle one; the table includes the load. It takes less than six
# minutes once all is built, twice that with an old program: on a slow machine the turns end then. Small operations over
# several rails and by devices are measured in three turns, of this program alone.
set -euo pipefail
self=$(realpath "$0")
old=${SYMRAIL_OLD:+$(realpath "$SYMRAIL_OLD")}
new=${SYMRAIL_NEW:+$(realpath "$SYMRAIL_NEW")}
cd "$(dirname "$self")/.."

record=0
case ${1-} in
  "") ;;
  --record) record=1 ;;
  *) sed -n '2,17s/^# \{0,1\}//p' "$self"; exit 2 ;;
esac
repetitions=${REPETITIONS:-5}
longest=200
[ -z "$old" ] || longest=400
for program in $old $new; do
  [ -x "$program" ] || { echo "no program: $program" >&2; exit 2; }
done

# The user's settings must not change the comparison.
for name in $(compgen -e | grep '^SYMRAIL_' || true); do unset "$name"; done

[ -n "$new" ] || cargo build --release --quiet -p symrail-perftest
symrail=${new:-${CARGO_TARGET_DIR:-target}/release/symrail}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
figures=$work/figures
old_figures=$work/old-figures
failures=$work/failures
: >"$figures"; : >"$old_figures"; : >"$failures"

say() { [ ! -t 2 ] || printf '\r\033[K%s' "$*" >&2; }

load() { cut -d' ' -f1-3 /proc/loadavg; }

# perf TURN NAME ARGS…: measures, and records lines of: turn name test size value p50
perf() {
  local turn=$1 name=$2
  shift 2
  say "turn $turn of $repetitions: $name"
  # The two programs alternate in beginning a turn.
  [ -z "$old" ] || [ $((turn % 2)) = 0 ] || one "$old" "$old_figures" $turn "$name" "$@" || true
  one "$symrail" "$figures" $turn "$name" "$@" ||
    { echo "$name: symrail perf $* failed:"; tail -n 3 "$work/out"; } >>"$failures"
  # An old program may lack a test: its figures are missing then.
  [ -z "$old" ] || [ $((turn % 2)) = 1 ] || one "$old" "$old_figures" $turn "$name" "$@" || true
}

# one PROGRAM FIGURES TURN NAME ARGS…: uses only the fields that all versions have.
one() {
  local program=$1 to=$2 turn=$3 name=$4
  shift 4
  # shellcheck disable=SC2086 # the prefix is words
  timeout 60 ${PREFIX:-} "$program" perf "$@" --json "$work/json" >"$work/out" 2>&1 || return 1
  sed -n 's/.*"test":"\([^"]*\)".*"size":\([0-9]*\).*"value":\([^,]*\),"p50":\([^,]*\),.*/'"$turn $name"' \1 \2 \3 \4/p' \
    "$work/json" >>"$to"
}

# small TURN: small operations, and puts of all sizes, over several rails.
small() {
  local turn=$1 rails device
  say "turn $turn of $repetitions: small operations"
  for rails in 1 2 4; do
    for device in host cpu; do
      ours $turn $device$rails p-rate amo-rate signal-rate -i 1000
      ours $turn $device$rails put-rate -i 50
      ours $turn $device$rails put-bw -b 128 -e 4K -i 400
    done
    ours $turn cpu$rails get-rate fetch-rate -b 8 -e 8 -i 1000 --threads 64
    device=host
    ours $turn sizes$rails put-bw -b 8 -e 64K -i 200
    ours $turn sizes$rails put-bw -b 128K -e 4M -W 16 -i 20
  done
}

# ours TURN NAME ARGS…: measures this program alone, on the rails and the device of `small`.
ours() {
  local turn=$1 name=$2
  shift 2
  one "$symrail" "$figures" $turn "$name" "$@" --rails $rails --device $device ||
    { echo "$name: symrail perf $* failed:"; tail -n 3 "$work/out"; } >>"$failures"
}

started=$(date +%s)
load_before=$(load)
turns=0
for ((turn = 1; turn <= repetitions; turn++)); do
  [ $turn -le 3 ] || [ $(($(date +%s) - started)) -lt $longest ] || break
  turns=$turn
  export SYMRAIL_LIBFABRIC_PROVIDER="tcp;ofi_rxm"
  # One job for each pair, so that both halves see the machine in the same state.
  perf $turn tcp raw-put-lat put-lat -b 8 -e 8 --rails 1
  perf $turn tcp raw-get-lat get-lat -b 8 -e 8 --rails 1
  perf $turn tcp raw-put-bw put-bw -b 1M -e 1M -W 16 --rails 1
  perf $turn tcp raw-put-rate p-rate --rails 1
  perf $turn tcp put-rate --rails 1
  perf $turn tcp put-pingpong put-signal-pingpong -b 8 -e 8 --rails 1
  perf $turn tcp-cpu put-lat -b 8 -e 8 --rails 1 --device cpu
  perf $turn busy get-lat amo-lat -b 8 -e 8 -i 15 --rails 1 --busy-target
  perf $turn idle-target get-lat amo-lat -b 8 -e 8 -i 15 --rails 1 --idle-target
  [ $turn -gt 3 ] || small $turn
  SYMRAIL_LIBFABRIC_PROVIDER=shm perf $turn shm raw-put-lat put-lat -b 8 -e 8
  unset SYMRAIL_LIBFABRIC_PROVIDER
  perf $turn mapped raw-memcpy-bw put-bw -b 1M -e 1M
  perf $turn mapped put-lat amo-lat p-rate -b 8 -e 8
done
turn=1
export SYMRAIL_LIBFABRIC_PROVIDER="tcp;ofi_rxm"
perf $turn idle idle-cpu --rails 1
for ((turn = 1; turn <= 3; turn++)); do
  perf $turn large memory -n 8 --rails 4
  perf $turn many init-time -n 16 --rails 1
done
unset SYMRAIL_LIBFABRIC_PROVIDER
say "channel"
channel=$work/channel
: >"$channel"
if [ -n "$new" ]; then
  : # nothing is built
elif ! CRITERION_HOME=$work/criterion timeout 200 cargo bench --quiet -p symrail-proxy --bench channel -- --quick --noplot >"$channel" 2>&1; then
  { echo "cargo bench -p symrail-proxy failed:"; tail -n 3 "$channel"; } >>"$failures"
fi
load_after=$(load)
say ""

# The median of the standard input.
median() { sort -g | awk '{ v[NR] = $1 } END { if (NR) printf "%.6g\n", NR % 2 ? v[(NR+1)/2] : (v[NR/2] + v[NR/2+1]) / 2 }'; }

# of NAME TEST FIELD: the median over turns; FIELD is 5 for totals, 6 for medians.
of() { awk -v n="$1" -v t="$2" -v f="$3" '$2 == n && $3 == t { print $f }' "$figures" | median; }

# ratio NAME TEST NAME TEST FIELD: the median of the first over the second within each turn.
ratio() {
  awk -v n="$1" -v t="$2" -v m="$3" -v u="$4" -v f="$5" '
    $2 == n && $3 == t { a[$1] = $f }
    $2 == m && $3 == u { b[$1] = $f }
    END { for (i in a) if (b[i] > 0) print a[i] / b[i] }' "$figures" | median
}

# against NAME TEST FIELD: the median of new over old within each turn.
against() {
  awk -v n="$1" -v t="$2" -v f="$3" '
    $2 != n || $3 != t { next }
    FILENAME == ARGV[1] { a[$1] = $f }
    FILENAME == ARGV[2] { b[$1] = $f }
    END { for (i in a) if (b[i] > 0) print a[i] / b[i] }' "$figures" "$old_figures" | median
}

# row WHAT OURS COMPARED-WITH FIGURE RELATION BOUND NEW-OVER-OLD: FIGURE is what the promise is about. With an old
# program the new one may be 3 % worse.
row() {
  local kept="no figure"
  [ -z "$4" ] || kept=$(awk -v x="$4" -v r="$5" -v b="$6" 'BEGIN { print (r == "<=" ? x <= b : x >= b) ? "yes" : "NO" }')
  local relation=≤
  [ "$5" = "<=" ] || relation=≥
  # printf counts bytes, and the relation has three of them.
  printf '| %-58s | %12s | %12s | %8s | %s %-6s | %-9s |' "$1" "${2:--}" "${3:--}" "$(short "${4:--}")" "$relation" "$6" "$kept"
  if [ -n "$old" ]; then
    local as_good="no figure"
    [ -z "$7" ] || as_good=$(awk -v x="$7" -v r="$5" 'BEGIN { print (r == "<=" ? x <= 1.03 : x >= 0.97) ? "yes" : "NO" }')
    printf ' %8s | %-9s |' "$(short "${7:--}")" "$as_good"
  fi
  echo
}

short() { case $1 in -) echo - ;; *) awk -v x="$1" 'BEGIN { printf x < 10 ? "%.3f" : "%.4g", x }' ;; esac; }

# with FIGURE UNIT [FACTOR]
with() { [ -z "$1" ] || awk -v x="$1" -v f="${3:-1}" -v u="$2" 'BEGIN { x *= f; printf (x < 10 ? "%.3f %s" : x < 1000 ? "%.1f %s" : "%.0f %s"), x, u }'; }

# latency|rate WHAT NAME TEST NAME TEST RELATION BOUND UNIT: a ratio.
compare() {
  local what=$1 name=$2 test=$3 with_name=$4 with_test=$5 field=$6 relation=$7 bound=$8 unit=$9
  row "$what" "$(with "$(of "$name" "$test" "$field")" "$unit")" \
    "$(with "$(of "$with_name" "$with_test" "$field")" "$unit")" \
    "$(ratio "$name" "$test" "$with_name" "$with_test" "$field")" "$relation" "$bound" "$(against "$name" "$test" "$field")"
}

# absolute WHAT NAME TEST FIELD FACTOR UNIT RELATION BOUND
absolute() {
  local value
  value=$(of "$2" "$3" "$4")
  [ -z "$value" ] || value=$(awk -v x="$value" -v f="$5" 'BEGIN { printf "%.6g", x * f }')
  row "$1" "$(with "$value" "$6")" "" "$value" "$7" "$8" "$(against "$2" "$3" "$4")"
}

# rate NAME TEST SIZE: millions of operations in a second, the median over turns.
rate() {
  awk -v n="$1" -v t="$2" -v s="$3" '$2 == n && $3 == t && $4 == s { print t == "put-bw" ? $5 / s : $5 }' "$figures" | median
}

# over A B: a ratio, if there are both.
over() { [ -z "$1" ] || [ -z "$2" ] || awk -v a="$1" -v b="$2" 'BEGIN { printf "%.6g\n", a / b }'; }

least() { grep . | sort -g | head -n 1 || true; }

# least_rate WHAT BOUND TEST SIZE NAME…: the smallest of several names' rates.
least_rate() {
  local what=$1 bound=$2 test=$3 size=$4 value
  shift 4
  value=$(for name in "$@"; do rate $name $test $size; done | least)
  row "$what" "$(with "$value" Mop/s)" "" "$value" ">=" "$bound" ""
}

# Small operations over 1, 2 and 4 rails of tcp;ofi_rxm: the worst of them, since the promise covers each.
table_of_small() {
  local test words size bound rails ratios
  for test in p-rate put-rate; do
    words="one quiet"
    [ $test = put-rate ] || words="quiet each 64"
    least_rate "1, 2, 4 rails: CPU device, 8 B puts, $words" 1.5 $test 8 cpu1 cpu2 cpu4
    ratios=$(for rails in 1 2 4; do over "$(rate cpu$rails $test 8)" "$(rate host$rails $test 8)"; done | least)
    row "1, 2, 4 rails: device over host, 8 B puts, $words" "" "" "$ratios" ">=" 0.7 ""
    ratios=$(for rails in 2 4; do over "$(rate host$rails $test 8)" "$(rate host1 $test 8)"; done | least)
    row "host, 2 or 4 rails over one, 8 B puts, $words" "" "" "$ratios" ">=" 0.95 ""
  done
  while read -r size bound; do
    least_rate "1, 2, 4 rails: host, puts of $size B, quiet each 64" $bound put-bw $size host1 host2 host4
    least_rate "1, 2, 4 rails: CPU device, puts of $size B, the same" $bound put-bw $size cpu1 cpu2 cpu4
  done <<<"128 0.8
1024 0.5
4096 0.3"
  for rails in 2 4; do
    ratios=$(for ((size = 8; size <= 4 << 20; size *= 2)); do
      over "$(rate sizes$rails put-bw $size)" "$(rate sizes1 put-bw $size)"
    done | least)
    row "host, $rails rails over one, puts of 8 B to 4 MiB, each size" "" "" "$ratios" ">=" 0.95 ""
  done
  least_rate "1, 2, 4 rails: CPU device, AMOs that fetch nothing" 1 amo-rate 8 cpu1 cpu2 cpu4
  least_rate "1, 2, 4 rails: CPU device, signals" 1 signal-rate 8 cpu1 cpu2 cpu4
  least_rate "1, 2, 4 rails: host, AMOs that fetch nothing" 1 amo-rate 8 host1 host2 host4
  least_rate "1, 2, 4 rails: g by 64 device threads" 0.5 get-rate 8 cpu1 cpu2 cpu4
  least_rate "1, 2, 4 rails: fetch-adds by 64 device threads" 0.5 fetch-rate 8 cpu1 cpu2 cpu4
}

table() {
  printf '| %-58s | %12s | %12s | %8s | %-8s | %-9s |%s\n' promise ours "compared to" figure bound "kept here" \
    "${old:+ new/old | within 3 % |}"
  echo "|---|---:|---:|---:|---|---|${old:+---:|---|}"
  compare "tcp;ofi_rxm: put + quiet 8 B over bare put" tcp put-lat tcp raw-put-lat 6 "<=" 1.05 us
  compare "tcp;ofi_rxm: get 8 B over bare get" tcp get-lat tcp raw-get-lat 6 "<=" 1.05 us
  compare "tcp;ofi_rxm: put bandwidth 1 MiB, window 16, over bare" tcp put-bw tcp raw-put-bw 5 ">=" 0.97 MB/s
  compare "tcp;ofi_rxm: 8 B puts, quiet each 64, over bare awaited" tcp p-rate tcp raw-put-rate 5 ">=" 1.5 Mop/s
  compare "tcp;ofi_rxm: 8 B puts, one quiet, over bare awaited" tcp put-rate tcp raw-put-rate 5 ">=" 1.5 Mop/s
  compare "shm: put + quiet 8 B over bare put" shm put-lat shm raw-put-lat 6 "<=" 1.25 us
  compare "mapped: put bandwidth 1 MiB over memcpy" mapped put-bw mapped raw-memcpy-bw 5 ">=" 0.9 MB/s
  absolute "mapped: put + quiet 8 B, ns" mapped put-lat 6 1000 ns "<=" 50
  absolute "mapped: fetch-add 8 B, ns" mapped amo-lat 6 1000 ns "<=" 30
  absolute "mapped: 8 B puts, M/s" mapped p-rate 5 1 Mop/s ">=" 60
  absolute "busy target: get 8 B, us" busy get-lat 6 1 us "<=" 200
  absolute "busy target: fetch-add 8 B, us" busy amo-lat 6 1 us "<=" 200
  if [ "$(nproc)" -gt 2 ]; then
    compare "busy target, a core to spare: get over waiting target" busy get-lat idle-target get-lat 6 "<=" 3 us
    compare "busy target, a core to spare: fetch-add" busy amo-lat idle-target amo-lat 6 "<=" 3 us
  fi
  compare "tcp;ofi_rxm: put_signal 8 B over p, half round trips" tcp put-signal-pingpong tcp put-pingpong 6 "<=" 1.3 us
  compare "tcp;ofi_rxm: CPU device's put 8 B over the host's" tcp-cpu put-lat tcp put-lat 6 "<=" 1.3 us
  table_of_small
  absolute "idle PE, adaptive polling, % of a core" idle idle-cpu 5 1 % "<=" 2
  absolute "resident besides heaps, 8 PEs with 4 rails, MiB" large memory 5 1 MiB "<=" 64
  absolute "joining, 16 PEs, s" many init-time 5 0.001 s "<=" 3
}

# Criterion's lines: a name, perhaps on a line of its own, then `time: [low middle high]`.
channel_figures() {
  awk '
    /time:/ {
      line = $0; sub(/ *time:.*/, "", line); if (line !~ /^ *$/) name = line
      split($0, part, "[][]"); split(part[2], word, " ")
      printf "| %s | %s %s |\n", name, word[3], word[4]
    }
    !/time:|thrpt:|change:/ && NF { name = $0 }' "$channel"
}

report() {
  echo "$(date -u '+%Y-%m-%d %H:%M UTC'), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores," \
    "$(awk '/^MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo), Linux $(uname -r)," \
    "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)."
  echo "Load before: $load_before; after: $load_after. Medians of $turns turns."
  if ! awk -v a="$load_before" -v cores="$(nproc)" 'BEGIN { split(a, load, " "); exit !(load[1] < cores / 2) }'; then
    echo "**The machine was busy with other things: these figures are not to be relied on.**"
  fi
  echo
  table
  [ -z "$old" ] || { echo; echo "Old: $("$old" --version), $(stat -c '%y' "$old" | cut -d. -f1), measured in turns with the new one."; }
  if [ -s "$channel" ]; then
    echo
    echo "The channel between device and proxy alone, for one request:"
    echo
    echo "| benchmark | time |"
    echo "|---|---:|"
    channel_figures
  fi
  if [ -s "$failures" ]; then
    echo
    echo "Failed:"
    echo
    sed 's/^/    /' "$failures"
  fi
}

report | tee "$work/report"
echo
echo "took $(($(date +%s) - started)) s"
if [ $record = 1 ]; then
  # Only its own section; the lines that enclose it are comments there.
  awk -v report="$work/report" '
    /^<!-- bench.sh: end -->/ { inside = 0 }
    !inside
    /^<!-- bench.sh: begin -->/ { inside = 1; while ((getline line < report) > 0) print line }' \
    docs/benchmarks/README.md >"$work/benchmarks.md"
  cp "$work/benchmarks.md" docs/benchmarks/README.md
  echo "written to docs/benchmarks/README.md"
fi
[ ! -s "$failures" ]
