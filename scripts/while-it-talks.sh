#!/bin/bash
# Runs a command and passes on its output. A command without output for so many seconds is ended: exit code 124.
#
#   scripts/while-it-talks.sh SECONDS COMMAND [ARGUMENT...]
#
# So a loaded machine gets the time that it needs, and a hang is detected.
set -uo pipefail
[ $# -ge 2 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 2; }
silence=$1
shift
# `timeout` gives the command its own process group, and passes signals that end it on to all of it.
exec {out}< <(exec timeout -k 10 8h "$@" 2>&1 < /dev/null)
command=$!
trap 'kill $command 2>/dev/null' EXIT
trap 'exit 143' TERM INT HUP
while IFS= read -r -t "$silence" -u "$out" line || ! code=$?; do printf '%s\n' "$line"; done
if [ "$code" -gt 128 ]; then
  printf '%s\n%s\n' "$line" "$0: no new line for $silence s"
  exit 124
fi
printf %s "$line"
wait $command
