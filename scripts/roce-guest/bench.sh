#!/bin/bash
# Measures puts and AMOs over ibverbs beside the well-known `perftest` programs (ib_write_lat, ib_write_bw,
# ib_atomic_lat), in the guest, over one soft-RoCE device, alternately. The table has the medians over the turns.
#
#   scripts/roce-guest/bench.sh              prints a table
#   TURNS=9 scripts/roce-guest/bench.sh      more turns than the usual 5
#
# The CPU is emulated: absolute figures mean nothing, and ratios show what our code adds to the NIC driver's and the
# kernel's when all of them are slow.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
turns=${TURNS:-5}
device=rxe0
gid=1

# ---- in the guest

# bare NAME COLUMN COMMAND…: runs server and client of a perftest program; records the client's figure in that column.
bare() {
  local name=$1 column=$2 server listening=""
  shift 2
  "$@" -d $device -x $gid -F > /tmp/server 2>&1 &
  server=$!
  # It listens on TCP port 18515.
  while kill -0 $server 2>/dev/null; do
    listening=$(< /proc/net/tcp)$(< /proc/net/tcp6)
    [[ $listening == *":4853 "*" 0A "* ]] && break
  done
  timeout 60 "$@" -d $device -x $gid -F 127.0.0.1 > /tmp/client 2>&1 || { cat /tmp/client /tmp/server; return 1; }
  wait $server
  awk -v turn="$turn" -v name="$name" -v column="$column" '$1 ~ /^[0-9]+$/ && NF >= 5 { print turn, name, $column }' \
    /tmp/client | tail -n 1 >> /run/out/figures
}

# ours MODE TEST…: records each test's median (latencies) or rate.
ours() {
  local mode=$1
  shift
  SYMRAIL_IB_MODE=$mode timeout 100 "$symrail" perf "$@" --json /tmp/json > /tmp/ours 2>&1 || { cat /tmp/ours; return 1; }
  sed -n 's/.*"test":"\([^"]*\)".*"unit":"\([^"]*\)","value":\([^,]*\),"p50":\([^,]*\),.*/\1 \2 \3 \4/p' /tmp/json |
    awk -v turn="$turn" -v mode="$mode" '{ print turn, mode ":" $1, $2 == "us" ? $4 : $3 }' >> /run/out/figures
}

if [ "${1-}" = --inside ]; then
  symrail=$2
  export SYMRAIL_TRANSPORT=ibverbs SYMRAIL_NIC_LIST=$device SYMRAIL_IB_GID_INDEX=$gid SYMRAIL_HEAP_SIZE=16M
  for ((turn = 1; turn <= turns; turn++)); do
    echo "turn $turn of $turns"
    bare write_lat 5 ib_write_lat -s 8 -n 1000
    ours auto put-pingpong put-lat -b 8 -e 8 -i 1000
    bare write_awaited 5 ib_write_bw -s 8 -n 1000 -t 1 -Q 1
    bare write_bw 4 ib_write_bw -s 65536 -n 1000 -t 16 --report_gbits
    ours auto put-bw -b 64K -e 64K -i 60 -w 2 --window 16
    bare atomic_lat 5 ib_atomic_lat -A FETCH_AND_ADD -n 1000
    ours rdma-atomics amo-lat -i 1000
  done
  exit 0
fi

# ---- outside

cd "$here/../.."
command -v ib_write_lat > /dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends perftest; } >&2
cargo build --release --quiet -p symrail-perftest
symrail=$(realpath "${CARGO_TARGET_DIR:-target}/release/symrail")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
load=$(cut -d' ' -f1-3 /proc/loadavg)
TURNS=$turns "$here/run.sh" --rails 1 --silence "${SILENCE:-300}" --out "$work" -- env TURNS="$turns" "$here/bench.sh" --inside "$symrail"

# row WHAT OURS BARE FACTOR UNIT BOUND: bounds are on ours over bare. FACTOR converts the bare figure to our unit; a
# negative FACTOR divides by it.
row() {
  awk -v what="$1" -v ours="$2" -v bare="$3" -v factor="$4" -v unit="$5" -v bound="$6" '
    function median(v, n,   i, j, t) {
      for (i = 2; i <= n; i++) for (j = i; j > 1 && v[j - 1] > v[j]; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
      return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
    }
    $2 == ours { a[$1] = $3 }
    $2 == bare { b[$1] = factor < 0 ? -factor / $3 : $3 * factor }
    END {
      for (turn in a) if (turn in b) { n++; x[n] = a[turn]; y[n] = b[turn]; r[n] = a[turn] / b[turn] }
      if (!n) { print "| " what " | – | – | – | " bound " | no figure |"; exit }
      ratio = median(r, n)
      split(bound, part, " ")
      kept = part[1] == "≤" ? ratio <= part[2] : ratio >= part[2]
      printf "| %s | %.1f %s | %.1f %s | %.2f | %s | %s |\n", what, median(x, n), unit, median(y, n), unit, ratio, bound, kept ? "yes" : "no"
    }' "$work/figures"
}

echo "$(date -u '+%Y-%m-%d %H:%M UTC'), guest on $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores," \
  "load before: $load; medians of $turns turns"
echo
echo "| | ours | perftest | ratio | wanted | kept |"
echo "|---|---:|---:|---:|---|---|"
row "put 8 B, half round trip seen in memory: put-pingpong / ib_write_lat" auto:put-pingpong write_lat 1 us "≤ 1.15"
row "put 8 B and its acknowledgement: put-lat / ib_write_bw, one at a time" auto:put-lat write_awaited -1 us "≤ 1.15"
row "put-lat / ib_write_lat (an acknowledgement against half a round trip)" auto:put-lat write_lat 1 us "≤ 1.15"
row "put 64 KiB, 16 under way: put-bw / ib_write_bw" auto:put-bw write_bw 125 MB/s "≥ 0.9"
row "fetch-add by the NIC: amo-lat / ib_atomic_lat" rdma-atomics:amo-lat atomic_lat 1 us "≤ 1.15"
