#!/bin/bash
# Two PEs in network namespaces of their own, joined by R cables of limited speed: what do several rails bring?
#
#   scripts/netns-rails.sh [R]                   measures 4 MiB puts over 1, 2 and 4 rails (or 1 and R), whole puts in
#                                                turn (round-robin) and split (stripe), and compares with one rail
#   scripts/netns-rails.sh R -- COMMAND [ARG…]   runs a command as PE 0 here and as PE 1 at the other end, over R rails
#   scripts/netns-rails.sh differ                the same over four cables, of which the last has a quarter of the speed, or
#                                                changes its speed each second, or has 20 ms more each way: adaptive
#                                                and bulk puts beside round-robin. Wanted: 0.9 of the sum, or of the other three's
#   scripts/netns-rails.sh urgent                4 KiB puts, each awaited, alone and beside 1 MiB puts of another context,
#                                                over one cable and two, of 10 ms each way: the large ones bulk, and not.
#                                                Wanted beside bulk ones: 99 of 100 take at most twice as long as alone
#   scripts/netns-rails.sh flap [SECONDS]        pulls out one of four rails every other second, under load that counts
#                                                what it sends and gets; exit code 0: nothing is lost or done twice
#   scripts/netns-rails.sh flap SECONDS pencils  the same under transposes, of which every byte is checked
#   scripts/netns-rails.sh flap SECONDS nccl     the same under messages of the NCCL plugin: each comes once and whole
#
# RATE=<Mbit/s> sets the speed of a cable (default 200: slow enough that two busy cores are not the limit). Exit code: 0
# when two rails give at least 1.9 and four at least 3.7 times the bandwidth of one, 1 when five measurements in turn
# give less, 77 when this machine does not allow it. Needs root or, where they are allowed, user namespaces.
#
# Nothing is left behind: the namespaces have no names, and the kernel ends them with this script's last process.
set -euo pipefail
self=$(realpath "$0")
root=$(dirname "$self")/..
target=${CARGO_TARGET_DIR:-$root/target}
rate=${RATE:-200}

outside() {
  case ${1-} in -h | --help) sed -n '2,23s/^# \{0,1\}//p' "$self"; exit 0 ;; esac
  [[ ${1-4} =~ ^(flap|differ|urgent|[1-9]|[1-5][0-9]|6[0-4])$ ]] || { echo "$0: R is a number of rails from 1 to 64, differ, urgent or flap" >&2; exit 2; }
  local as=()
  [ "$(id -u)" = 0 ] || as=(--map-root-user)
  # shellcheck disable=SC2016
  if ! why=$(unshare "${as[@]}" --net sh -c 'ip link add here type veth peer name there && tc qdisc add dev here root tbf rate 1mbit burst 64k limit 1m' 2>&1); then
    echo "SKIPPED: network namespaces with shaped veth cables need root, user namespaces or other kernel modules: ${why##*$'\n'}"
    exit 77
  fi
  # The build of the tests: cables, not processors, are the limit.
  cargo build -q --manifest-path "$root/Cargo.toml" --workspace --lib --bins --examples
  if [ "${3-}" = nccl ]; then
    plugin=$(cargo test -q --manifest-path "$root/Cargo.toml" --workspace --test it --no-run --message-format json |
      sed -n '/nccl-net\/tests\/it[.]rs/s/.*"executable":"\([^"]*\)".*/\1/p')
  fi
  work=$(mktemp -d)
  inner=
  trap '[ -z "$inner" ] || kill -KILL "$inner" 2>/dev/null; rm -rf "$work"' EXIT
  trap 'exit 143' TERM INT HUP
  # However this process ends, the one with the namespaces ends too, and so do all processes in them.
  WORK=$work PLUGIN=${plugin-} INSIDE=1 setpriv --pdeathsig KILL unshare "${as[@]}" --net --mount --pid --fork --kill-child --mount-proc "$self" "$@" &
  inner=$!
  local code=0
  wait $inner || code=$?
  inner= # it has ended: there is nothing left to kill
  exit $code
}

