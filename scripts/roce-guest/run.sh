#!/bin/bash
# Runs a command on a machine that has RDMA devices: a QEMU guest with soft-RoCE rails.
#
#   scripts/roce-guest/run.sh [--rails N] [--wire] [--silence SECONDS] [--out DIR] [--] COMMAND [ARGUMENT...]
#
# The guest can read this machine's files (its own writes are lost when it ends) and runs the command as root in the
# current directory, with this shell's SYMRAIL_* and RUST_* variables. The command's exit code becomes ours; 125 means
# that the guest returned none (it printed nothing for too long, or did not boot).
#   --rails N   soft-RoCE devices rxe0 … (default 2)          --wire      adds wire0 to wire3, the ends of cables
#   --silence S seconds without a new line of output after which the guest is ended (default 300)
#   --out DIR   what the command writes to /run/out comes here
#
# A test binary:  run.sh target/debug/deps/verbs_rails-… --test-threads=1
# The CPU is emulated, so this is for correctness and not for speed. Two processes that spin starve the guest's network
# (two CPUs, and soft-RoCE works in the kernel): yield while polling.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
rails=2 wire=0 silence=300 out=
while [ $# -gt 0 ]; do
  case $1 in
    --rails) rails=$2; shift 2 ;;
    --wire) wire=1; shift ;;
    --silence) silence=$2; shift 2 ;;
    --out) out=$(realpath "$2"); shift 2 ;;
    --) shift; break ;;
    -*) echo "$0: unknown option $1" >&2; exit 2 ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || { sed -n '2,17s/^# \{0,1\}//p' "$0"; exit 2; }

dir=${ROCE_GUEST_DIR:-$(realpath "$here/../..")/target/roce-guest}
ROCE_GUEST_DIR=$dir "$here/setup.sh" >&2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: "${out:=$work}"
command=$(mktemp -p "$out" command.XXXXXX)
{
  echo "cd $(printf %q "$PWD") || exit 94"
  while IFS='=' read -r -d '' name value; do
    case $name in SYMRAIL_* | RUST_*) echo "export $name=$(printf %q "$value")" ;; esac
  done < <(env -0)
  printf '%q ' "$@"
} > "$command"

# The serial console adds carriage returns; the second port carries the exit code only.
"$here/../while-it-talks.sh" "$silence" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 2048 \
  -machine pc,hpet=off -nodefaults -no-user-config -display none -nic none -no-reboot \
  -serial stdio -serial "file:$work/exit" \
  -virtfs local,path=/,mount_tag=hostroot,security_model=none,readonly=on,multidevs=remap \
  -virtfs "local,path=$out,mount_tag=out,security_model=none" \
  -kernel "$dir/vmlinux" -initrd "$dir/initrd.img" \
  -append "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr no_timer_check tsc=reliable random.trust_cpu=on \
count=$rails wire=$wire rails=$here/rails.sh run=/run/out/$(basename "$command")" | sed -u 's/\r//g' || true
rm -f "$command"
code=$(sed -n 's/^exit=\([0-9]*\).*/\1/p' "$work/exit" 2>/dev/null | tail -1)
[ -n "$code" ] && exit "$code"
echo "$0: the guest gave no exit code" >&2
exit 125
