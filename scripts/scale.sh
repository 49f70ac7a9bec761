#!/bin/bash
# Jobs of many PEs on this machine: their duration, and each PE's resources.
#
#   scripts/scale.sh [PES…]    jobs of so many PEs (2 16 64 128 without arguments), on 16 pretended hosts, over one
#                              rail over TCP; HOSTS, RAILS and PROFILE (release; dev for counts alone) in the
#                              environment; JOIN=uid: by a unique id, so that PEs join a tree (one rail)
#
# Each line is one job: the slowest PE's milliseconds in each part, KiB per PE (mean) after it, and the share of that
# for each further PE since the previous job. "first" is the first put to a peer, until it is delivered.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
root=$(dirname "$(realpath "$0")")/..
profile=${PROFILE:-release}
cargo build --quiet --profile "$profile" --manifest-path "$root/Cargo.toml" -p symrail-perftest --bin symrail
cargo build --quiet --profile "$profile" --manifest-path "$root/Cargo.toml" -p symrail-tests --bin pe
cargo build --quiet --profile "$profile" --manifest-path "$root/Cargo.toml" -p symrail --example rendezvous
built=${BUILT:-${CARGO_TARGET_DIR:-$root/target}/${profile/dev/debug}}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export SYMRAIL_LOG=${SYMRAIL_LOG:-warn,symrail::stages=info} SYMRAIL_HEAP_SIZE=16M SYMRAIL_TRANSPORT=libfabric
export SYMRAIL_LIBFABRIC_PROVIDER='tcp;ofi_rxm'

# A job of $pes PEs on $hosts hosts.
job() {
  if [ "${JOIN-}" != uid ]; then
    "$built/symrail" run -n "$pes" --hosts "$hosts" --rails "${RAILS:-1}" -- "$built/pe" scale
    return
  fi
  local id started=() pe status=0
  coproc "$built/examples/rendezvous" 127.0.0.1
  read -r id <&"${COPROC[0]}"
  for ((pe = 0; pe < pes; pe++)); do
    SYMRAIL_BOOTSTRAP_UID=$id SYMRAIL_BOOTSTRAP_PE=$pe SYMRAIL_BOOTSTRAP_N_PES=$pes SYMRAIL_NIC_LIST=127.0.0.2 \
      SYMRAIL_FAKE_HOST=host$((pe * hosts / pes)) "$built/pe" scale &
    started+=($!)
  done
  for pe in "${started[@]}"; do wait "$pe" || status=1; done
  kill "$COPROC_PID"
  return $status
}

[ $# -gt 0 ] || set -- 2 16 64 128
before=0 before_joined=0 before_all=0
for pes; do
  hosts=$((pes < ${HOSTS:-16} ? pes : ${HOSTS:-16}))
  job > "$log" 2>&1 || { cat "$log"; exit 1; }
  read -r line joined all < <(awk -v pes="$pes" '
    $1 == "scale" {
      for (i = 4; i <= NF; i += 2) {
        if ($i ~ /_ms$/ && $(i + 1) > most[$i]) most[$i] = $(i + 1)
        if ($i ~ /_kib$/) sum[$i] += $(i + 1)
      }
    }
    END {
      line = ""
      parts = split("join first ring all leave", part, " ")
      for (p = 1; p <= parts; p++) line = line part[p] "=" most[part[p] "_ms"] "ms,"
      printf "%sstart=%dKiB,join=%dKiB,all=%dKiB %d %d\n", line, sum["start_kib"] / pes, sum["join_kib"] / pes,
        sum["all_kib"] / pes, sum["join_kib"] * 1024 / pes, sum["all_kib"] * 1024 / pes
    }' "$log")
  printf '%4d PEs, %2d hosts: %s\n' "$pes" "$hosts" "${line//,/ }"
  if [ "$before" -gt 0 ]; then
    echo "      each further PE since $before: $(((joined - before_joined) / (pes - before))) B after joining," \
      "$(((all - before_all) / (pes - before))) B after a put to all"
  fi
  grep -m1 -o 'joined in .*' "$log" | sed 's/^/      PE that said so first: /' || true
  before=$pes before_joined=$joined before_all=$all
done