# ---- in the namespaces

there=${WORK-}/there # the other end's network namespace, as a file

cable() { # name address-here address-there: both ends up, under the same name
  ip link add "$1" type veth peer name peer
  ip link set peer netns "$there"
  ip addr add "$2" dev "$1"
  ip link set "$1" up
  nsenter --net="$there" sh -c "ip link set peer name $1 && ip addr add $3 dev $1 && ip link set $1 up"
}

shape() { # name: no faster than the rate in either direction; room for what TCP has in flight, so that nothing is lost
  local tbf=(tc qdisc add dev "$1" root tbf rate "${rate}mbit" burst 256k limit 16m)
  "${tbf[@]}"
  nsenter --net="$there" "${tbf[@]}"
}

reshape() { # name mbit: another speed from now on
  local qdisc=(tc qdisc change dev "$1" root tbf rate "$2mbit" burst 256k limit 16m)
  "${qdisc[@]}"
  nsenter --net="$there" "${qdisc[@]}"
}

delay() { # number ms: a new cable in place of an old one, with latency in each direction
  local name=rail$1 line address
  ip link del "$name"
  mkfifo "$WORK/cable"
  "$root/scripts/delayed-cable.py" "$name" "$rate" "$2" "$there" > "$WORK/cable" &
  read -r line < "$WORK/cable"
  rm "$WORK/cable"
  for address in 1 2; do
    local at=()
    [ $address = 1 ] || at=(nsenter --net="$there")
    "${at[@]}" ip addr add "10.91.$1.$address/24" dev "$name"
    "${at[@]}" ip link set "$name" mtu 9000 up
  done
}

lay_cables() { # how many
  touch "$there"
  unshare --net="$there" true
  ip link set lo up
  nsenter --net="$there" ip link set lo up
  cable control 10.91.255.1/24 10.91.255.2/24 # how PEs find each other; carries no data
  for ((i = 0; i < $1; i++)); do
    cable rail$i 10.91.$i.1/24 10.91.$i.2/24
    shape rail$i
  done
}

as_pe() { # pe id nics command…
  local pe=$1 id=$2 nics=$3
  shift 3
  env SYMRAIL_BOOTSTRAP=uid SYMRAIL_BOOTSTRAP_UID="$id" SYMRAIL_BOOTSTRAP_PE="$pe" SYMRAIL_BOOTSTRAP_N_PES=2 \
    SYMRAIL_FAKE_HOST="end$pe" SYMRAIL_NIC_LIST="$nics" SYMRAIL_LIBFABRIC_MAX_NIC_PER_PE=64 \
    SYMRAIL_TRANSPORT=libfabric SYMRAIL_LIBFABRIC_PROVIDER='tcp;ofi_rxm' "$@"
}

both() { # rails command…: runs it at both ends; the worse exit code
  local nics id other code=0
  nics=$(seq -s, -f 'rail%g' 0 $(($1 - 1)))
  shift
  coproc SERVICE { exec "$target/debug/examples/rendezvous" 10.91.255.1; }
  read -r id <&"${SERVICE[0]}"
  as_pe 1 "$id" "$nics" timeout 120 nsenter --net="$there" "$@" > "$WORK/pe1" 2>&1 &
  other=$!
  as_pe 0 "$id" "$nics" timeout 120 "$@" || code=$?
  # If PE 0 failed, PE 1 need not be awaited.
  [ $code = 0 ] || kill $other 2>/dev/null || true
  wait $other || code=$((code ? code : $?))
  if [ $code != 0 ]; then sed 's/^/PE 1: /' "$WORK/pe1" >&2; fi
  kill "$SERVICE_PID" 2>/dev/null || true
  wait "$SERVICE_PID" 2>/dev/null || true
  return $code
}

bandwidth() { # rails policy [iterations [bytes]]: MB/s
  export SYMRAIL_RAIL_POLICY=$2
  local bytes=${4-4194304}
  both "$1" "$target/debug/symrail" perf put-bw -b "$bytes" -e "$bytes" -W 16 -i "${3-2}" -w 1 --json "$WORK/result" > "$WORK/table" ||
    { cat "$WORK/table" >&2; return 1; }
  # One result: one value.
  tr -d '\n' < "$WORK/result" | sed -n 's/.*"value": *\([0-9.]*\).*/\1/p'
}

measure() { # rails…
  local one now wanted policy attempt missed=0
  one=$(bandwidth 1 round-robin)
  echo "4 MiB puts between two network namespaces, cables of $rate Mbit/s each"
  printf '%-6s %-12s %10s %8s %8s\n' rails policy MB/s ratio wanted
  printf '%-6s %-12s %10.1f\n' 1 - "$one"
  for rails; do
    # Two rails may lose 5 %, four rails 7.5 %.
    wanted=$(awk -v r="$rails" 'BEGIN { print r * (r > 2 ? .925 : .95) }')
    for policy in round-robin stripe; do
      # Other processes on this machine can only make a measurement worse: the best of five counts.
      for attempt in 1 2 3 4 5; do
        now=$(bandwidth "$rails" $policy)
        awk -v r="$rails" -v p=$policy -v now="$now" -v one="$one" -v want="$wanted" 'BEGIN {
          printf "%-6s %-12s %10.1f %8.2f %8.2f%s\n", r, p, now, now / one, want, now < want * one ? "  MISSED" : ""
          exit now < want * one }' && break
        [ $attempt -lt 5 ] || missed=1
      done
    done
  done
  return $missed
}

bulk_bandwidth() { # seconds: MB/s of bulk puts of 1 MiB over four rails
  both 4 "$target/debug/pe" urgent 10 bulk "$1" > "$WORK/table" || return 1
  sed -n 's/.*alone_mbs \([0-9.]*\).*/\1/p' "$WORK/table"
}

# what wanted [iterations [bytes [seconds]]]: four rails, by both policies, and by bulk puts
four() {
  local policy now attempt
  for policy in round-robin adaptive bulk; do
    for attempt in 1 2 3; do
      if [ $policy = bulk ]; then
        now=$(bulk_bandwidth "${5-4}")
      else
        now=$(bandwidth 4 $policy "${3-3}" "${4-4194304}")
      fi
      awk -v what="$1" -v p=$policy -v now="$now" -v one="$one" -v want="$2" 'BEGIN {
        missed = p != "round-robin" && now < want * one
        printf "%-28s %-12s %10.1f %8.2f %8.2f%s\n", what, p, now, now / one, want, missed ? "  MISSED" : ""
        exit missed }' && break
      [ $attempt -lt 3 ] || missed=1
    done
  done
}

differ() {
  local missed=0 one changing
  one=$(bandwidth 1 round-robin)
  echo "4 MiB puts over four cables of $rate Mbit/s of which the last one differs; one cable: $one MB/s"
  printf '%-28s %-12s %10s %8s %8s\n' "the last cable" policy MB/s ratio wanted
  four "is like the others" 3.7
  reshape rail3 $((rate / 4))
  four "a quarter of the speed" 2.925 3 4194304 20
  reshape rail3 "$rate"
  (while sleep 1; do reshape rail3 $((rate / 4)); sleep 1; reshape rail3 "$rate"; done) &
  changing=$!
  # On average 3.625 times as much as one.
  four "changes each second" 2.9 20 4194304 60
  kill $changing 2>/dev/null || true
  delay 3 20
  four "20 ms more each way" 2.7
  four "the same, 256 KiB" 2.7 40 262144
  return $missed
}

urgent() {
  local missed=0 rails priority attempt
  echo "4 KiB puts beside 1 MiB puts, cables of $rate Mbit/s and 10 ms each way; times in us"
  for rails in 1 2; do
    delay $((rails - 1)) 10
    for priority in urgent bulk; do
      for attempt in 1 2 3; do
        both $rails "$target/debug/pe" urgent 200 $priority > "$WORK/table"
        awk -v what="$rails $priority" '/^idle_p50/ {
          print what, $0
          late = what ~ /bulk/ && $10 > 2
          exit }
          END { exit late }' "$WORK/table" && break
        [ $attempt -lt 3 ] || missed=1
      done
    done
  done
  return $missed
}

pull_cables() { # file, seconds: from when it exists, one cable after the other is out every other second, and its
  local cut=0 i=0 # connections are cut; then the file is removed
  until [ -e "$1" ]; do sleep .1; done
  local end=$((SECONDS + $2))
  while [ $SECONDS -lt $end ]; do
    ip link set rail$i down
    # The kernel would keep connections over a pause of a second; these end here, and at the other end by the answer to
    # the next packet.
    ss -K dst 10.91.$i.0/24 > "$WORK/cut" 2> /dev/null || true
    [ "$(wc -l < "$WORK/cut")" -le 1 ] || cut=$((cut + 1))
    sleep 1
    ip link set rail$i up
    sleep 1
    i=$(((i + 1) % 4))
  done
  echo "$cut" > "$WORK/cuts"
  rm "$1"
}

messages() { # as a PE: one end of the plugin's messages, which tells the other end by a pipe
  local role=receiver to=$WORK/ahead from=$WORK/back
  [ "$SYMRAIL_BOOTSTRAP_PE" = 0 ] || { role=sender to=$WORK/back from=$WORK/ahead; }
  # Both pipes are opened without waiting for the other end.
  NCCL_NET_TEST_ROLE="flapping $role" NCCL_NET_TEST_VERSION=11 NCCL_NET_TEST_UNTIL=$WORK/joined \
    exec "$PLUGIN" plugin::other --exact --nocapture --test-threads=1 0<> "$from" 1<> "$to"
}

flap() { # seconds, or also: pencils, nccl
  local puller code=0 program=("$target/debug/pe" flap "$WORK/joined")
  [ "${2-}" != pencils ] || program=("$target/debug/pe" decomp rounds "$1" "$WORK/joined")
  if [ "${2-}" = nccl ]; then
    mkfifo "$WORK/ahead" "$WORK/back"
    program=("$self" messages)
  fi
  # TCP gives up a connection without an answer after 1.4 s, not after a quarter of an hour.
  echo 2 > /proc/sys/net/ipv4/tcp_retries2
  nsenter --net="$there" sh -c 'echo 2 > /proc/sys/net/ipv4/tcp_retries2'
  pull_cables "$WORK/joined" "$1" &
  puller=$!
  both 4 "${program[@]}" || { code=$? && kill $puller; }
  cat "$WORK/pe1"
  wait $puller || code=1
  [ "$(cat "$WORK/cuts")" -gt 0 ] || code=1
  [ $code != 0 ] || echo "connections were cut $(cat "$WORK/cuts") times"
  return $code
}

inside() {
  trap 'exit 143' TERM INT HUP
  local rails=${1-}
  if [ "$rails" = messages ]; then
    messages
  elif [ "$rails" = flap ]; then
    lay_cables 4
    flap "${2-10}" "${3-}"
  elif [ "$rails" = urgent ]; then
    lay_cables 2
    urgent
  elif [ "$rails" = differ ]; then
    lay_cables 4
    differ
  elif [ "${2-}" = -- ]; then
    shift 2
    lay_cables "$rails"
    both "$rails" "$@"
  elif [ -n "$rails" ]; then
    lay_cables "$rails"
    measure "$rails"
  else
    lay_cables 4
    measure 2 4
  fi
}

if [ -n "${INSIDE-}" ]; then inside "$@"; else outside "$@"; fi
